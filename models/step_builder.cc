#include "models/step_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "models/data_parallel.h"
#include "models/deferred_head.h"
#include "models/first_layer.h"
#include "models/graph_limit.h"
#include "models/micro_batch_script.h"
#include "models/optimizer_phase.h"
#include "models/pipeline_check.h"
#include "models/pipeline_program.h"
#include "models/resident_storages.h"
#include "models/saved_tensors.h"
#include "models/step_frame.h"
#include "models/step_memory.h"
#include "models/step_stamper.h"
#include "models/template_builder.h"
#include "models/template_stamp.h"
#include "models/trainable.h"
#include "sim/check.h"
#include "sim/dtype_name.h"
#include "sim/input_error.h"

namespace stepsim {

namespace {

void check_model(const ModelSpec& model) {
  if (const std::optional<FieldProblem> problem = model_problem(model)) {
    throw InputError({model.name.empty() ? "--model" : model.name, 0, 0},
                     fmt::format("found {} {}, wanted {}", problem->field, problem->found, problem->wanted));
  }
}

// A copy to the host or back that keeps an op waiting: before forward ops; before backward and recompute ops; at the end of the step.
PhaseMeaning phase_meaning() {
  PhaseMeaning meaning;
  meaning.copy_wait_of_bucket = {0, 1, 1, 2};                   // forward, backward, recompute, optimizer
  meaning.copy_out_first_is_tail = {false, true, false, true};  // before the first backward op and before the optimizer
  meaning.tail = 2;
  meaning.copy_waits = 3;
  return meaning;
}

// FlashAttention takes fp16 and bf16 (Dao-AILab/flash-attention README, "NVIDIA CUDA Support"), cuDNN's fused attention those and fp8
// (docs.nvidia.com, cudnn frontend, operations/Attention, "Support Matrix").
void warn_of_missing_kernels(const TrainingRecipe& training, std::vector<std::string>& warnings) {
  if (training.precision != Precision::kFp32 || training.attention == AttentionKind::kUnfused) return;
  warnings.push_back(fmt::format("{} attention has no fp32 kernel: priced as if it had; use --attention unfused",
                                 training.attention == AttentionKind::kFlash ? "flash" : "cuDNN's fused"));
}

std::vector<std::string> not_modelled(const StepRequest& request) {
  std::vector<std::string> notes{"data loading and logging between steps"};
  if (!request.framework.always_clips) notes.push_back("gradient norms above the clipping threshold, which cost a pass over the gradients");
  if (request.training.precision == Precision::kFp16) notes.push_back("loss scaling: no step is skipped");
  if (request.training.optimizer == OptimizerKind::kMuon)
    notes.push_back("Muon's products that orthogonalise momentum: time of its bytes alone");
  const ModelSpec& model = request.model;
  if (model.post_norms) {
    notes.push_back("soft caps of scores and logits, where the model has them (Gemma 2): kernels over the logits and a saved copy of them");
  }
  if (model.is_latent() && model.has_experts() && model.multi_token_layers == 0) {
    notes.push_back("multi-token prediction, where the model was trained with it: --set model.multi_token_layers=1");
  }
  if (request.parallel.pipeline > 1) notes.push_back("launch cost of the sending half of a point-to-point transfer");
  return notes;
}

// Sizes of explicit segments add up to all layers: they say nothing of parts of the model.
void check_segments(const PlacementPolicy& policy, const StageLayout& stages) {
  if (policy.segment_sizes.empty() || stages.parts.size() == 1) return;
  throw InputError(
      {"--recompute-segments"},
      fmt::format("found sizes of segments, wanted their number or halving with {} model chunks, which apply it to their own layers",
                  stages.parts.size()));
}

void check_reduce_dtype(const StepRequest& request) {
  const DType found = *request.parallel.reduce_dtype, wanted = *request.training.gradient_dtype;
  if (request.parallel.zero >= 2 || !has_replicas(request.parallel) || found == wanted) return;
  throw InputError({"--set parallel.reduce_dtype"},
                   fmt::format("found {}, wanted {}: zero 0 and 1 reduce gradients in the buffer where they accumulate (--grad-dtype)",
                               dtype_name(found), dtype_name(wanted)));
}

void check_micro_batches(const PlacementPolicy& policy, std::int64_t micro_batches) {
  constexpr std::size_t kMostRanges = 1024;  // each has a script of its own
  std::set<std::int64_t> begins;
  for (const PlacementRow& row : policy.rows) {
    const std::int64_t last = row.last_micro_batch < 0 ? micro_batches - 1 : row.last_micro_batch;
    if (row.first_micro_batch < 0 || row.first_micro_batch > last || last >= micro_batches) {
      throw InputError({"--placement"}, fmt::format("found micro-batches {} to {}, wanted a range within 0 to {}", row.first_micro_batch,
                                                    last, micro_batches - 1));
    }
    begins.insert(row.first_micro_batch);
    begins.insert(last + 1);
  }
  if (begins.size() > kMostRanges) {
    throw InputError({"--placement"}, fmt::format("found {} ranges of micro-batches with a placement of their own, wanted at most {}",
                                                  begins.size(), kMostRanges));
  }
}

// A shared storage lives on one device.
void check_shared(const LayerStack& stack, const ParallelLayout& parallel) {
  if (parallel.pipeline == 1) return;
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
    for (const Slot& slot : stack.kind(kind).slots) {
      if (slot.kind != SlotKind::kShared) continue;
      throw InputError({"--pp"}, fmt::format("found {}, wanted 1: \"{}\" is read by layers of other stages (an encoder-decoder), whose "
                                             "transfers are not built",
                                             parallel.pipeline, slot.name));
    }
  }
}

bool has_slot(const LayerTemplate& source, SlotKind kind, const std::string& name) {
  return std::any_of(source.slots.begin(), source.slots.end(), [&](const Slot& slot) { return slot.kind == kind && slot.name == name; });
}

std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) elements *= extent;
  return elements;
}

