#include "tools/step_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "models/placement_plan.h"
#include "models/resident_storages.h"
#include "models/step_memory.h"
#include "sim/check.h"
#include "tools/latency_hiding.h"

namespace stepsim {

const ConventionFlops& StepRun::flops_of(FlopsConvention convention) const {
  const auto found = std::find_if(flops.begin(), flops.end(), [&](const ConventionFlops& row) { return row.convention == convention; });
  STEPSIM_CHECK(found != flops.end());
  return *found;
}

StepRequest step_request(const Job& job) {
  return {.model = job.model,
          .training = job.training,
          .parallel = job.parallel,
          .framework = job.framework,
          .placement = job.placement,
          .workspaces = {.blas_handle = job.gpu.blas_workspace, .engine = job.gpu.engine_workspace}};
}

std::vector<StorageId> first_born(const OpGraph& graph) {
  std::vector<StorageId> born;
  for (std::size_t i = 0; i < graph.storages().size(); ++i) {
    const Storage& storage = graph.storages()[i];
    const std::string_view name = graph.label(storage.name);
    const bool late = name == kOptimizerMoments || name == kAutogradWorkspace;
    if (storage.live_at_start && late) born.push_back({static_cast<std::int32_t>(i)});
  }
  return born;
}

static void fill_memory(const Job& job, StepRun& run) {
  const std::vector<Bytes> saved = peaks_of_roles(run.step.graph, run.run.result, run.step.saved_roles);
  const std::vector<Bytes>& born = run.run.born_peaks;
  for (std::size_t i = 0; i < saved.size(); ++i)
    run.stage_peaks.push_back({saved[i], born.empty() ? run.run.memory[i].peak.bytes : born[i]});
  run.reported_stage = run.run.worst_device;
  if (!job.reported_stage) return;
  run.reported_stage = static_cast<std::size_t>(*job.reported_stage);
  STEPSIM_CHECK(run.reported_stage < run.run.memory.size());
}

// What all chunks of all stages run again, for one micro-batch. Without rows, chunks of equal size and of one kind of layer run the
// same again.
static Rerun rerun_of(const Job& job, const StageLayout& stages) {
  const StepTemplates templates = step_templates({job.model, job.training, job.parallel, job.framework});
  const LayerStack stack = layer_stack(templates, job.model.layers);
  std::map<std::int64_t, Rerun> by_layers;
  Rerun sum;
  for (const ModelChunk& part : stages.parts) {
    if (part.layers == 0) continue;
    const auto [of_chunk, added] = by_layers.try_emplace(part.layers);
    if (added || !job.placement.rows.empty() || stack.kinds() > 1) {
      const PlacementPolicy policy = chunk_policy(job.placement, part.first_layer, part.layers);
      const LayerStack chunk = stack.part(part.first_layer, part.layers);
      of_chunk->second = rerun_of_plan(make_plan(chunk, policy, job.framework), chunk);
    }
    sum.layer_matrices += of_chunk->second.layer_matrices;
    sum.attention += of_chunk->second.attention;
  }
  return sum;
}

// Arithmetic of one micro-batch's products, forward and backward.
static double arithmetic_of(const Job& job, const TrainingRecipe& training) {
  const StepTemplates templates = step_templates({job.model, training, job.parallel, job.framework});
  const auto sum = [](const LayerTemplate& layer) {
    double flops = 0;
    for (const auto* ops : {&layer.forward, &layer.backward}) {
      for (const TemplateOp& op : *ops) flops += arithmetic(op.work).value;
    }
    return flops;
  };
  const LayerStack stack = layer_stack(templates, job.model.layers);
  const std::vector<std::int64_t> layers = stack.layers_of_kinds();
  double flops = sum(templates.embedding) + sum(templates.head);
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
    flops += sum(stack.kind(kind)) * static_cast<double>(layers[static_cast<std::size_t>(kind)]);
  }
  return flops;
}

// Conventions count a step that trains everything. Of one that does not, the share of products that it runs.
static double share_of_products(const Job& job) {
  if (job.training.trainable.trains_all()) return 1;
  TrainingRecipe all = job.training;
  all.trainable = {};
  return arithmetic_of(job, job.training) / arithmetic_of(job, all);
}

