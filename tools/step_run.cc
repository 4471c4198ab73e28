#include "tools/step_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "models/placement_plan.h"
#include "sim/check.h"

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
          .library_workspace = job.gpu.library_workspace};
}

// Peak of the step in which the optimizer states are born.
static Bytes first_iteration_peak(const Job& job, const RooflineCostModel& costs, const Machine& machine) {
  StepRequest request = step_request(job);
  request.training.iteration = IterationKind::kFirst;
  const BuiltStep step = build_step(request);
  return run_graph(step.graph, machine, costs, step.phases, {}).worst().peak.bytes;
}

static std::vector<ConventionFlops> step_flops_of(const Job& job, const StepRun& run) {
  const LayerTemplate layer = transformer_layer({job.model, job.training, job.parallel, job.framework});
  const Rerun rerun = rerun_of_plan(make_plan(layer, job.model.layers, job.placement, job.framework), layer, job.model.layers);
  const std::int64_t vocab = padded_vocab(job.model.vocab, job.framework.vocab_multiple, job.parallel.tensor);
  const double available = run.step_time_s() * static_cast<double>(job.gpus) * run.peak_rate.value;  // FLOPs of all GPUs at peak
  std::vector<ConventionFlops> rows;
  for (const FlopsConvention convention : all_conventions()) {
    ConventionFlops row{convention, step_flops(convention, job.model, job.training, vocab, rerun)};
    if (!run.run.stopped && available > 0) {
      row.mfu = row.flops.model.value / available;
      row.hfu = row.flops.hardware.value / available;
    }
    rows.push_back(row);
  }
  return rows;
}

static void fill(const Job& job, StepRun& run) {
  run.step = build_step(step_request(job));
  const OpGraph& graph = run.step.graph;
  const Machine machine = make_machine(job.gpu, job.cluster, graph.device_count());
  run.costs = std::make_unique<RooflineCostModel>(job.gpu, job.cluster, machine);
  run.run = run_graph(graph, machine, *run.costs, run.step.phases, {.stop_at_out_of_memory = job.stop_at_out_of_memory});
  STEPSIM_CHECK(!run.run.result.deadlock);  // the builder's graphs have no cycle and no rendezvous in two orders
  const DeviceMemory& worst = run.run.worst();
  run.saved_activations_peak = peak_of_roles(graph, run.run.result, worst.device, run.step.saved_roles);
  const bool first = job.training.iteration == IterationKind::kFirst;
  run.first_iteration_peak = first ? worst.peak.bytes : first_iteration_peak(job, *run.costs, machine);
  run.peak_rate = peak(job.gpu, product_dtype(job.training.precision));
  run.flops = step_flops_of(job, run);
}

StepRun run_step(const Job& job) {
  const auto begin = std::chrono::steady_clock::now();
  StepRun run;
  try {
    fill(job, run);
  } catch (const InputError& error) {
    throw at_source(job, error);
  }
  run.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return run;
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

std::vector<std::string> not_modelled(const StepRun& run) {
  std::vector<std::string> sentences = run.step.not_modelled;
  for (const char* const sentence :
       {"allocator fragmentation, CUDA context and NCCL buffers", "clock and power throttling, jitter and stragglers"}) {
    if (std::find(sentences.begin(), sentences.end(), sentence) == sentences.end()) sentences.emplace_back(sentence);
  }
  return sentences;
}

}  // namespace stepsim
