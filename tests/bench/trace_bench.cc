// Slices per second of the trace writer, plain and through gzip, on a made-up step in the shape of a real one: per layer and micro-batch
// twelve compute kernels and four collectives, each collective between two kernels (a flow in and a flow out), a claim and a release per
// op.
#include <benchmark/benchmark.h>

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "sim/op_graph.h"
#include "sim/step_result.h"
#include "traces/chrome_trace_writer.h"
#include "traces/memory_writer.h"
#include "traces/output_file.h"

namespace {

using namespace stepsim;

constexpr std::array<std::string_view, 11> kRoles = {
    "weights",       "gradients", "optimizer_state", "activations", "activation_gradients", "recomputed", "offload_staging",
    "communication", "workspace", "logits",          "other"};

struct Step {
  OpGraph graph;
  StepResult result;
};

// Deterministic, uneven numbers: the low bits of a linear congruential generator (Knuth, MMIX) repeat, so the high ones are taken.
struct Numbers {
  std::uint64_t state = 1;
  std::int64_t below(std::int64_t limit) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(limit));
  }
};

Step made_up_step(std::int32_t ops) {
  OpGraphBuilder builder;
  const DeviceId device = builder.add_device();
  const StreamId compute = builder.add_stream({.device = device, .kind = builder.label("compute"), .compute = true});
  const StreamId communication = builder.add_stream({.device = device, .kind = builder.label("tp communication")});
  const std::array<std::string_view, 16> kinds = {"norm",       "qkv",           "rope", "attention", "projection", "all-reduce", "add",
                                                  "norm 2",     "gate",          "up",   "act",       "down",       "all-reduce", "add 2",
                                                  "all-gather", "reduce-scatter"};
  Numbers numbers;
  StepResult result;
  std::vector<StorageId> storages;
  for (std::size_t role = 0; role < kRoles.size(); ++role) {
    const LabelId label = builder.label(kRoles[role], static_cast<std::int32_t>(role));
    for (int i = 0; i < 8; ++i)
      storages.push_back(builder.add_storage({.size = Bytes(numbers.below(1 << 30)), .role = label, .device = device}));
  }
  TimePoint now{};
  for (std::int32_t i = 0; i < ops; ++i) {
    const std::size_t kind = static_cast<std::size_t>(i) % kinds.size();
    const bool collective = kind == 5 || kind == 12 || kind >= 14;
    const std::int32_t layer = i / 16 % 96;
    const OpWork work = collective ? OpWork(Collective{.message = Bytes(1 << 26), .ranks = 8})
                                   : OpWork(Gemm{.m = 8192, .n = 4096 + 128 * static_cast<std::int64_t>(kind), .k = 8192});
    Op op{.work = builder.work(work), .stream = collective ? communication : compute};
    op.phase = builder.label(i / 16 / 96 % 2 == 0 ? "forward" : "backward");
    op.kind = builder.label(kinds[kind]);
    op.layer = layer;
    op.micro_batch = i / 16 / 96 / 2;
    const std::array<Edge, 1> after = {Edge{.from = OpId{i - 1}}};
    const OpId id = builder.add_op(op, {.predecessors = i == 0 ? std::span<const Edge>() : std::span<const Edge>(after)});
    const Duration duration(1'000'000 + numbers.below(400'000'000));
    result.timeline.push_back({.op = id, .issued = now, .start = now, .end = now + duration, .slowed = Duration(numbers.below(5'000'000))});
    const auto claimed_by = [&](std::int32_t index) { return storages[static_cast<std::size_t>(index) % storages.size()]; };
    const StorageId storage = claimed_by(i);
    result.memory.push_back({.at = now, .storage = storage, .by = id, .bytes = builder.storage(storage).size});
    for (std::int32_t past = i % 2 == 1 ? i - 41 : i; past < i && past >= 0 && past < i - 39; ++past) {
      result.memory.push_back({.at = now, .storage = claimed_by(past), .by = id, .bytes = builder.storage(claimed_by(past)).size * -1});
    }
    now += duration;
  }
  result.end = now;
  return {std::move(builder).build(), std::move(result)};
}

void report(benchmark::State& state, std::size_t slices, std::uint64_t bytes) {
  const auto written = static_cast<double>(state.iterations()) * static_cast<double>(slices);
  state.counters["slices/s"] = benchmark::Counter(written, benchmark::Counter::kIsRate);
  state.counters["bytes/slice"] = static_cast<double>(bytes) / static_cast<double>(slices);
}

void trace_to_memory(benchmark::State& state) {
  const Step step = made_up_step(static_cast<std::int32_t>(state.range(0)));
  std::uint64_t bytes = 0;
  for (auto _ : state) {
    bytes = 0;
    write_chrome_trace(step.graph, step.result, {.role_names = kRoles, .title = "bench"},
                       [&](std::string_view text) { bytes += text.size(); });
  }
  report(state, step.result.timeline.size(), bytes);
}
BENCHMARK(trace_to_memory)->Arg(1'000'000)->Unit(benchmark::kMillisecond);

void trace_to_file(benchmark::State& state, const std::string& name) {
  const std::string path = (std::filesystem::temp_directory_path() / name).string();
  const Step step = made_up_step(static_cast<std::int32_t>(state.range(0)));
  std::uint64_t bytes = 0;
  for (auto _ : state) {
    bytes = 0;
    OutputFile file(path);
    write_chrome_trace(step.graph, step.result, {.role_names = kRoles, .title = "bench"}, [&](std::string_view text) {
      bytes += text.size();
      file.write(text);
    });
    file.commit();
  }
  std::filesystem::remove(path);
  state.SetLabel(name.ends_with(".gz") ? "at least 0.3 million slices/s" : "at least 1 million slices/s");
  report(state, step.result.timeline.size(), bytes);
}
BENCHMARK_CAPTURE(trace_to_file, plain, "trace_bench.json")->Arg(300'000)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(trace_to_file, gzip, "trace_bench.json.gz")->Arg(300'000)->Unit(benchmark::kMillisecond);

void memory_csv(benchmark::State& state) {
  const Step step = made_up_step(static_cast<std::int32_t>(state.range(0)));
  std::uint64_t bytes = 0;
  for (auto _ : state) {
    bytes = 0;
    write_memory_csv(step.graph, step.result, kRoles, [&](std::string_view text) { bytes += text.size(); });
  }
  report(state, step.result.timeline.size(), bytes);
}
BENCHMARK(memory_csv)->Arg(300'000)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
