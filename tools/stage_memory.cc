#include "tools/stage_memory.h"

#include <algorithm>

#include "hardware/roofline_cost_model.h"
#include "sim/allocator_replay.h"
#include "sim/check.h"
#include "sim/simulate.h"

namespace stepsim {

std::int64_t telling_micro_batches(const TrainingRecipe& training, const ParallelLayout& parallel) {
  const std::int64_t all = std::max<std::int64_t>(1, training.global_batch / (training.micro_batch * parallel.data));
  if (parallel.schedule == PipelineKind::kGPipe) return all;
  const std::int64_t group = parallel.micro_batch_group == 0 ? parallel.pipeline : parallel.micro_batch_group;
  if (goes_both_ways(parallel.schedule)) {  // fills the pipeline: zb_v_passes(); DualPipe runs no fewer
    const std::int64_t full = 2 * std::int64_t{parallel.pipeline};
    return std::min(all, full);
  }
  // 1F1B: p passes in flight on the first stage, one more is a steady one. Interleaved: whole groups, and the warm-up is less than two of
  // each chunk. The head's gradients that wait add up over as many micro-batches as may wait.
  const std::int64_t enough = parallel.schedule == PipelineKind::kInterleaved ? 2 * group : parallel.pipeline + 1;
  const std::int64_t waiting = training.deferred_head_gradients > 0 ? training.deferred_head_gradients + 1 : 0;
  const std::int64_t wanted = std::min(all, std::max(enough, waiting));
  return parallel.schedule == PipelineKind::kInterleaved ? (wanted + group - 1) / group * group : wanted;
}

namespace {

// The last of `steps` equal steps on one cache.
StepAllocation allocation(const StepRequest& request, const GpuSpec& gpu, const ClusterSpec& cluster, const AllocatorSettings& allocator,
                          std::int32_t stage, std::int32_t steps) {
  const BuiltStep built = build_step(request);
  Machine machine = make_machine(gpu, cluster, built.graph.device_count());
  std::fill(machine.device_capacity.begin(), machine.device_capacity.end(), std::nullopt);  // peaks beyond the card are peaks too
  const RooflineCostModel costs(gpu, cluster, machine);
  const StepResult result = simulate(built.graph, machine, costs);
  STEPSIM_CHECK(!result.deadlock);
  const std::vector<DeviceAllocation> devices =
      replayed_allocator(built.graph, result, {.settings = allocator, .limits = {}, .steps = steps, .born = {}, .observer = {}});
  return devices.at(static_cast<std::size_t>(stage)).steps.back();
}

}  // namespace

StageMemory stage_memory(StepRequest request, const GpuSpec& gpu, const ClusterSpec& cluster, const AllocatorSettings& allocator,
                         std::int32_t stage) {
  const std::int64_t micro_batches = telling_micro_batches(request.training, request.parallel);
  request.training.global_batch = micro_batches * request.training.micro_batch * request.parallel.data;
  request.training.iteration = IterationKind::kFirst;
  const StepAllocation first = allocation(request, gpu, cluster, allocator, stage, 1);
  request.training.iteration = IterationKind::kSteady;
  const StepAllocation later = allocation(request, gpu, cluster, allocator, stage, 2);
  return {.first_peak = first.allocated_peak,
          .later_peak = std::max(first.allocated_peak, later.allocated_peak),
          .between_steps = later.at_end.allocated};
}

}  // namespace stepsim
