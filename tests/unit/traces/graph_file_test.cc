#include "traces/graph_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "sim/input_error.h"
#include "tests/unit/traces/traced_step.h"
#include "traces/graph.pb.h"

namespace stepsim {
namespace {

using ::testing::ElementsAre;

constexpr std::array<std::string_view, 4> kExamples = {"minimal.textproto", "offload.textproto", "contention.textproto", "pipeline.json"};

GraphFile example(std::string_view name) { return read_graph(STEPSIM_SOURCE_DIR "/tests/golden/graphs/" + std::string(name)); }

Duration microseconds(std::int64_t count) { return std::chrono::microseconds(count); }

TEST(GraphFile, ExamplesTakeAsLongAsTheySay) {
  EXPECT_EQ(run_graph(example("minimal.textproto")).end, microseconds(17));
  EXPECT_EQ(run_graph(example("offload.textproto")).end, microseconds(90));
  EXPECT_EQ(run_graph(example("contention.textproto")).end, microseconds(40));
  // The host of F0 needs 1 us to launch it: 1 + 10 + 3 + 10.
  EXPECT_EQ(run_graph(example("pipeline.json")).end, microseconds(24));
}

TEST(GraphFile, MinimalGraphFillsTheTables) {
  const GraphFile file = example("minimal.textproto");
  EXPECT_EQ(file.graph.device_count(), 1);
  ASSERT_EQ(file.graph.streams().size(), 2u);
  EXPECT_EQ(file.graph.label(file.graph.streams()[0].kind), "copy");
  EXPECT_TRUE(file.graph.streams()[0].compute);  // the first of the device
  EXPECT_FALSE(file.graph.streams()[1].compute);
  EXPECT_EQ(file.graph.op_name(OpId{1}), "gemm");
  EXPECT_FALSE(file.needs_cost_model);
  ASSERT_EQ(file.graph.predecessors(OpId{1}).size(), 1u);
  EXPECT_EQ(file.graph.predecessors(OpId{1})[0].from, OpId{0});
}

TEST(GraphFile, ReadsEveryTable) {
  const GraphFile file = parse_graph(R"(
    hosts { name: "h" capacity: "2 GiB" }
    devices { name: "a" capacity: "1 GiB" host: "h" } devices { name: "b" host: "h" } devices { name: "c" }
    streams { name: "s" device: "b" any_ready_op: true } streams { name: "t" device: "b" compute: true }
    queues { name: "q" device: "b" slots: 2 }
    issuers { name: "i" device: "b" run_ahead: 7 }
    resources { name: "r" kind: "hbm" device: "b" bandwidth: "900 GB/s" }
    pools { name: "p" space: host device: "c" capacity: "1 MiB" gated: true }
    storages { name: "x" size: "80 MiB" role: "activations" device: "b" deferred_free: true layer: 2 micro_batch: 1 }
    storages { name: "y" size: "5 B" space: host device: "c" pool: "p" live_at_start: true live_at_end: true }
    ops { name: "one" kind: "gemm" phase: "forward" stream: "s" queues: "q" fixed: "1 us" alone: "2 us" issue: "3 us" issuer: "i"
          loads { resource: "r" fraction: 0.25 peers: 2 weight: 3 while_waiting: true } class: collective group: "tp"
          writes: "x" reads: "y" holds: "y" layer: 3 micro_batch: 1 priority: -4 launch_group: 5 }
    ops { name: "two" stream: "t" gemm { m: 1 n: 2 k: 3 dtype: fp8 } start_after: "one" after: "#0" runs_again: "one" issuer: "i" issue_after: "one" })",
                                     "g");
  EXPECT_EQ(file.device_capacity, (std::vector<std::optional<Bytes>>{Bytes(1 << 30), std::nullopt, std::nullopt}));
  EXPECT_THAT(file.host_of_device, ElementsAre(0, 0, 1));
  EXPECT_EQ(file.host_capacity, (std::vector<std::optional<Bytes>>{Bytes(std::int64_t{2} << 30), std::nullopt}));
  const OpGraph& graph = file.graph;
  EXPECT_TRUE(graph.streams()[0].any_ready_op);
  EXPECT_FALSE(graph.streams()[0].compute);
  EXPECT_TRUE(graph.streams()[1].compute);
  EXPECT_EQ(graph.queues()[0].slots, 2);
  EXPECT_EQ(graph.issuers()[0].run_ahead, 7);
  EXPECT_EQ(file.resources.at(0).device, DeviceId{1});
  EXPECT_EQ(file.resources.at(0).bandwidth.value, 9e11);
  EXPECT_TRUE(graph.pools()[0].gated);
  EXPECT_EQ(graph.pools()[0].host, 1);  // of device c
  EXPECT_EQ(graph.storages()[0].size, Bytes(80 << 20));
  EXPECT_TRUE(graph.storages()[0].deferred_free);
  EXPECT_EQ(graph.storages()[1].pool, 0);
  EXPECT_EQ(graph.storages()[1].device, DeviceId{2});
  EXPECT_THAT(file.role_names, ElementsAre("activations", "other"));
  const Op& one = graph.op(OpId{0});
  EXPECT_EQ(graph.op_name(OpId{0}), "forward L3 gemm mb1");
  EXPECT_EQ(one.priority, -4);
  EXPECT_EQ(one.launch_group, 5);
  EXPECT_EQ(op_class(graph.work(OpId{0})), OpClass::kCollective);
  EXPECT_EQ(file.group_names.at(static_cast<std::size_t>(graph.bucket(one.kind))), "tp");
  ASSERT_EQ(file.costs.size(), 1u);
  EXPECT_EQ(file.costs[0].fixed, microseconds(1));
  EXPECT_EQ(file.costs[0].alone, microseconds(2));
  EXPECT_EQ(file.costs[0].issue, microseconds(3));
  EXPECT_EQ(file.costs[0].loads.at(0).fraction_2e30, kFullLoad / 4);
  EXPECT_EQ(file.costs[0].loads.at(0).peers, 2);
  EXPECT_TRUE(file.costs[0].loads.at(0).while_waiting);
  EXPECT_TRUE(file.needs_cost_model);
  EXPECT_EQ(std::get<Gemm>(graph.work(OpId{1})), (Gemm{.m = 1, .n = 2, .k = 3, .dtype = DType::kFp8}));
  EXPECT_EQ(graph.op(OpId{1}).origin, OpId{0});
  ASSERT_EQ(graph.predecessors(OpId{1}).size(), 2u);
  EXPECT_EQ(graph.predecessors(OpId{1})[1].kind, EdgeKind::kStartToStart);
  EXPECT_THAT(graph.issue_after(OpId{1}), ElementsAre(OpId{0}));
}

TEST(GraphFile, OnMachineShiftsLoads) {
  const GraphFile file = example("contention.textproto");
  Machine base = plain_machine(3);
  base.resources = {{.name = "x", .kind = "", .device = {}}, {.name = "y", .kind = "", .device = {}}};
  const MachineAndCosts on = on_machine(file, base);
  EXPECT_EQ(on.machine.resources.at(2).name, "gpu0 sm");
  EXPECT_EQ(on.costs.at(0).loads.at(0).resource, ResourceId{2});
  EXPECT_EQ(simulate(file.graph, on.machine, GivenCostModel(on.costs)).end, microseconds(40));
}

TEST(GraphFile, TextReadsBackAsTheSameGraph) {
  for (const std::string_view name : kExamples) {
    const GraphFile file = example(name);
    const std::string text = graph_text(file);
    const GraphFile again = parse_graph(text, "again");
    EXPECT_EQ(fingerprint(run_graph(again)), fingerprint(run_graph(file))) << text;
    EXPECT_EQ(graph_text(again), text) << name;
    EXPECT_EQ(again.role_names, file.role_names);
  }
}

TEST(GraphFile, ModelledWorkReadsBack) {
  const std::string ops = R"(
    ops { name: "g" stream: "s" gemm { m: 1 n: 2 k: 3 batch: 4 dtype: nvfp4 transpose_a: true accumulate_fp32: true } }
    ops { name: "a" stream: "s" attention { batch: 1 heads: 8 kv_heads: 2 queries: 16 keys: 32 head_dim: 64 causal: false backward: true kernel: cudnn } }
    ops { name: "m" stream: "s" memory { read: "8 MiB" written: "1 B" kernel: softmax } }
    ops { name: "c" stream: "s" collective { kind: reduce_scatter message: "1 GB" ranks: 8 stride: 2 } }
    ops { name: "d" stream: "s" copy { bytes: "7 B" direction: host_to_device pinned: false } }
    ops { name: "p" stream: "s" copy { bytes: "7 B" allocates: true } }
    ops { name: "e" marker: true }
    ops { name: "b" stream: "s" gemm { m: 1 n: 2 k: 3 dtype: bf16 accumulate: true } }
    ops { name: "f" stream: "s" gemm { m: 1 n: 2 k: 3 batch: 8 dtype: bf16 in_flight: 4 } }
    ops { name: "q" stream: "s" memory { read: "8 B" kernel: quantize launches: 8 } }
    ops { name: "t" stream: "s" collective { kind: dispatch message: "1 GB" ranks: 8 library: hybrid_ep
                                             routing { experts: 32 choices: 4 groups: 8 best_groups: 2 } } })";
  const GraphFile file = parse_graph(ops, "g");
  const GraphFile again = parse_graph(graph_text(file), "again");
  EXPECT_EQ(std::get<Attention>(file.graph.work(OpId{1})).kernel, 2);
  EXPECT_EQ(std::get<MemoryBound>(file.graph.work(OpId{2})),
            (MemoryBound{.read = Bytes(8 << 20), .written = Bytes(1), .kernel = MemoryKernel::kSoftmax}));
  EXPECT_EQ(std::get<Copy>(file.graph.work(OpId{5})), (Copy{.bytes = Bytes(7), .allocates = true}));
  EXPECT_TRUE(std::get<Gemm>(file.graph.work(OpId{7})).accumulate);
  EXPECT_EQ(std::get<Gemm>(file.graph.work(OpId{8})).in_flight, 4);
  EXPECT_EQ(std::get<MemoryBound>(file.graph.work(OpId{9})).launches, 8);
  EXPECT_EQ(std::get<Collective>(file.graph.work(OpId{10})).routing, (Routing{.experts = 32, .choices = 4, .groups = 8, .best_groups = 2}));
  EXPECT_EQ(std::get<Collective>(file.graph.work(OpId{10})).library, CollectiveLibrary::kHybridEp);
  ASSERT_EQ(again.graph.ops().size(), 11u);
  for (std::int32_t i = 0; i < 11; ++i) EXPECT_EQ(again.graph.work(OpId{i}), file.graph.work(OpId{i})) << i;
}