// What a unit holds itself: weights that it shares with the embedding of its stage are the embedding's, of another stage a copy.
UnitParameters unit_parameters(const TemplateStamp& stamp, std::int32_t layer, const TrainingRecipe& training,
                               const LayerTemplate& embedding) {
  const LayerTemplate& source = *stamp.source;
  const std::int64_t bytes = bits_of(compute_dtype(training.precision)) / 8;
  UnitParameters unit{.layer = layer, .frozen = source.frozen_bytes, .cached = source.cached_weights};
  for (std::size_t slot = 0; slot < source.slots.size(); ++slot) {
    const Slot& weight = source.slots[slot];
    if (stamp.roots[slot].place != OperandPlace::kWeights || weight.kind != SlotKind::kWeight) continue;
    if (!training.trainable.trains_all() && !has_slot(source, SlotKind::kWeightGradient, weight.name + " gradient")) {
      // The template counts its frozen weights but for those that the embedding owns.
      if (&source != &embedding && has_slot(embedding, SlotKind::kWeight, weight.name)) unit.frozen += weight.size;
      continue;
    }
    const bool low = weight.dtype == DType::kFp8 || weight.dtype == DType::kMxFp8 || weight.dtype == DType::kNvFp4;
    const std::int64_t elements = low ? elements_of(weight.shape) : weight.size.value / bytes;
    unit.kept += weight.size;
    unit.parameters += elements;
    unit.tensors.push_back(elements);
    if (weight.expert) unit.expert_parameters += elements;
    if (layer >= 0 && weight.shape.size() > 1) unit.matrices += elements;
  }
  return unit;
}

BesideStreams beside_streams(const StepTemplates& templates) {
  BesideStreams used;
  const auto add = [&used](const LayerTemplate& source) {
    for (const std::vector<TemplateOp>* ops : {&source.forward, &source.backward}) {
      for (const TemplateOp& op : *ops) {
        used.context |= op.stream == OpStream::kContext;
        used.expert |= op.stream == OpStream::kExpert;
      }
    }
  };
  add(templates.embedding);
  for (const LayerTemplate& kind : templates.kinds) add(kind);
  add(templates.head);
  return used;
}