static std::vector<ConventionFlops> step_flops_of(const Job& job, const StepRun& run) {
  const double share = share_of_products(job);
  const Rerun rerun = rerun_of(job, run.step.stages);
  const std::int64_t vocab = padded_vocab(job.model.vocab, job.framework.vocab_multiple, job.parallel.tensor);
  const double available = run.step_time_s() * static_cast<double>(job.gpus) * run.peak_rate.value;  // FLOPs of all GPUs at peak
  std::vector<ConventionFlops> rows;
  for (const FlopsConvention convention : all_conventions()) {
    ConventionFlops row{convention, step_flops(convention, job.model, job.training, vocab, rerun)};
    row.flops = {Flops(row.flops.model.value * share), Flops(row.flops.hardware.value * share)};
    if (!run.run.stopped && available > 0) {
      row.mfu = row.flops.model.value / available;
      row.hfu = row.flops.hardware.value / available;
    }
    rows.push_back(row);
  }
  return rows;
}

GraphRun run_built(const Job& job, BuiltStep& step, const Machine& machine, const CostModel& costs, std::span<const StorageId> born) {
  const bool compiled = job.placement.offloads() && job.placement.offload.schedule.order != OffloadSchedule::Order::kProgram;
  if (compiled) step.graph = latency_hidden(std::move(step.graph), job.placement.offload.schedule, machine, costs);
  return run_graph(
      step.graph, machine, costs, step.phases,
      {.device = compiled ? LedgerRule::kScheduleOrder : LedgerRule::kIssueOrder, .stop_at_out_of_memory = job.stop_at_out_of_memory},
      born);
}

static bool nearly_full(const Job& job, const GraphRun& run) {
  const auto taken = static_cast<double>(process_memory(job).total().upper.value);
  return std::any_of(run.memory.begin(), run.memory.end(), [&](const DeviceMemory& device) {
    if (!device.capacity) return false;
    return static_cast<double>(device.peak.bytes.value) + taken > kNearlyFull * static_cast<double>(device.capacity->value);
  });
}

static void fill(const Job& job, AllocatorReplayed allocator, StepRun& run) {
  run.step = build_step(step_request(job));
  const Machine machine = make_machine(job.gpu, job.cluster, run.step.graph.device_count());
  run.modelled = std::make_unique<RooflineCostModel>(job.gpu, job.cluster, machine);
  run.costs = run.modelled.get();
  if (job.profile != nullptr) {
    GpuSpec alone = job.gpu;  // as the profile's kernels were measured: a stack slows them as it slows the model's
    alone.fit.sustained = {};
    run.profiled =
        std::make_unique<ProfileCostModel>(*run.modelled, *job.profile, std::make_unique<RooflineCostModel>(alone, job.cluster, machine));
    run.costs = run.profiled.get();
  }
  // The moments that the first step makes: the same ops at the same times, other claims.
  run.born = first_born(run.step.graph);
  run.run = run_built(job, run.step, machine, *run.costs, run.born);
  constexpr double kLongestStep = 9e6;  // s; the simulated clock ends at 9.2e6
  if (seconds(run.run.result.end) > kLongestStep) {
    throw InputError({"--hardware"}, "found a step of more than 104 days, wanted a smaller job or a machine that is not so slow");
  }
  STEPSIM_CHECK(!run.run.result.deadlock);  // the builder's graphs have no cycle and no rendezvous in two orders
  fill_memory(job, run);
  if (allocator == AllocatorReplayed::kAlways || nearly_full(job, run.run)) {
    run.allocation = step_memory(job, run.step.graph, run.run, run.born);
  } else {
    run.allocation.not_replayed = "the card is far from full";
  }
  run.peak_rate = peak(job.gpu, product_dtype(job.training.precision));
  run.flops = step_flops_of(job, run);
}

StepRun run_step(const Job& job, AllocatorReplayed allocator) {
  const auto begin = std::chrono::steady_clock::now();
  StepRun run;
  try {
    fill(job, allocator, run);
  } catch (const InputError& error) {
    throw at_source(job, error);
  }
  run.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return run;
}

std::int64_t first_rank(const ParallelLayout& parallel, std::int64_t stage) { return stage * (parallel.ranks() / parallel.pipeline); }

