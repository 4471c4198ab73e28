// What the allocator's replay costs beside the event loop, on a step of GPT-3 175B (8 stages, 64 micro-batches, as in arXiv 2205.05198).
// Run: build/release/tests/bench/allocator_bench
#include <benchmark/benchmark.h>

#include <random>

#include "sim/allocator_replay.h"
#include "sim/simulate.h"
#include "tools/step_run.h"

namespace stepsim {
namespace {

const StepRun& gpt3_175b() {
  static const StepRun run = run_step(
      resolve_job({"",
                   {parse_set("model.name=gpt3-175b"), parse_set("hardware.name=a100-sxm-80gb"), parse_set("training.micro_batch=1"),
                    parse_set("training.global_batch=64"), parse_set("training.attention=unfused"), parse_set("parallel.tp=8"),
                    parse_set("parallel.sequence_parallel=true"), parse_set("parallel.pp=8"), parse_set("parallel.virtual_stages=3"),
                    parse_set("placement.recompute=selective")}}));
  return run;
}

void event_loop(benchmark::State& state) {
  const StepRun& run = gpt3_175b();
  for (auto _ : state) benchmark::DoNotOptimize(simulate(run.step.graph, run.run.machine, *run.costs, {.memory = false}));
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(run.step.graph.ops().size()));
}

void replay_two_steps(benchmark::State& state) {
  const StepRun& run = gpt3_175b();
  const AllocatorReplay replay{.settings = {.expandable_segments = state.range(0) == 1}, .steps = 2, .born = run.born};
  for (auto _ : state) benchmark::DoNotOptimize(replayed_allocator(run.step.graph, run.run.result, replay));
  state.SetItemsProcessed(2 * state.iterations() * static_cast<std::int64_t>(run.run.result.memory.size()));
}

// Random sizes that live for random times: nothing finds a block of its own size.
void random_claims(benchmark::State& state) {
  constexpr std::size_t kLive = 2000;
  for (auto _ : state) {
    std::mt19937_64 random(1);
    CachingAllocator allocator{AllocatorSettings{}};
    std::vector<CachingAllocator::Claim> live;
    for (int i = 0; i < 100'000; ++i) {
      if (live.size() == kLive) {
        std::swap(live[random() % kLive], live.back());
        allocator.release(live.back());
        live.pop_back();
      }
      live.push_back(*allocator.claim(Bytes(static_cast<std::int64_t>(1 + random() % (std::uint64_t{64} << 20))), 0));
    }
    benchmark::DoNotOptimize(allocator.use().reserved);
  }
  state.SetItemsProcessed(state.iterations() * 200'000);
}

BENCHMARK(event_loop)->Unit(benchmark::kMillisecond);
BENCHMARK(replay_two_steps)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);
BENCHMARK(random_claims)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stepsim

BENCHMARK_MAIN();