// The layout as the reduction of gradients sees it: DualPipe's parts have twice as many holders as there are data-parallel ranks, as two
// stages hold each. Both update them, or share the optimizer's state (ZeRO 1).
ParallelLayout with_all_holders(const ParallelLayout& parallel) {
  ParallelLayout holders = parallel;
  holders.data *= ChunkPlacement{parallel.schedule, parallel.pipeline, 1}.copies();
  return holders;
}

// The builder of one step: what its parts share.
class StepWriter {
 public:
  StepWriter(const StepRequest& request, const StepTemplates& templates, const LayerStack& stack, std::int64_t micro_batches)
      : request_(request),
        parallel_(with_all_holders(request.parallel)),
        templates_(templates),
        stack_(stack),
        micro_batches_(static_cast<std::int32_t>(micro_batches)) {}

  BuiltStep write(BuiltStep built) && {
    stages_ = built.stages;
    frame_ = add_step_frame(builder_, parallel_, request_.framework, request_.placement, beside_streams(templates_));
    make_stamps();
    make_chunks();
    add_unit_residents(built);
    const OptimizerContext context{request_.model, request_.training, parallel_, request_.framework, residents_};
    std::vector<StagePasses> passes = pipeline_passes(parallel_.schedule, stages_.stages, stages_.chunks, micro_batches_,
                                                      parallel_.micro_batch_group, runs_pairs(parallel_, templates_));
    find_split_passes(passes);
    make_scripts();
    add_deferred_head_passes(passes, stages_.chunks, deferred_head());
    const std::vector<PipelineItem> program = pipeline_program(passes, stages_.chunks, *parallel_.point_to_point, parallel_.schedule);
    reserve();
    const bool exchanges = *parallel_.point_to_point != PointToPoint::kOverlapped;
    StepStamper stamper(builder_, frame_, scripts_, passes, micro_batches_,
                        {.frees_outputs = *parallel_.deallocate_outputs,
                         .host_waits = exchanges && request_.framework.waits_after_exchange,
                         .stride = parallel_.tensor * request_.parallel.replicas(),
                         .one_graph = cuda_graph() == CudaGraph::kFull,
                         .schedule = parallel_.schedule,
                         .puts_off_weight_gradients = parallel_.delay_weight_gradients.value_or(false)});
    stamper.touch(add_pass_memory(builder_, frame_, memory(), residents_, scripts_, passes));
    gather_weights_first(context, stamper);
    stamper.write(program);
    add_optimizer_phase(builder_, frame_, context, tails(stamper));
    list_saved(stamper, built);
    built.phases = phase_meaning();
    built.saved_roles = {frame_.labels.saved, frame_.labels.saved_again};
    if (frame_.labels.reloaded.valid()) built.saved_roles.push_back(frame_.labels.reloaded);
    built.phase_labels.assign(frame_.labels.phases.begin(), frame_.labels.phases.end());
    built.not_modelled = not_modelled(request_);
    built.graph = std::move(builder_).build();
    return built;
  }

 private:
  // Of launches that cost time.
  CudaGraph cuda_graph() const {
    return request_.framework.host_issue ? request_.training.cuda_graph.value_or(request_.framework.cuda_graph) : CudaGraph::kNone;
  }
  bool tied_on_one_stage() const { return request_.model.tied_head && parallel_.pipeline == 1; }

  void make_stamps() {
    const LayerTemplate* const embedding = parallel_.pipeline == 1 ? &templates_.embedding : nullptr;  // of the same stage
    embedding_ = make_stamp(builder_, templates_.embedding, named_);
    for (const LayerTemplate& kind : templates_.kinds) kinds_.push_back(make_stamp(builder_, kind, named_, embedding));
    head_ = make_stamp(builder_, templates_.head, named_, embedding);
  }

  bool ties_layers() const {
    return std::any_of(kinds_.begin(), kinds_.end(), [](const TemplateStamp& kind) { return kind.tied; });
  }

