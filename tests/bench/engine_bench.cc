// Speed of simulate(), graph build excluded: ops per second of one core. Run: build/release/tests/bench/engine_bench
#include <benchmark/benchmark.h>
#include <malloc.h>

#include <random>

#include "sim/simulate.h"

namespace stepsim {
namespace {

constexpr std::int32_t kOps = 1'000'000;

void report(benchmark::State& state, const OpGraph& graph, const StepResult& result, const char* target) {
  state.SetLabel(target);
  if (result.deadlock || result.timeline.size() != graph.ops().size()) state.SkipWithError("the step did not run to its end");
  state.counters["ops/s"] =
      benchmark::Counter(static_cast<double>(graph.ops().size()) * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  state.counters["events/op"] = static_cast<double>(result.events) / static_cast<double>(graph.ops().size());
  state.counters["slowed_ops"] = static_cast<double>(
      std::count_if(result.timeline.begin(), result.timeline.end(), [](const OpRun& run) { return run.slowed.count() > 0; }));
}

std::vector<GivenCostModel::Row> durations(std::int32_t rows, std::mt19937_64& random) {
  std::vector<GivenCostModel::Row> costs;
  for (std::int32_t i = 0; i < rows; ++i) {
    costs.push_back({.fixed = Duration(1000),
                     .alone = Duration(static_cast<std::int64_t>(10'000 + random() % 1'000'000)),
                     .issue = Duration(0),
                     .loads = {}});
  }
  return costs;
}

// One device, one stream, no edges, no storages.
void bare_chain(benchmark::State& state) {
  std::mt19937_64 random(1);
  const GivenCostModel costs(durations(64, random));
  OpGraphBuilder builder;
  const StreamId stream = builder.add_stream({.device = builder.add_device()});
  for (std::int32_t i = 0; i < kOps; ++i) builder.add_op({.work = builder.work(Given{.index = i % 64}), .stream = stream}, {});
  const OpGraph graph = std::move(builder).build();
  const Machine machine = plain_machine(1);
  StepResult result;
  for (auto unused : state) {
    (void)unused;
    result = simulate(graph, machine, costs);
    benchmark::DoNotOptimize(result.end);
  }
  report(state, graph, result, "at least 10 million ops/s");
}
BENCHMARK(bare_chain)->Unit(benchmark::kMillisecond);

// Eight streams of one device, a storage for each op read by two later ones on other streams, a copy-engine queue for every fourth op,
// a host thread that launches everything, memory in issue order.
void storages_streams_queues(benchmark::State& state) {
  std::mt19937_64 random(2);
  std::vector<GivenCostModel::Row> rows = durations(64, random);
  for (GivenCostModel::Row& row : rows) row.issue = Duration(2000);
  const GivenCostModel costs(std::move(rows));
  OpGraphBuilder builder;
  const DeviceId device = builder.add_device();
  std::vector<StreamId> streams;
  for (int i = 0; i < 8; ++i) streams.push_back(builder.add_stream({.device = device, .kind = {}, .compute = i == 0}));
  const QueueId engines[] = {builder.add_queue({.device = device}), builder.add_queue({.device = device})};
  const IssuerId issuer = builder.add_issuer({.device = device});
  const Bytes size(1 << 20);
  std::vector<StorageId> storages;
  for (std::int32_t i = 0; i < kOps; ++i) {
    const StorageId out = builder.add_storage({.size = size, .device = device});
    const Tensor writes[] = {{.storage = out, .offset = Bytes(0), .size = size}};
    std::vector<Tensor> reads;
    std::vector<Edge> edges;
    for (const std::int32_t back : {3, 17}) {
      if (i < back) continue;
      reads.push_back({.storage = storages[static_cast<std::size_t>(i - back)], .offset = Bytes(0), .size = size});
      edges.push_back({.from = OpId{i - back}});
    }
    const std::span<const QueueId> queues = i % 4 == 0 ? std::span<const QueueId>(&engines[(i / 4) % 2], 1) : std::span<const QueueId>();
    storages.push_back(out);
    builder.add_op({.work = builder.work(Given{.index = i % 64}), .stream = streams[static_cast<std::size_t>(i % 8)], .issuer = issuer},
                   {.predecessors = edges, .reads = reads, .writes = writes, .queues = queues});
  }
  const OpGraph graph = std::move(builder).build();
  const Machine machine = plain_machine(1);
  const bool memory = state.range(0) != 0;
  StepResult result;
  for (auto unused : state) {
    (void)unused;
    result = simulate(graph, machine, costs, {.memory = memory});
    benchmark::DoNotOptimize(result.end);
  }
  report(state, graph, result, memory ? "at least 3 million ops/s" : "");
}
BENCHMARK(storages_streams_queues)->Arg(1)->Arg(0)->ArgName("memory")->Unit(benchmark::kMillisecond);

// A compute, a communication and a copy stream; every kernel loads both the SMs and the memory, so nearly every start and end is a new
// filling of two resources.
void two_contended_resources(benchmark::State& state) {
  std::mt19937_64 random(3);
  const ResourceId sm{0}, hbm{1};
  std::vector<GivenCostModel::Row> rows = durations(96, random);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double sm_load[] = {1.0, 0.15, 0.0}, hbm_load[] = {0.7, 0.25, 0.3};
    const double spread = 0.9 + 0.001 * static_cast<double>(i);
    if (i % 3 != 2) rows[i].loads.push_back({.resource = sm, .fraction_2e30 = load_fraction(sm_load[i % 3] * spread)});
    rows[i].loads.push_back({.resource = hbm, .fraction_2e30 = load_fraction(hbm_load[i % 3] * spread)});
  }
  const GivenCostModel costs(std::move(rows));
  OpGraphBuilder builder;
  const DeviceId device = builder.add_device();
  StreamId streams[3];
  for (StreamId& stream : streams) stream = builder.add_stream({.device = device});
  for (std::int32_t i = 0; i < kOps; ++i) {
    builder.add_op({.work = builder.work(Given{.index = i % 96}), .stream = streams[i % 3]}, {});
  }
  const OpGraph graph = std::move(builder).build();
  Machine machine = plain_machine(1);
  machine.resources = {{.name = "sm", .kind = "sm"}, {.name = "hbm", .kind = "hbm"}};
  StepResult result;
  for (auto unused : state) {
    (void)unused;
    result = simulate(graph, machine, costs);
    benchmark::DoNotOptimize(result.end);
  }
  report(state, graph, result, "at least 1 million ops/s");
}
BENCHMARK(two_contended_resources)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stepsim

// Steps are simulated one after another here, as a planner does: the allocator keeps its pages from one to the next. Otherwise a quarter of
// the time goes to the kernel, which maps, clears and unmaps 40 to 200 MB for every run.
int main(int count, char** arguments) {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 1 << 28);
  benchmark::Initialize(&count, arguments);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
