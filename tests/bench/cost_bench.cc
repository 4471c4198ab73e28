// What asking for a cost takes, once it is known: few works, many, and those of a step in the order of its ops; and the first time.
#include <benchmark/benchmark.h>

#include "hardware/profile_cost_model.h"
#include "hardware/roofline_cost_model.h"
#include "tools/step_run.h"

namespace stepsim {
namespace {

struct Modelled {
  GpuSpec gpu = load_gpu("a100-sxm-80gb");
  ClusterSpec cluster = usual_cluster(gpu);
  Machine machine = make_machine(gpu, cluster, 8);
  RooflineCostModel model{gpu, cluster, machine};
};

struct Question {
  OpWork work;
  DeviceId device;
  TransferSide side;
};

OpWork work_of_kind(std::int64_t i) {
  if (i % 4 == 0) return Gemm{.m = 2048, .n = 128 + i, .k = 12288, .transpose_a = true};
  if (i % 4 == 1) return Collective{.kind = CollectiveKind::kAllGather, .message = Bytes(4096 * (i + 1)), .ranks = 8};
  if (i % 16 == 2) return Attention{.batch = 1, .heads = 12, .kv_heads = 12, .queries = 128 + i, .keys = 128 + i, .head_dim = 128};
  return MemoryBound{.read = Bytes(4096 * (i + 1)), .written = Bytes(2048)};
}

// The kinds of work that a step has, each of another size.
std::vector<Question> questions(std::int64_t count) {
  std::vector<Question> all;
  for (std::int64_t i = 0; i < count; ++i) {
    all.push_back({work_of_kind(i), DeviceId{static_cast<std::int32_t>(i % 8)}, TransferSide::kBoth});
  }
  return all;
}

// All works of gpt3-175b on 64 A100s, in the order of their ops.
std::vector<Question> questions_of_step() {
  const Job job =
      resolve_job({"",
                   {parse_set("model.name=gpt3-175b"), parse_set("hardware.name=a100-sxm-80gb"), parse_set("training.micro_batch=1"),
                    parse_set("training.global_batch=64"), parse_set("training.attention=unfused"), parse_set("parallel.tp=8"),
                    parse_set("parallel.sequence_parallel=true"), parse_set("parallel.pp=8"), parse_set("placement.recompute=selective")}});
  const BuiltStep step = build_step(step_request(job));
  std::vector<Question> all;
  for (std::size_t i = 0; i < step.graph.ops().size(); ++i) {
    const OpId op{static_cast<std::int32_t>(i)};
    const OpWork& work = step.graph.work(op);
    const StreamId stream = step.graph.op(op).stream;
    if (std::holds_alternative<Marker>(work) || !stream.valid()) continue;
    const DeviceId device = step.graph.streams()[static_cast<std::size_t>(stream.index)].device;
    all.push_back({work, device, TransferSide::kBoth});
  }
  return all;
}

void ask(benchmark::State& state, const CostModel& model, const std::vector<Question>& asked, const char* target) {
  for (const Question& each : asked) model.cost(each.work, each.device, each.side);
  for (auto _ : state) {
    for (const Question& each : asked) benchmark::DoNotOptimize(model.cost(each.work, each.device, each.side));
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(asked.size()));
  state.SetLabel(target);
}

void known_costs(benchmark::State& state) {
  const Modelled modelled;
  ask(state, modelled.model, questions(state.range(0)), "at least 20 million/s");
}

void known_costs_of_a_175b_step(benchmark::State& state) {
  const Modelled modelled;
  ask(state, modelled.model, questions_of_step(), "at least 20 million/s");
}

void known_costs_with_a_profile(benchmark::State& state) {
  const Modelled modelled;
  KernelProfile profile;
  for (std::int64_t n = 128; n < 8192; n += 128) {
    profile.kernels.push_back({Gemm{.m = 2048, .n = n, .k = 12288, .transpose_a = true}, std::chrono::microseconds(n)});
  }
  const ProfileCostModel model(modelled.model, profile);
  ask(state, model, questions(4096), "at least 20 million/s");
}

void first_costs(benchmark::State& state) {
  const Modelled modelled;
  const std::vector<Question> asked = questions(4096);
  for (auto _ : state) {
    const RooflineCostModel model(modelled.gpu, modelled.cluster, modelled.machine);
    for (const Question& each : asked) benchmark::DoNotOptimize(model.cost(each.work, each.device, each.side));
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(asked.size()));
}

BENCHMARK(known_costs)->ArgName("works")->Arg(64)->Arg(4096);
BENCHMARK(known_costs_of_a_175b_step);
BENCHMARK(known_costs_with_a_profile);
BENCHMARK(first_costs);

}  // namespace
}  // namespace stepsim

BENCHMARK_MAIN();