  void make_chunks() {
    for (std::int32_t stage = 0; stage < stages_.stages; ++stage) {
      chunks_.emplace_back();
      for (std::int32_t index = 0; index < stages_.chunks; ++index) {
        const ModelChunk& chunk = stages_.chunk(stage, index);
        chunks_.back().push_back({.kinds = kinds_,
                                  .kind_of = templates_.kind_of,
                                  .embedding = chunk.embedding ? &embedding_ : nullptr,
                                  .head = chunk.head ? &head_ : nullptr,
                                  .batch = named_.batch,
                                  .shared = named_.shared.size(),
                                  .first_layer = chunk.first_layer,
                                  .layers = chunk.layers,
                                  .ties_head = tied_on_one_stage() || head_.tied || ties_layers()});
      }
    }
  }

  void add_unit_residents(BuiltStep& built) {
    std::vector<std::vector<UnitParameters>> parameters;
    for (const std::vector<ChunkStamps>& chunks : chunks_) {
      std::vector<UnitParameters>& units = parameters.emplace_back();
      std::int64_t sum = 0;
      for (const ChunkStamps& chunk : chunks) {
        for (std::size_t unit = 0; unit < chunk.units(); ++unit) {
          units.push_back(unit_parameters(chunk.unit(unit), chunk.layer_of(unit), request_.training, templates_.embedding));
          sum += units.back().parameters;
        }
      }
      built.parameters_of_stage.push_back(sum);
    }
    built.parameters_per_device = *std::max_element(built.parameters_of_stage.begin(), built.parameters_of_stage.end());
    residents_ =
        add_residents(builder_, frame_, request_.training, parallel_, request_.framework, parameters, library_workspaces(memory()));
  }

  StepMemoryContext memory() const { return {request_, templates_, stages_, chunks_}; }

  std::span<const UnitResidents> residents_of(std::size_t stage, std::size_t chunk) const {
    std::size_t first = 0;
    for (std::size_t before = 0; before < chunk; ++before) first += chunks_[stage][before].units();
    return std::span(residents_.stages[stage]).subspan(first, chunks_[stage][chunk].units());
  }

  bool reduces_whole_gradients() const { return has_replicas(parallel_) && parallel_.zero <= 1; }

  // Backward passes without the weight gradients: those that have a weight pass.
  void find_split_passes(const std::vector<StagePasses>& passes) {
    for (const StagePasses& stage : passes) {
      std::vector<std::vector<bool>>& split = split_.emplace_back(static_cast<std::size_t>(stages_.chunks));
      for (std::vector<bool>& chunk : split) chunk.assign(static_cast<std::size_t>(micro_batches_), false);
      if (parallel_.pipeline == 1) continue;
      for (const Pass& pass : stage.passes) {
        if (pass.kind == PassKind::kWeight) split[static_cast<std::size_t>(pass.chunk)][static_cast<std::size_t>(pass.micro_batch)] = true;
      }
    }
  }

  void make_scripts() {
    scripts_.resize(chunks_.size());
    buckets_.resize(chunks_.size());
    for (std::size_t stage = 0; stage < chunks_.size(); ++stage) {
      for (std::size_t chunk = 0; chunk < chunks_[stage].size(); ++chunk) {
        buckets_[stage].emplace_back();
        if (reduces_whole_gradients()) {
          buckets_[stage].back() =
              gradient_buckets(builder_, chunks_[stage][chunk], residents_of(stage, chunk), bucketed(), request_.framework);
        }
        scripts_[stage].push_back(chunk_scripts(stage, chunk));
      }
    }
  }

  // Where nothing overlaps there is nothing to gain from several buckets.
  ParallelLayout bucketed() const {
    ParallelLayout layout = parallel_;
    if (!*parallel_.overlap_gradient_reduce) layout.bucket = Bytes(0);
    return layout;
  }

