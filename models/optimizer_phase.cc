#include "models/optimizer_phase.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "models/host_update.h"
#include "models/low_precision.h"
#include "models/stage_writer.h"
#include "models/trainable.h"
#include "sim/input_error.h"

namespace stepsim {

namespace {

class PhaseWriter {
 public:
  PhaseWriter(OpGraphBuilder& builder, const StepFrame& frame, const OptimizerContext& context, std::span<const StageTail> tails)
      : builder_(builder), frame_(frame), context_(context), bytes_(context.residents.bytes), tails_(tails) {
    for (std::size_t stage = 0; stage < tails.size(); ++stage) {
      stages_.emplace_back(builder, frame, stage, tails[stage].last_compute, tails[stage].last_reduce);
      Operands& gradients = gradients_.emplace_back();
      Operands& own = own_.emplace_back();
      Operands& copies = copies_.emplace_back();
      for (const UnitResidents& unit : units(stage)) {
        const std::int64_t whole = context.residents.gradient_share(unit), mine = context.residents.optimizer_share(unit);
        gradients.add(unit.gradients, Bytes(whole * bytes_.gradient));
        own.add(unit.gradients, Bytes(mine * bytes_.gradient));
        copies.add(unit.gradient_copy, Bytes(mine * bytes_.gradient_copy));
      }
    }
  }

