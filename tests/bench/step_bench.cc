// How long a whole step takes in the library: build the graph, simulate it, and both.
#include <benchmark/benchmark.h>

#include "hardware/roofline_cost_model.h"
#include "models/step_builder.h"
#include "sim/simulate.h"

namespace stepsim {
namespace {

StepRequest llama3_8b() {
  StepRequest request;
  request.model = load_model("llama3-8b");
  request.framework = load_framework("megatron-core@2025");
  request.training.sequence = 8192;
  request.parallel.tensor = 8;
  request.parallel.sequence_parallel = true;
  request.placement.granularity = RecomputeGranularity::kFull;
  return request;
}

void build_llama3_8b(benchmark::State& state) {
  const StepRequest request = llama3_8b();
  for (auto _ : state) benchmark::DoNotOptimize(build_step(request));
}

void build_and_simulate_llama3_8b(benchmark::State& state) {
  const StepRequest request = llama3_8b();
  const GpuSpec gpu = load_gpu("h100-sxm-80gb");
  const ClusterSpec cluster = usual_cluster(gpu);
  for (auto _ : state) {
    const BuiltStep step = build_step(request);
    const Machine machine = make_machine(gpu, cluster, step.graph.device_count());
    benchmark::DoNotOptimize(simulate(step.graph, machine, RooflineCostModel(gpu, cluster, machine)));
  }
  state.SetLabel("under 5 ms");
}

BENCHMARK(build_llama3_8b)->Unit(benchmark::kMillisecond);
BENCHMARK(build_and_simulate_llama3_8b)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stepsim

BENCHMARK_MAIN();