  ChunkScripts chunk_scripts(std::size_t stage, std::size_t chunk) {
    const ChunkStamps& stamps = chunks_[stage][chunk];
    const std::span<const UnitResidents> residents = residents_of(stage, chunk);
    const std::optional<UnitSharding> sharding =
        unit_sharding(builder_, stamps, residents, parallel_, request_.framework, residents_.bytes, micro_batches_);
    ScriptOptions options{.defers_weight_gradients = false,
                          .defers_head = false,
                          .keeps_output = !*parallel_.deallocate_outputs,
                          .input_gather = input_gather(),
                          .sharding = sharding ? &*sharding : nullptr,
                          .buckets = {},
                          .updates = updates_in_backward(residents),
                          .reduces = *parallel_.reduce_every_micro_batch,
                          .offload = request_.placement.offload.schedule,
                          .graphs_scopes = cuda_graph() == CudaGraph::kScopes};
    ChunkScripts scripts;
    scripts.script_of.resize(static_cast<std::size_t>(micro_batches_));
    const auto add = [&](std::int32_t begin, std::int32_t end) {
      options.defers_weight_gradients = split_[stage][chunk][static_cast<std::size_t>(begin)];
      options.defers_head = stamps.head != nullptr && begin < deferred_head();
      const PlacementPolicy policy = chunk_policy(request_.placement, stamps.first_layer, stamps.layers, begin);
      const PlacementPlan plan = stamps.layers == 0 ? PlacementPlan{}
                                                    : make_plan(stack_.part(stamps.first_layer, stamps.layers), policy, request_.framework,
                                                                static_cast<std::int64_t>(stage));
      std::fill(scripts.script_of.begin() + begin, scripts.script_of.begin() + end, static_cast<std::int32_t>(scripts.scripts.size()));
      scripts.scripts.push_back(make_script(builder_, stamps, plan, residents, frame_.labels, options));
    };
    const bool reduces_last = reduces_whole_gradients() && *parallel_.overlap_gradient_reduce;
    const bool last_differs = reduces_last || (sharding && !options.reduces);
    const std::vector<std::int32_t> begins = script_begins(stage, chunk);
    const std::int32_t all = micro_batches_of(chunk).end;
    for (std::size_t range = 0; range < begins.size(); ++range) {
      const bool last = range + 1 == begins.size();
      const std::int32_t end = last ? all - last_differs : begins[range + 1];
      if (begins[range] < end) add(begins[range], end);
    }
    if (!last_differs) return scripts;
    if (reduces_last) options.buckets = buckets_[stage][chunk];
    options.reduces = true;
    add(all - 1, all);
    return scripts;
  }

  // By unit of a chunk; empty: the optimizer follows the passes.
  std::vector<std::vector<UpdateKernel>> updates_in_backward(std::span<const UnitResidents> residents) {
    std::vector<std::vector<UpdateKernel>> updates;
    if (!request_.training.optimizer_in_backward) return updates;
    const OptimizerContext context{request_.model, request_.training, parallel_, request_.framework, residents_};
    for (const UnitResidents& unit : residents) updates.push_back(update_kernels(builder_, context, unit));
    return updates;
  }

  // Schedules with weight passes have the head's among them.
  std::int32_t deferred_head() const {
    return goes_both_ways(parallel_.schedule) ? 0 : deferred_head_passes(request_.training, parallel_, micro_batches_);
  }

  MicroBatchRange micro_batches_of(std::size_t chunk) const {
    return stages_.placement().micro_batches(static_cast<std::int32_t>(chunk), micro_batches_);
  }

  // First micro-batches of ranges that are alike, of those that go through the chunk.
  std::vector<std::int32_t> script_begins(std::size_t stage, std::size_t chunk) const {
    const MicroBatchRange range = micro_batches_of(chunk);
    std::set<std::int64_t> begins{range.begin, deferred_head()};
    for (const PlacementRow& row : request_.placement.rows) {
      begins.insert(row.first_micro_batch);
      if (row.last_micro_batch >= 0) begins.insert(row.last_micro_batch + 1);
    }
    const std::vector<bool>& split = split_[stage][chunk];
    for (auto i = static_cast<std::size_t>(range.begin) + 1; i < static_cast<std::size_t>(range.end); ++i) {
      if (split[i] != split[i - 1]) begins.insert(static_cast<std::int64_t>(i));
    }
    std::vector<std::int32_t> inside;
    for (const std::int64_t begin : begins) {
      if (begin >= range.begin && begin < range.end) inside.push_back(static_cast<std::int32_t>(begin));
    }
    return inside;
  }

  // Without sequence parallelism every tensor-parallel rank holds the whole activations: each sends its part.
  std::optional<Collective> input_gather() const {
    const bool parts = request_.framework.scatters_pipeline_messages && parallel_.pipeline > 1 && parallel_.tensor > 1;
    // What stays on a stage is whole: messages between the others are then whole too.
    if (!parts || parallel_.sequence_parallel || parallel_.schedule == PipelineKind::kZbV) return std::nullopt;
    return Collective{.kind = CollectiveKind::kAllGather, .message = {}, .ranks = parallel_.tensor};
  }