  void write() {
    if (context_.training.optimizer_in_backward) return;
    if (std::all_of(gradients_.begin(), gradients_.end(), [](const Operands& each) { return each.tensors.empty(); })) return;
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) sums_within_stage(stage);
    tied_table();
    if (context_.training.optimizer == OptimizerKind::kNone) {
      for (std::size_t stage = 0; stage < stages_.size(); ++stage) let_go(stage);
      return;
    }
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) norm_kernels(stage);
    norm_all_reduce();
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) update(stage);
  }

 private:
  const std::vector<UnitResidents>& units(std::size_t stage) const { return context_.residents.stages[stage]; }
  const Operands& normed(std::size_t stage) const { return bytes_.gradient_copy > 0 ? copies_[stage] : own_[stage]; }
  bool no_gradients(std::size_t stage) const { return gradients_[stage].tensors.empty(); }

  void all_reduce(std::size_t stage, const char* name, Bytes message, std::int32_t ranks, const Operands& operands) {
    const Collective work{.kind = CollectiveKind::kAllReduce, .message = message, .ranks = ranks};
    stages_[stage].collective(builder_.label(name, static_cast<std::int32_t>(Group::kTensor)), builder_.work(work), PassStream::kTensor,
                              {.reads = operands.tensors, .writes = operands.tensors});
  }

  void sums_within_stage(std::size_t stage) {
    const StageTail& tail = tails_[stage];
    const ParallelLayout& parallel = context_.parallel;
    for (const GradientBucket& bucket : tail.unreduced) {
      const OpLinks links{.reads = bucket.gradients, .writes = bucket.gradients};
      if (bucket.copy.valid()) stages_[stage].kernel(bucket.copy_in, bucket.copy, -1, links);
      stages_[stage].collective(bucket.kind, bucket.work, PassStream::kReduce, links);
      if (bucket.over_instances.valid()) {
        stages_[stage].collective(bucket.over_instances_kind, bucket.over_instances, PassStream::kReduce, links);
      }
      if (bucket.copy.valid()) stages_[stage].kernel(bucket.copy_out, bucket.copy, -1, links);
    }
    if (no_gradients(stage)) return;
    const std::string layer = "layer";
    const TrainableMask& mask = context_.training.trainable;
    if (parallel.tensor > 1 && parallel.sequence_parallel && is_trained(mask, layer, "norm 1 weight")) {
      const std::int64_t parameters =
          sequence_parallel_parameters(context_.model, tail.layers, tail.head) + router_parameters(context_.model, tail.expert_layers);
      if (parameters > 0) {
        all_reduce(stage, "norm gradient all-reduce", Bytes(parameters * bytes_.gradient), parallel.tensor, gradients_[stage]);
      }
    }
    const std::int64_t replicated = replicated_kv_parameters(context_.model, parallel, tail.layers);
    if (replicated > 0 && is_trained(mask, layer, "qkv weight")) {
      const auto ranks = static_cast<std::int32_t>(parallel.tensor / context_.model.kv_heads);
      all_reduce(stage, "key and value gradient all-reduce", Bytes(replicated * bytes_.gradient), ranks, gradients_[stage]);
    }
  }

  // Ops with a part on each of several stages, launched by the first one's host.
  void across(const char* name, const Collective& work, const std::vector<std::size_t>& members, std::span<const Tensor> operands) {
    std::vector<Edge> edges;
    std::vector<OpPart> parts;
    for (const std::size_t member : members) {
      const StreamId stream = stages_[member].frame().model_parallel;
      for (const Edge& edge : stages_[member].waits(stream)) edges.push_back(edge);
      if (member != members.front()) parts.push_back({stream, {}});
    }
    const StageFrame& first = stages_[members.front()].frame();
    const OpId op = builder_.add_op({.work = builder_.work(work),
                                     .stream = first.model_parallel,
                                     .phase = frame_.labels.phase(Phase::kOptimizer),
                                     .kind = builder_.label(name, static_cast<std::int32_t>(Group::kPipeline)),
                                     .issuer = first.issuer},
                                    {.predecessors = edges, .reads = operands, .writes = operands}, parts);
    for (const std::size_t member : members) stages_[member].joined(op, stages_[member].frame().model_parallel);
  }

  // Megatron-LM: the first and the last stage each hold the table, and sum its gradient once a step.
  void tied_table() {
    std::vector<std::size_t> holders;
    std::vector<Tensor> tables;
    for (std::size_t stage = 0; stage < tails_.size(); ++stage) {
      if (!tails_[stage].table_gradient.storage.valid()) continue;
      holders.push_back(stage);
      tables.push_back(tails_[stage].table_gradient);
    }
    if (holders.size() < 2) return;
    const auto apart = static_cast<std::int32_t>(holders.back() - holders.front()) * stage_ranks();
    across("embedding gradient all-reduce",
           {.kind = CollectiveKind::kAllReduce,
            .message = tables.front().size,
            .ranks = static_cast<std::int32_t>(holders.size()),
            .stride = apart},
           holders, tables);
  }

  std::int32_t stage_ranks() const {
    return static_cast<std::int32_t>(std::int64_t{context_.parallel.tensor} * context_.parallel.replicas());
  }

  void norm_kernels(std::size_t stage) {
    if (no_gradients(stage)) return;
    StageWriter& writer = stages_[stage];
    const Operands &own = own_[stage], &copies = copies_[stage];
    if (bytes_.gradient_copy > 0) {
      writer.kernel("fp32 gradients", {.read = own.size, .written = copies.size}, -1, {.reads = own.tensors, .writes = copies.tensors});
    }
    const Operands& gradients = normed(stage);
    if (context_.training.precision == Precision::kFp16) {  // divides by the loss scale and looks for infinities
      writer.kernel("gradient unscale", {.read = gradients.size, .written = gradients.size}, -1,
                    {.reads = gradients.tensors, .writes = gradients.tensors});
    }
    writer.kernel("gradient norm", {.read = gradients.size}, -1, {.reads = gradients.tensors});
  }

  // One fp32 number over all ranks that hold different gradients. The host reads it before it goes on.
  void norm_all_reduce() {
    const ParallelLayout& parallel = context_.parallel;
    const std::int64_t shards = parallel.zero >= 1 ? parallel.sharding_ranks() : 1;
    const std::int64_t expert_shards = parallel.zero >= 1 ? expert_sharding_ranks(parallel) : 1;
    const std::int64_t experts = std::int64_t{parallel.expert} * parallel.expert_tensor_ranks() * expert_shards;
    const std::int64_t ranks = std::max(std::int64_t{parallel.tensor} * shards, experts) * parallel.pipeline;
    const Collective work{.kind = CollectiveKind::kAllReduce, .message = Bytes(4), .ranks = static_cast<std::int32_t>(ranks)};
    if (parallel.pipeline > 1) {
      std::vector<std::size_t> all(stages_.size());
      for (std::size_t stage = 0; stage < all.size(); ++stage) all[stage] = stage;
      across("gradient norm all-reduce", work, all, {});
    } else if (ranks > 1) {
      const bool tensor = parallel.tensor > 1;
      stages_.front().collective(
          builder_.label("gradient norm all-reduce", static_cast<std::int32_t>(tensor ? Group::kTensor : Group::kData)),
          builder_.work(work), tensor ? PassStream::kTensor : PassStream::kReduce, {});
    }
    if (!context_.framework.reads_gradient_norm) return;
    for (StageWriter& stage : stages_) stage.host_reads();
  }

  // Gradients live until the next step clears them, which costs nothing where they are given back to the allocator.
  void let_go(std::size_t stage) {
    if (no_gradients(stage) || context_.framework.gradients_always_allocated) return;
    const std::vector<StorageId> held = gradients_[stage].storages();
    stages_[stage].marker("gradients let go", {.holds = held});
  }

  void update(std::size_t stage) {
    if (no_gradients(stage)) return;
    StageWriter& writer = stages_[stage];
    const bool kept = context_.framework.gradients_always_allocated;
    const Operands& gradients = normed(stage);
    if (context_.framework.always_clips) {
      writer.kernel("gradient clip", {.read = gradients.size, .written = gradients.size}, -1,
                    {.reads = gradients.tensors, .writes = gradients.tensors});
    }
    // Gradients outlive the update where the framework clears them together afterwards.
    std::vector<StorageId> held = gradients_[stage].storages();
    const std::vector<StorageId> copied = copies_[stage].storages();
    held.insert(held.end(), copied.begin(), copied.end());
    HostUpdate host(writer, context_, units(stage));
    if (host.present()) host.copy_out();
    std::size_t last = units(stage).size() - 1;
    while (units(stage)[last].parameters == 0) --last;
    for (std::size_t unit = 0; unit <= last; ++unit) {
      if (units(stage)[unit].parameters == 0) continue;
      const bool frees = unit == last && !kept && !host.present();
      update_unit(writer, units(stage)[unit], frees ? std::span<const StorageId>(held) : std::span<const StorageId>());
    }
    if (host.present()) {
      host.update_and_copy_in();
      host.join(kept ? std::span<const StorageId>() : std::span<const StorageId>(held));
    }
    gather_weights(stage);
    cast_weights(stage);
    if (!kept) return;
    writer.kernel("gradient clear", {.written = gradients_[stage].size}, -1, {.writes = gradients_[stage].tensors, .holds = copied});
  }

  void update_unit(StageWriter& writer, const UnitResidents& unit, std::span<const StorageId> holds) {
    const std::int32_t layer = builder_.storage(unit.weights.valid() ? unit.weights : unit.master).layer;
    for (const UpdateKernel& kernel : update_kernels(builder_, context_, unit)) {
      if (kernel.host_reads) writer.host_reads();
      writer.kernel(kernel.kind, kernel.work, layer, {.reads = kernel.reads, .writes = kernel.writes, .holds = std::exchange(holds, {})});
    }
  }

  // Once a step. The framework does it in the first micro-batch's forward pass, layer by layer, which a pipeline's stages do one after
  // another; here it ends the step.
  void cast_weights(std::size_t stage) {
    StageWriter& writer = stages_[stage];
    for (const UnitResidents& unit : units(stage)) {
      if (!unit.low_copies.valid()) continue;
      const Storage copies = builder_.storage(unit.low_copies);
      const CastBytes bytes = weight_cast_bytes(context_.training, copies.size);
      Operands reads, writes;
      if (unit.weights.valid()) reads.add(unit.weights, builder_.storage(unit.weights).size);
      writes.add(unit.low_copies, copies.size);
      writer.kernel("weight cast", {.read = bytes.read, .written = bytes.written, .kernel = MemoryKernel::kQuantize}, copies.layer,
                    {.reads = reads.tensors, .writes = writes.tensors});
    }
  }

  void gather_weights(std::size_t stage) {
    const ParallelLayout& parallel = context_.parallel;
    if (!has_replicas(parallel) || parallel.zero == 0 || parallel.zero == 3 || *parallel.overlap_weight_gather) return;
    StageWriter& writer = stages_[stage];
    if (context_.framework.broadcasts_weights) return broadcast_weights(stage);
    const StreamId gathers = writer.frame().stream(PassStream::kGather);
    for (const UnitResidents& unit : units(stage)) {
      const OpId op = add_weight_gather(builder_, frame_, stage, context_, unit, Phase::kOptimizer, writer.last());
      if (op.valid()) writer.joined(op, gathers);
    }
  }

  // Each rank's tensors, joined, from it to all; one behind another. A tensor is not split, so there are no more owners than tensors; they
  // are taken to own equally much. The host waits for the update (InternEvo hybrid_zero_optim.py _step, broadcast_params).
  void broadcast_weights(std::size_t stage) {
    const ReplicaGroup group = replica_group(context_.parallel, false);
    StageWriter& writer = stages_[stage];
    std::int64_t tensors = 0;
    Operands weights;
    for (const UnitResidents& unit : units(stage)) {
      if (unit.parameters == 0) continue;
      tensors += std::max<std::int64_t>(1, static_cast<std::int64_t>(unit.tensors.size()));
      weights.add(unit.weights, unit.kept);
    }
    const std::int64_t owners = std::min(group.shards, tensors);
    if (group.shards == 1 || owners == 0) return;
    const Collective work{.kind = CollectiveKind::kBroadcast,
                          .message = Bytes(ResidentStorages::share(weights.size.value, owners)),
                          .ranks = static_cast<std::int32_t>(group.shards),
                          .stride = static_cast<std::int32_t>(group.stride)};
    const LabelId kind = builder_.label("weight broadcast", static_cast<std::int32_t>(Group::kData));
    writer.host_reads();
    for (std::int64_t owner = 0; owner < owners; ++owner) {
      writer.collective(kind, builder_.work(work), PassStream::kGather, {.reads = weights.tensors, .writes = weights.tensors});
    }
  }

  OpGraphBuilder& builder_;
  const StepFrame& frame_;
  const OptimizerContext& context_;
  const ParameterBytes& bytes_;
  std::span<const StageTail> tails_;
  std::vector<StageWriter> stages_;
  std::vector<Operands> gradients_, own_, copies_;  // by stage: all gradients, those that this rank updates, their fp32 copies
};

}  // namespace

