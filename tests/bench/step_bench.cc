// How long a whole step takes in the library: build the graph, simulate it, and both.
#include <benchmark/benchmark.h>

#include <string>

#include "hardware/roofline_cost_model.h"
#include "models/step_builder.h"
#include "sim/simulate.h"
#include "tools/step_run.h"

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

// 2205.05198 Tables 3 and 5, as examples/gpt3-175b.textproto and examples/mt-nlg-530b.textproto have them.
JobInput megatron(const char* model, const char* stages, const char* micro_batches) {
  return {"",
          {parse_set(std::string("model.name=") + model), parse_set("hardware.name=a100-sxm-80gb"), parse_set("training.micro_batch=1"),
           parse_set(std::string("training.global_batch=") + micro_batches), parse_set("training.attention=unfused"),
           parse_set("parallel.tp=8"), parse_set("parallel.sequence_parallel=true"), parse_set(std::string("parallel.pp=") + stages),
           parse_set("parallel.virtual_stages=3"), parse_set("placement.recompute=selective")}};
}

// examples/llama3-8b-fsdp.textproto
JobInput llama3_8b_fsdp() {
  return {"",
          {parse_set("model.name=llama3-8b"), parse_set("hardware.name=h100-sxm-80gb"), parse_set("hardware.gpus=8"),
           parse_set("training.sequence=8192"), parse_set("training.micro_batch=1"), parse_set("parallel.zero=3"),
           parse_set("framework.name=torchtitan@2024-12")}};
}

// 126 layers, 64 micro-batches.
JobInput llama3_405b(bool offloads) {
  JobInput input{"",
                 {parse_set("model.name=llama3-405b"), parse_set("hardware.name=gb200"), parse_set("parallel.tp=8"),
                  parse_set("parallel.sequence_parallel=true"), parse_set("training.sequence=4096"), parse_set("training.global_batch=64")}};
  if (!offloads) return input;
  for (const char* const setting : {"placement.offload_modules=core_attn,mlp_norm", "placement.max_in_flight=2"}) {
    input.flags.push_back(parse_set(setting));
  }
  return input;
}

// Build, timeline, memory log, peaks and partition of the time, as `stepsim run` does them. `least_ops`: 0, or what the step must have.
void whole_step(benchmark::State& state, const JobInput& input, std::size_t least_ops, const char* target) {
  const Job job = resolve_job(input);
  std::size_t ops = 0;
  for (auto _ : state) {
    const StepRun run = run_step(job);
    ops = run.step.graph.ops().size();
    benchmark::DoNotOptimize(run.run.result.end);
  }
  if (ops < least_ops) state.SkipWithError("fewer ops than one for each kernel, copy and collective");
  state.counters["ops"] = static_cast<double>(ops);
  state.SetLabel(target);
}

void whole_step_530b_on_280_gpus(benchmark::State& state) {
  whole_step(state, megatron("mt-nlg-530b", "35", "280"), 1200000, "at most 3 s; at least 1.2 million ops");
}
void whole_step_gpt3_175b_on_64_gpus(benchmark::State& state) { whole_step(state, megatron("gpt3-175b", "8", "64"), 0, "at most 0.3 s"); }
void whole_step_llama3_8b_fsdp_on_8_gpus(benchmark::State& state) { whole_step(state, llama3_8b_fsdp(), 0, "under 10 ms"); }

void whole_step_405b_with_offload(benchmark::State& state) { whole_step(state, llama3_405b(true), 0, "under 1 s"); }

// What an op costs with copies among the ops and without.
void whole_step_405b_by_op(benchmark::State& state) {
  const Job job = resolve_job(llama3_405b(state.range(0) != 0));
  std::size_t ops = 0;
  for (auto _ : state) ops += run_step(job).step.graph.ops().size();
  state.counters["ops/s"] = benchmark::Counter(static_cast<double>(ops), benchmark::Counter::kIsRate);
  state.SetLabel("offload:1 at least half the ops/s of offload:0");
}

// A stage for each layer: time in proportion to the ops, so that ops/s are about the same for any number of stages.
void whole_step_of_stages(benchmark::State& state) {
  const std::string stages = std::to_string(state.range(0));
  const Job job =
      resolve_job({"",
                   {parse_set("model.name=gpt3-175b"), parse_set("model.layers=" + stages), parse_set("hardware.name=a100-sxm-80gb"),
                    parse_set("training.global_batch=2"), parse_set("training.micro_batch=1"), parse_set("parallel.pp=" + stages)}});
  std::size_t ops = 0;
  for (auto _ : state) ops += run_step(job).step.graph.ops().size();
  state.counters["ops/s"] = benchmark::Counter(static_cast<double>(ops), benchmark::Counter::kIsRate);
  state.SetLabel("4096 stages: at least half the ops/s of 512");
}

BENCHMARK(build_llama3_8b)->Unit(benchmark::kMillisecond);
BENCHMARK(build_and_simulate_llama3_8b)->Unit(benchmark::kMillisecond);
BENCHMARK(whole_step_530b_on_280_gpus)->Unit(benchmark::kMillisecond);
BENCHMARK(whole_step_gpt3_175b_on_64_gpus)->Unit(benchmark::kMillisecond);
BENCHMARK(whole_step_llama3_8b_fsdp_on_8_gpus)->Unit(benchmark::kMillisecond);
BENCHMARK(whole_step_405b_with_offload)->Unit(benchmark::kMillisecond);
BENCHMARK(whole_step_405b_by_op)->ArgName("offload")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);
BENCHMARK(whole_step_of_stages)->Arg(512)->Arg(4096)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stepsim

BENCHMARK_MAIN();