  void reserve() {
    std::size_t ops = 0, storages = 0, units = 0;
    for (const std::vector<ChunkScripts>& chunks : scripts_) {
      for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
        constexpr std::size_t kTransferOps = 4;  // two transfers and what frees what they sent
        const MicroBatchRange range = micro_batches_of(chunk);
        const MicroBatchScript& script = chunks[chunk].of(range.begin);
        ops += static_cast<std::size_t>(range.end - range.begin) * (script.ops.size() + kTransferOps);
        storages += static_cast<std::size_t>(range.end - range.begin) * script.storages.size();
      }
    }
    for (const std::vector<UnitResidents>& stage : residents_.stages) units += stage.size();
    builder_.reserve(ops + 3 * units + 8 * chunks_.size(), storages + 7 * units);
  }

  // Weights that the last step updated are gathered beside this one's first forward passes.
  void gather_weights_first(const OptimizerContext& context, StepStamper& stamper) {
    if (!has_replicas(parallel_) || parallel_.zero == 0 || parallel_.zero == 3 || !*parallel_.overlap_weight_gather) return;
    for (std::size_t stage = 0; stage < chunks_.size(); ++stage) {
      for (std::size_t chunk = 0; chunk < chunks_[stage].size(); ++chunk) {
        std::vector<OpId> gathers;
        for (const UnitResidents& unit : residents_of(stage, chunk)) {
          gathers.push_back(add_weight_gather(builder_, frame_, stage, context, unit, Phase::kForward, {}));
        }
        stamper.units_wait(static_cast<std::int32_t>(stage), static_cast<std::int32_t>(chunk), std::move(gathers));
      }
    }
  }

  // The part of a unit's gradients that belongs to the token table; none if it has no table of its own.
  Tensor table_gradient(const TemplateStamp& stamp, const UnitResidents& residents) const {
    for (std::size_t slot = 0; slot < stamp.source->slots.size(); ++slot) {
      const StampOperand& operand = stamp.roots[slot];
      const bool gradient = operand.place == OperandPlace::kWeightGradients && operand.size.value > 0;
      if (!gradient || stamp.source->slots[slot].name.find(kWordEmbedding) == std::string::npos) continue;
      return {residents.gradients, operand.offset, operand.size};
    }
    return {};
  }

  std::int64_t expert_layers(const std::vector<ChunkStamps>& chunks) const {
    std::int64_t count = 0;
    for (const ChunkStamps& chunk : chunks) {
      for (std::int64_t layer = chunk.first_layer; layer < chunk.first_layer + chunk.layers; ++layer) {
        count += chunk.layer(layer).source->expert_parameters > 0;
      }
    }
    return count;
  }

  std::vector<StageTail> tails(const StepStamper& stamper) const {
    std::vector<StageTail> tails;
    for (std::size_t stage = 0; stage < chunks_.size(); ++stage) {
      const auto index = static_cast<std::int32_t>(stage);
      StageTail& tail = tails.emplace_back();
      tail.layers = stages_.layers_of(index);
      tail.expert_layers = expert_layers(chunks_[stage]);
      tail.last_compute = stamper.last_op(index, PassStream::kCompute);
      tail.last_reduce = stamper.last_op(index, PassStream::kReduce);
      for (std::size_t chunk = 0; chunk < chunks_[stage].size(); ++chunk) {
        const ChunkStamps& stamps = chunks_[stage][chunk];
        const std::span<const UnitResidents> residents = residents_of(stage, chunk);
        tail.head = tail.head || stamps.head != nullptr;
        if (!*parallel_.overlap_gradient_reduce) {
          for (const GradientBucket& bucket : buckets_[stage][chunk]) tail.unreduced.push_back(bucket);
        }
        if (!request_.model.tied_head || parallel_.pipeline == 1) continue;
        if (stamps.embedding != nullptr) tail.table_gradient = table_gradient(embedding_, residents.front());
        if (stamps.head != nullptr) tail.table_gradient = table_gradient(head_, residents.back());
      }
    }
    return tails;
  }

  // In the order of the model; of a part that two stages hold, chunk 0 first.
  void list_saved(const StepStamper& stamper, BuiltStep& built) const {
    std::vector<std::pair<std::int32_t, ChunkPlace>> places;
    for (std::int32_t chunk = 0; chunk < stages_.chunks; ++chunk) {
      for (std::int32_t stage = 0; stage < stages_.stages; ++stage) {
        places.push_back({stages_.placement().part({stage, chunk}), {stage, chunk}});
      }
    }
    std::stable_sort(places.begin(), places.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [part, place] : places) {
      const auto s = static_cast<std::size_t>(place.stage), c = static_cast<std::size_t>(place.chunk);
      const MicroBatchScript& script = scripts_[s][c].of(micro_batches_of(c).begin);
      const StorageId first = stamper.first_storage(place.stage, place.chunk);
      for (SavedTensor& saved : saved_tensors(chunks_[s][c], place.stage, request_.model.layers, script, first)) {
        for (StorageId& storage : saved.storages) {
          const StorageId handed = stamper.handed_storage(place.stage, place.chunk, storage.index - first.index);
          if (handed.valid()) storage = handed;
        }
        built.saved.push_back(std::move(saved));
      }
    }
  }

  const StepRequest& request_;
  const ParallelLayout parallel_;  // with_all_holders()
  const StepTemplates& templates_;
  LayerStack stack_;
  std::int32_t micro_batches_;
  StageLayout stages_;
  OpGraphBuilder builder_;
  StepFrame frame_;
  NamedTensors named_;
  TemplateStamp embedding_, head_;
  std::vector<TemplateStamp> kinds_;              // of layers
  std::vector<std::vector<ChunkStamps>> chunks_;  // by stage, chunk; so are the next three
  ResidentStorages residents_;
  std::vector<std::vector<std::vector<GradientBucket>>> buckets_;
  std::vector<std::vector<std::vector<bool>>> split_;  // by stage, chunk, micro-batch: the backward pass has a weight pass
  std::vector<std::vector<ChunkScripts>> scripts_;
};

}  // namespace

