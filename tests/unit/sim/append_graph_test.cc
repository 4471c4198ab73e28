#include "sim/append_graph.h"

#include <gtest/gtest.h>

#include "sim/simulate.h"

namespace stepsim {

namespace {

// a on one stream writes x; b on another reads x behind a, with a queue; c starts when b starts, on the first stream again.
OpGraph three_ops() {
  OpGraphBuilder builder;
  const DeviceId device = builder.add_device();
  const StreamId first = builder.add_stream({.device = device, .kind = builder.label("compute"), .compute = true});
  const StreamId second = builder.add_stream({.device = device, .kind = builder.label("copy")});
  const QueueId queue = builder.add_queue({.device = device, .kind = builder.label("engine")});
  const StorageId x = builder.add_storage({.size = Bytes(64), .role = builder.label("values", 2), .device = device});
  const Tensor all{x, Bytes(0), Bytes(64)};
  const LabelId kind = builder.label("kernel", 1), phase = builder.label("pass", 1);
  const auto work = [&](std::int32_t row) { return builder.work(Given{.index = row}); };
  const OpId a =
      builder.add_op({.work = work(0), .stream = first, .phase = phase, .kind = kind, .layer = 3}, {.writes = std::span(&all, 1)});
  const Edge after{a};
  const OpId b = builder.add_op({.work = work(1), .stream = second, .phase = phase, .kind = kind, .origin = a},
                                {.predecessors = std::span(&after, 1), .reads = std::span(&all, 1), .queues = std::span(&queue, 1)});
  const Edge beside{b, EdgeKind::kStartToStart};
  builder.add_op({.work = work(0), .stream = first, .phase = phase, .kind = kind}, {.predecessors = std::span(&beside, 1)});
  return std::move(builder).build();
}

GivenCostModel costs() { return GivenCostModel({{.alone = Duration(10)}, {.alone = Duration(7)}}); }

}  // namespace

TEST(AppendGraph, ACopyRunsAsItsOriginal) {
  const OpGraph graph = three_ops();
  const OpGraph copy = with_works(graph, [&](OpId op) { return graph.work(op); });
  EXPECT_EQ(fingerprint(simulate(copy, plain_machine(1), costs())), fingerprint(simulate(graph, plain_machine(1), costs())));
  EXPECT_EQ(copy.op(OpId{1}).origin, OpId{0});
  EXPECT_EQ(copy.op(OpId{0}).layer, 3);
  EXPECT_EQ(copy.op_name(OpId{0}), graph.op_name(OpId{0}));
  EXPECT_EQ(copy.bucket(copy.storages()[0].role), 2);
}

TEST(AppendGraph, OtherWorksAreThoseOfTheCopyAlone) {
  const OpGraph graph = three_ops();
  const OpGraph slower = with_works(graph, [](OpId) { return OpWork(Given{.index = 0}); });
  // a 0-10, b and c 10-20; in the original b takes 7.
  EXPECT_EQ(simulate(slower, plain_machine(1), costs()).timeline.back().end, Duration(20));
  EXPECT_EQ(simulate(graph, plain_machine(1), costs()).timeline[1].end, Duration(17));
}

TEST(AppendGraph, GraphsSideBySideDoNotMeet) {
  const OpGraph graph = three_ops();
  const std::vector<const OpGraph*> twice = {&graph, &graph};
  const OpGraph both = side_by_side(twice);
  EXPECT_EQ(both.device_count(), 2);
  EXPECT_EQ(both.ops().size(), 6u);
  const StepResult result = simulate(both, plain_machine(2), costs());
  EXPECT_EQ(result.end, simulate(graph, plain_machine(1), costs()).end);
  for (const OpRun& run : result.timeline) {
    if (run.op.index < 3) continue;
    EXPECT_EQ(both.streams()[at(both.op(run.op).stream.index)].device, DeviceId{1});
  }
  EXPECT_EQ(both.predecessors(OpId{4}).front().from, OpId{3});
  EXPECT_EQ(both.reads(OpId{4}).front().storage, StorageId{1});
}

TEST(AppendGraph, KeepsTheIssueOrder) {
  OpGraph graph = three_ops();
  graph = with_issue_order(std::move(graph), std::vector<OpId>{OpId{0}, OpId{2}, OpId{1}});
  const OpGraph copy = with_works(graph, [&](OpId op) { return graph.work(op); });
  for (std::int32_t op = 0; op < 3; ++op) EXPECT_EQ(copy.issue_position(OpId{op}), graph.issue_position(OpId{op}));
}

}  // namespace stepsim