std::string layers_held(const StageLayout& stages, std::int32_t stage) {
  std::string text;
  for (std::int32_t chunk = 0; chunk < stages.chunks; ++chunk) {
    const ModelChunk& part = stages.chunk(stage, chunk);
    if (part.layers == 0) continue;
    const std::int64_t last = part.first_layer + part.layers - 1;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", part.first_layer);
    if (last > part.first_layer) text += fmt::format("-{}", last);
  }
  return text;
}

std::int64_t micro_batches_of(const Job& job) { return job.training.global_batch / (job.training.micro_batch * job.parallel.data); }

// What stays idle of a stage, over its work: idle / (factor m).
struct IdealBubble {
  const char* formula;
  std::int64_t idle, factor;
};

// GPipe, 1F1B: (p-1)/m; interleaved: (p-1)/(v m) (2104.04473 section 2.2); ZB-H1: (p-1)(F+B-W) / (m (F+B+W)) with F = B = W
// (2401.10241 section 2.3); ZB-V, with the same: p-1 passes of a chunk until the first micro-batch has come to the last stage (section 6);
// DualPipe: (p/2-1)(F&B+B-3W) (its README) with B = 2 F, F = W and a pair that takes F+B.
static IdealBubble ideal_bubble(const ParallelLayout& parallel) {
  const std::int64_t stages = parallel.pipeline, chunks = parallel.virtual_stages;
  switch (parallel.schedule) {
    case PipelineKind::kZbH1:
      return {"(p-1)/(3 m)", stages - 1, 3};
    case PipelineKind::kZbV:
      return {"(p-1)/(6 m)", stages - 1, 6};
    case PipelineKind::kDualPipe:
      return {"(p-2)/(3 m)", stages - 2, 3};
    case PipelineKind::kGPipe:
    case PipelineKind::k1F1B:
    case PipelineKind::kInterleaved:
      break;
  }
  return {chunks > 1 ? "(p-1)/(v m)" : "(p-1)/m", stages - 1, chunks};
}

std::optional<BubbleShare> bubble_share(const Job& job, const TimePartition& time) {
  const std::int64_t micro_batches = micro_batches_of(job);
  const double rest = seconds(time.total() - time.bubble);
  if (job.parallel.pipeline == 1 || rest <= 0) return std::nullopt;
  const auto [formula, idle, factor] = ideal_bubble(job.parallel);
  BubbleShare share{.measured = seconds(time.bubble) / rest,
                    .ideal = static_cast<double>(idle) / static_cast<double>(factor * micro_batches)};
  share.formula = factor > 1 ? fmt::format("{} = {}/({} x {})", formula, idle, factor, micro_batches)
                             : fmt::format("{} = {}/{}", formula, idle, micro_batches);
  return share;
}

ExposedCopies exposed_copies(const TimePartition& time, const PhaseMeaning& phases) {
  const auto wait = [&](std::int32_t index) {
    const auto i = static_cast<std::size_t>(index);
    return index >= 0 && i < time.exposed_copy.size() ? time.exposed_copy[i] : Duration{};
  };
  const auto of_phase = [&](Phase phase) {
    const auto i = static_cast<std::size_t>(phase);
    return i < phases.copy_wait_of_bucket.size() ? phases.copy_wait_of_bucket[i] : -1;
  };
  const std::int32_t forward = of_phase(Phase::kForward), backward = of_phase(Phase::kBackward);
  const ExposedCopies copies{wait(forward), wait(backward), wait(phases.tail)};
  Duration all{};
  for (const Duration part : time.exposed_copy) all += part;
  STEPSIM_CHECK(copies.forward + copies.backward + copies.tail == all);
  return copies;
}

std::vector<std::string> all_warnings(const Job& job, const StepRun& run) {
  std::vector<std::string> sentences = job.warnings;
  sentences.insert(sentences.end(), run.step.warnings.begin(), run.step.warnings.end());
  return sentences;
}

std::vector<std::string> not_modelled(const StepRun& run) {
  std::vector<std::string> sentences = run.step.not_modelled;
  const char* const unallocated = run.allocation.replayed() ? "memory of other processes, CUDA graphs and libraries' own pools"
                                                            : "allocator fragmentation, CUDA context and NCCL buffers";
  for (const char* const sentence : {unallocated, "clock and power throttling, jitter and stragglers"}) {
    if (std::find(sentences.begin(), sentences.end(), sentence) == sentences.end()) sentences.emplace_back(sentence);
  }
  return sentences;
}

}  // namespace stepsim