StepTemplates step_templates(const TemplateContext& context) {
  StepTemplates templates{.embedding = embedding_layer(context), .kinds = {}, .kind_of = {}, .head = head_layer(context)};
  const std::vector<LayerKind> kinds = context.model.kinds();
  for (const LayerKind& kind : kinds) templates.kinds.push_back(transformer_layer(context, kind));
  const std::int64_t layers = context.model.layers;
  if (kinds.size() == 1) return templates;
  if (layers > kMostGraphOps) check_graph_size({layers, 0}, layers, {}, 1);  // refuses: a layer has an op at least
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const auto kind = std::find(kinds.begin(), kinds.end(), context.model.kind(layer));
    STEPSIM_CHECK(kind != kinds.end());
    templates.kind_of.push_back(static_cast<std::int32_t>(kind - kinds.begin()));
  }
  return templates;
}

LayerStack layer_stack(const StepTemplates& templates, std::int64_t layers) {
  STEPSIM_CHECK(!templates.kinds.empty());
  if (templates.kind_of.empty()) return LayerStack(templates.kinds.front(), layers);
  STEPSIM_CHECK(static_cast<std::int64_t>(templates.kind_of.size()) == layers);
  return LayerStack(templates.kinds, templates.kind_of);
}

// Where a chunk runs more micro-batches than there are stages before the next one's turn, its stage runs ahead of what the next stage
// takes: an exchange that both leave together would block.
static void check_micro_batch_group(const ParallelLayout& parallel) {
  if (parallel.micro_batch_group <= parallel.pipeline || *parallel.point_to_point == PointToPoint::kOverlapped) return;
  throw InputError({"--p2p"}, "found " + std::string(point_to_point_name(*parallel.point_to_point)) + " with groups of " +
                                  std::to_string(parallel.micro_batch_group) + " micro-batches, wanted overlapped");
}