// Two ops of one name in the builder's words; the second gets its number.
TEST(GraphFile, NamesOfTheTextAreUnique) {
  OpGraphBuilder builder;
  const StreamId stream = builder.add_stream({.device = builder.add_device(), .kind = {}, .compute = true});
  const Op op{.work = builder.work(Given{}), .stream = stream, .phase = {}, .kind = builder.label("norm"), .origin = {}, .issuer = {}};
  builder.add_op(op, {});
  builder.add_op(op, {});
  GraphFile file;
  file.graph = std::move(builder).build();
  file.costs = {{.alone = microseconds(1)}};
  file.device_capacity = {std::nullopt};
  EXPECT_THAT(graph_text(file), ::testing::HasSubstr("name: \"norm #1\" kind: \"norm\""));
  EXPECT_EQ(run_graph(parse_graph(graph_text(file), "again")).end, microseconds(2));
}

// contention.textproto with sharing: 20 us and 40 us as they ran; as given times the step is the same, without resources.
TEST(GraphFile, TextOfAStepHasTheTimesItTook) {
  for (const std::string_view name : kExamples) {
    if (name == "pipeline.json") continue;  // its launches are dropped
    const GraphFile file = example(name);
    const StepResult result = run_graph(file);
    const GraphFile again = parse_graph(graph_text(file.graph, result), "again");
    EXPECT_TRUE(again.resources.empty());
    StepResult rerun = run_graph(again);
    ASSERT_EQ(rerun.timeline.size(), result.timeline.size());
    for (std::size_t i = 0; i < result.timeline.size(); ++i) {
      EXPECT_EQ(rerun.timeline[i].op, result.timeline[i].op);
      EXPECT_EQ(rerun.timeline[i].start, result.timeline[i].start);
      EXPECT_EQ(rerun.timeline[i].end, result.timeline[i].end);
    }
  }
}

TEST(GraphFile, BinaryForm) {
  graph_file::Graph message;
  graph_file::Op& op = *message.add_ops();
  op.set_name("a");
  op.set_stream("s");
  op.set_duration("3 us");
  const auto path = std::filesystem::temp_directory_path() / ("stepsim_graph_" + std::to_string(::getpid()) + ".pb");
  std::ofstream(path, std::ios::binary) << message.SerializeAsString();
  EXPECT_EQ(run_graph(read_graph(path.string())).end, microseconds(3));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace stepsim