std::int64_t sequence_parallel_parameters(const ModelSpec& model, std::int64_t layers, bool head) {
  const bool two_vectors = model.normalization == Normalization::kLayerNorm && model.norm_bias;
  const std::int64_t norm = (two_vectors ? 2 : 1) * model.hidden;
  const std::int64_t head_norms = model.qk_norm ? 2 * model.head_dim : 0;
  const std::int64_t biases = model.linear_bias ? 2 * model.hidden : 0;  // of the attention projection and of the second MLP matrix
  const std::int64_t layer = (model.parallel_block ? 1 : 2) * norm + head_norms + biases;
  return layers * layer + (head ? norm : 0);
}

std::int64_t replicated_kv_parameters(const ModelSpec& model, const ParallelLayout& parallel, std::int64_t layers) {
  if (parallel.tensor <= model.kv_heads) return 0;
  const std::int64_t bias = model.linear_bias || model.qkv_bias ? 1 : 0;
  return layers * 2 * model.head_dim * (model.hidden + bias);
}

std::int64_t router_parameters(const ModelSpec& model, std::int64_t layers) {
  return layers * model.experts.experts * (model.hidden + (model.experts.router_bias ? 1 : 0));
}

void check_optimizer_in_backward(const TrainingRecipe& training, const ParallelLayout& parallel, std::int64_t micro_batches) {
  if (!training.optimizer_in_backward) return;
  const auto refuse = [](const std::string& found, const char* wanted) {
    throw InputError({"--set training.optimizer_in_backward"}, "found " + found + ", wanted " + wanted);
  };
  // torchtune recipes/full_finetune_single_device.py: not with gradient accumulation.
  if (micro_batches > 1) refuse(std::to_string(micro_batches) + " micro-batches", "1: gradients cannot accumulate");
  if (parallel.zero < 2 && has_replicas(parallel)) {
    refuse("--zero " + std::to_string(parallel.zero) + " with replicas", "2 or 3, which reduce each gradient as it is made");
  }
}

