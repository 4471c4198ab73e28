// How long a whole step takes in the library: build the graph, simulate it, and both.
#include <benchmark/benchmark.h>

#include "hardware/roofline_cost_model.h"
#include "models/step_builder.h"
#include "sim/simulate.h"
#include "tools/graph_run.h"

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

StepRequest megatron(const char* model, std::int32_t stages, std::int64_t micro_batches) {
  StepRequest request;
  request.model = load_model(model);
  request.framework = load_framework("megatron-lm@2022-05");
  request.training.sequence = 2048;
  request.training.global_batch = micro_batches;
  request.training.attention = AttentionKind::kUnfused;
  request.training.dropout = request.model.dropout;
  request.parallel.tensor = 8;
  request.parallel.sequence_parallel = true;
  request.parallel.pipeline = stages;
  request.parallel.virtual_stages = 3;
  request.parallel.schedule = PipelineKind::kInterleaved;
  request.placement.granularity = RecomputeGranularity::kSelective;
  return request;
}

StepRequest llama3_8b_fsdp() {
  StepRequest request = llama3_8b();
  request.parallel = {};
  request.parallel.data = 8;
  request.parallel.zero = 3;
  request.training.global_batch = 8;
  return request;
}

// Build, timeline, memory log and partition of the time, as a run does them.
void whole_step(benchmark::State& state, const StepRequest& request, const char* machine_name, const char* target) {
  const GpuSpec gpu = load_gpu(machine_name);
  const ClusterSpec cluster = usual_cluster(gpu);
  std::size_t ops = 0;
  for (auto _ : state) {
    const BuiltStep step = build_step(request);
    ops = step.graph.ops().size();
    const Machine machine = make_machine(gpu, cluster, step.graph.device_count());
    benchmark::DoNotOptimize(run_graph(step.graph, machine, RooflineCostModel(gpu, cluster, machine), step.phases, {}));
  }
  state.counters["ops"] = static_cast<double>(ops);
  state.SetLabel(target);
}

void whole_step_530b_on_280_gpus(benchmark::State& state) {
  whole_step(state, megatron("mt-nlg-530b", 35, 280), "a100-sxm-80gb", "at most 3 s; at least 1.2 million ops");
}
void whole_step_gpt3_175b_on_64_gpus(benchmark::State& state) {
  whole_step(state, megatron("gpt3-175b", 8, 64), "a100-sxm-80gb", "at most 0.3 s");
}
void whole_step_llama3_8b_fsdp_on_8_gpus(benchmark::State& state) { whole_step(state, llama3_8b_fsdp(), "h100-sxm-80gb", "under 10 ms"); }

BENCHMARK(build_llama3_8b)->Unit(benchmark::kMillisecond);
BENCHMARK(build_and_simulate_llama3_8b)->Unit(benchmark::kMillisecond);
BENCHMARK(whole_step_530b_on_280_gpus)->Unit(benchmark::kMillisecond);
BENCHMARK(whole_step_gpt3_175b_on_64_gpus)->Unit(benchmark::kMillisecond);
BENCHMARK(whole_step_llama3_8b_fsdp_on_8_gpus)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stepsim

BENCHMARK_MAIN();