// A pass that makes no input gradient sends none.
void check_trained_layers(const LayerStack& stack, const ParallelLayout& parallel) {
  if (parallel.pipeline == 1) return;
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
    if (stack.kind(kind).input_gradient != kNoSlot || stack.layers_of_kinds()[static_cast<std::size_t>(kind)] == 0) continue;
    const bool first_alone = stack.kind_of(0) == kind && stack.layers_of_kinds()[static_cast<std::size_t>(kind)] == 1;
    if (first_alone) continue;
    throw InputError({"--trainable"},
                     fmt::format("found layers that no gradient passes with --pp {}, wanted --pp 1: a pipeline whose first "
                                 "stages have no backward pass is not built",
                                 parallel.pipeline));
  }
}

BuiltStep build_step(const StepRequest& given, const StepTemplates& templates) {
  StepRequest request = given;
  request.parallel = with_preset(given.parallel, given.training, given.framework);
  request.training = with_gradient_dtype(given.training, request.parallel, given.framework);
  const std::int64_t layers = request.model.layers, together = request.training.micro_batch * request.parallel.data;
  STEPSIM_CHECK(layers >= 1);
  STEPSIM_CHECK(together >= 1);
  STEPSIM_CHECK(request.training.global_batch % together == 0);
  const std::int64_t micro_batches = request.training.global_batch / together;
  check_pipeline(request, micro_batches);
  const std::int32_t chunks = chunks_of_stage(request.parallel.schedule, request.parallel.virtual_stages);
  const ChunkPlacement placement{request.parallel.schedule, request.parallel.pipeline, chunks};
  const PipelineShape shape{request.parallel.pipeline, chunks / placement.copies()};
  const LayerStack stack = layer_stack(templates, layers);
  const GraphSize pipeline = pipeline_size(stack, shape, micro_batches);
  check_graph_size(least_graph_size(stack, micro_batches) + pipeline, layers, shape, micro_batches);
  check_shared(stack, request.parallel);
  check_trained_layers(stack, request.parallel);
  check_optimizer_in_backward(request.training, request.parallel, micro_batches);
  BuiltStep built;
  built.stages = stage_layout(layers, request.parallel.pipeline, chunks, request.parallel.split, request.parallel.schedule);
  built.warnings = check_policy(request.placement, stack, request.training.attention);
  check_segments(request.placement, built.stages);
  check_reduce_dtype(request);
  check_deferred_head_passes(request.training, request.parallel);
  check_micro_batch_group(request.parallel);
  warn_of_missing_kernels(request.training, built.warnings);
  warn_of_exposed_exchanges(request.parallel, templates, built.warnings);
  check_micro_batches(request.placement, micro_batches);
  const PlacementPlan whole = make_plan(stack, chunk_policy(request.placement, 0, layers), request.framework);
  check_graph_size(graph_size(stack, whole, micro_batches) + pipeline, layers, shape, micro_batches);
  return StepWriter(request, templates, stack, micro_batches).write(std::move(built));
}

// Names of the linear layers that have LoRA's factors beside them.
static std::vector<std::string> linears_with_lora(const StepTemplates& templates) {
  std::vector<std::string> linears;
  const auto note = [&](const LayerTemplate& layer) {
    for (const Slot& slot : layer.slots) {
      const std::size_t mark = slot.name.find(kLoraDownWeight);
      if (slot.kind == SlotKind::kWeight && mark != std::string::npos) linears.push_back(slot.name.substr(0, mark));
    }
  };
  for (const LayerTemplate& kind : templates.kinds) note(kind);
  note(templates.head);
  return linears;
}

BuiltStep build_step(const StepRequest& request) {
  check_model(request.model);
  check_layout(request.model, request.training, request.parallel);
  StepRequest resolved = request;
  resolved.parallel = with_preset(request.parallel, request.training, request.framework);
  resolved.training = with_gradient_dtype(request.training, resolved.parallel, request.framework);
  const TemplateContext context{resolved.model, resolved.training, resolved.parallel, resolved.framework};
  StepTemplates templates = step_templates(context);
  check_lora_targets(resolved.training.trainable, linears_with_lora(templates));
  end_backward_at_first_layer(templates, resolved);
  return build_step(resolved, templates);
}

}  // namespace stepsim