// One of a unit's weights or of its routed experts'.
static OpId add_gather(OpGraphBuilder& builder, const StepFrame& frame, std::size_t stage, const ReplicaGroup& group, const Tensor& weights,
                       const char* name, Phase phase, OpId after) {
  const StageFrame& where = frame.stages[stage];
  const Edge edge{after};
  const QueueId queue = where.queue(PassStream::kGather);
  OpLinks links{.reads = std::span(&weights, 1), .writes = std::span(&weights, 1), .queues = std::span(&queue, 1)};
  if (after.valid()) links.predecessors = std::span(&edge, 1);
  const Collective work{.kind = CollectiveKind::kAllGather,
                        .message = weights.size,
                        .ranks = static_cast<std::int32_t>(group.shards),
                        .stride = static_cast<std::int32_t>(group.stride)};
  return builder.add_op({.work = builder.work(work),
                         .stream = where.stream(PassStream::kGather),
                         .phase = frame.labels.phase(phase),
                         .kind = builder.label(name, static_cast<std::int32_t>(Group::kData)),
                         .layer = builder.storage(weights.storage).layer,
                         .issuer = where.issuer},
                        links);
}

OpId add_weight_gather(OpGraphBuilder& builder, const StepFrame& frame, std::size_t stage, const OptimizerContext& context,
                       const UnitResidents& unit, Phase phase, OpId after) {
  if (unit.parameters == 0 || context.training.optimizer == OptimizerKind::kNone) return {};
  const std::int64_t weight = context.residents.bytes.weight;
  const Bytes experts = std::min(Bytes(unit.expert_parameters * weight), unit.kept), others = unit.kept - experts;
  const ReplicaGroup group = replica_group(context.parallel, false), expert_group = replica_group(context.parallel, true);
  OpId last;
  if (others.value > 0 && group.ranks > 1) {
    last = add_gather(builder, frame, stage, group, {unit.weights, Bytes(0), others}, "weight all-gather", phase, after);
  }
  if (experts.value == 0 || expert_group.ranks == 1) return last;
  return add_gather(builder, frame, stage, expert_group, {unit.weights, others, experts}, "expert weight all-gather", phase,
                    last.valid() ? last : after);
}

void add_optimizer_phase(OpGraphBuilder& builder, const StepFrame& frame, const OptimizerContext& context,
                         std::span<const StageTail> tails) {
  PhaseWriter(builder, frame, context, tails).write();
}

}  // namespace stepsim
