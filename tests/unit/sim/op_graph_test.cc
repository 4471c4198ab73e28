#include "sim/op_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/sim/small_graph.h"

namespace stepsim {
namespace {

using ::testing::ElementsAre;

TEST(OpGraph, EqualWorkAndLabelsShareIds) {
  OpGraphBuilder builder;
  const WorkId gemm = builder.work(Gemm{.m = 1, .n = 2, .k = 3});
  EXPECT_EQ(builder.work(Gemm{.m = 1, .n = 2, .k = 3}), gemm);
  EXPECT_NE(builder.work(Gemm{.m = 1, .n = 2, .k = 4}), gemm);
  EXPECT_NE(builder.work(Given{.index = 1}), builder.work(Given{.index = 1, .op_class = Given::Class::kCollective}));
  const LabelId forward = builder.label("forward", 1);
  EXPECT_EQ(builder.label("forward", 1), forward);
  EXPECT_NE(builder.label("forward", 2), forward);  // another bucket, another label
  OpGraph graph = std::move(builder).build();
  EXPECT_EQ(graph.works().size(), 4u);
  EXPECT_EQ(graph.label(forward), "forward");
  EXPECT_EQ(graph.bucket(forward), 1);
  EXPECT_EQ(graph.label(LabelId{}), "");
  EXPECT_EQ(graph.bucket(LabelId{}), 0);
}

TEST(OpGraph, LinksComeBackByOp) {
  SmallGraph small;
  const DeviceId device = small.builder.add_device();
  const StreamId stream = small.stream(device, true);
  const StorageId storage = small.storage(device, 100);
  const QueueId queue = small.builder.add_queue({.device = device, .kind = {}});
  const OpId a = small.op(stream, 1, {.writes = {storage}});
  const OpId b = small.op(stream, 1, {.after = {{a}}, .reads = {storage}, .holds = {storage}, .queues = {queue}});
  const OpId c = small.op(stream, 1, {.after = {{b}}, .issue_after = {a}});
  small.builder.add_edge(b, {.from = c, .kind = EdgeKind::kStartToStart});
  small.builder.add_edge(c, {.from = a});
  const OpGraph graph = std::move(small.builder).build();
  EXPECT_EQ(graph.predecessors(a).size(), 0u);
  ASSERT_EQ(graph.predecessors(b).size(), 2u);  // its own first, then the one added later
  EXPECT_EQ(graph.predecessors(b)[0].from, a);
  EXPECT_EQ(graph.predecessors(b)[1].from, c);
  EXPECT_EQ(graph.predecessors(b)[1].kind, EdgeKind::kStartToStart);
  ASSERT_EQ(graph.predecessors(c).size(), 2u);
  EXPECT_EQ(graph.predecessors(c)[1].from, a);
  EXPECT_EQ(graph.writes(a)[0].storage, storage);
  EXPECT_EQ(graph.reads(b)[0].size, Bytes(100));
  EXPECT_THAT(graph.holds(b), ElementsAre(storage));
  EXPECT_THAT(graph.issue_after(c), ElementsAre(a));
  EXPECT_THAT(graph.parts(b), ElementsAre(stream));
  EXPECT_THAT(graph.queues(b, 0), ElementsAre(queue));
  EXPECT_EQ(graph.queues(c, 0).size(), 0u);
}

TEST(OpGraph, PartsOfARendezvousAndAMarkerOutsideStreams) {
  SmallGraph small;
  const StreamId first = small.stream(small.builder.add_device()), second = small.stream(small.builder.add_device());
  const QueueId queue = small.builder.add_queue({.device = DeviceId{1}, .kind = {}});
  const std::vector<OpPart> parts = {{.stream = second, .queues = std::span<const QueueId>(&queue, 1)}};
  const OpId both = small.add(first, Collective{.kind = CollectiveKind::kSendReceive, .ranks = 2}, {}, parts);
  const OpId marker = small.marker(StreamId{});
  const OpGraph graph = std::move(small.builder).build();
  EXPECT_THAT(graph.parts(both), ElementsAre(first, second));
  EXPECT_EQ(graph.queues(both, 0).size(), 0u);
  EXPECT_THAT(graph.queues(both, 1), ElementsAre(queue));
  EXPECT_EQ(graph.parts(marker).size(), 0u);
  EXPECT_THAT(graph.stream_order(second), ElementsAre(both));
}

TEST(OpGraph, StreamsFollowTheIssueOrder) {
  SmallGraph small;
  const DeviceId device = small.builder.add_device();
  const StreamId x = small.stream(device, true), y = small.stream(device);
  const IssuerId host = small.builder.add_issuer({.device = device});
  const OpId a = small.op(x, 1, {.issuer = host}), b = small.op(y, 1, {.issuer = host}), c = small.op(x, 1, {.issuer = host});
  OpGraph graph = std::move(small.builder).build();
  EXPECT_THAT(graph.issue_order(host), ElementsAre(a, b, c));
  EXPECT_THAT(graph.stream_order(x), ElementsAre(a, c));
  graph = with_issue_order(std::move(graph), std::vector<OpId>{c, b, a});
  EXPECT_THAT(graph.issue_order(host), ElementsAre(c, b, a));
  EXPECT_THAT(graph.stream_order(x), ElementsAre(c, a));
  EXPECT_EQ(graph.issue_position(a), 2);
  EXPECT_THROW(with_issue_order(graph, std::vector<OpId>{c, b, c}), std::logic_error);  // not a permutation
}

TEST(OpGraph, Names) {
  OpGraphBuilder builder;
  const StreamId stream = builder.add_stream({.device = builder.add_device(), .kind = {}});
  Op op{.work = builder.work(Gemm{}), .stream = stream, .phase = builder.label("forward"), .kind = builder.label("attention"), .layer = 3};
  const OpId layer_op = builder.add_op(op, {});
  op.micro_batch = 2;
  const OpId micro_batch_op = builder.add_op(op, {});
  op.layer = -1;
  op.micro_batch = -1;
  op.kind = builder.label("head");
  const OpId head = builder.add_op(op, {});
  const StorageId storage =
      builder.add_storage({.size = Bytes(1), .name = builder.label("qkv output"), .device = DeviceId{0}, .layer = 3, .micro_batch = 2});
  const OpGraph graph = std::move(builder).build();
  EXPECT_EQ(graph.op_name(layer_op), "forward L3 attention");
  EXPECT_EQ(graph.op_name(micro_batch_op), "forward L3 attention mb2");
  EXPECT_EQ(graph.op_name(head), "forward head");
  EXPECT_EQ(graph.storage_name(storage), "qkv output L3 mb2");
}

TEST(OpGraph, OneMicroBatchIsNotNamed) {
  OpGraphBuilder builder;
  const StreamId stream = builder.add_stream({.device = builder.add_device(), .kind = {}});
  const OpId only = builder.add_op(
      {.work = builder.work(Gemm{}), .stream = stream, .phase = builder.label("backward"), .kind = builder.label("loss"), .micro_batch = 0},
      {});
  EXPECT_EQ(std::move(builder).build().op_name(only), "backward loss");
}

TEST(OpGraph, BuildRefusesWhatIsOutOfRange) {
  const auto graph_with = [](auto change) {
    SmallGraph small;
    const DeviceId device = small.builder.add_device();
    const StreamId stream = small.stream(device);
    const StorageId storage = small.storage(device, 10);
    change(small, stream, storage);
    return std::move(small.builder).build();
  };
  EXPECT_NO_THROW(graph_with([](SmallGraph& small, StreamId stream, StorageId) { small.op(stream, 1); }));
  EXPECT_THROW(graph_with([](SmallGraph& small, StreamId stream, StorageId) { small.op(stream, 1, {.after = {{OpId{7}}}}); }),
               std::logic_error);
  EXPECT_THROW(graph_with([](SmallGraph& small, StreamId, StorageId) { small.op(StreamId{5}, 1); }), std::logic_error);
  EXPECT_THROW(graph_with([](SmallGraph& small, StreamId, StorageId) { small.op(StreamId{}, 1); }), std::logic_error);
  EXPECT_THROW(graph_with([](SmallGraph& small, StreamId stream, StorageId storage) {
                 const std::vector<Tensor> beyond = {{.storage = storage, .offset = Bytes(8), .size = Bytes(3)}};  // 8 + 3 > 10
                 small.builder.add_op({.work = small.builder.work(Gemm{}), .stream = stream}, {.reads = beyond});
               }),
               std::logic_error);
}

// Two streams on one device and ops that a test links into a cycle.
struct CycleCase {
  SmallGraph small;
  DeviceId device = small.builder.add_device();
  StreamId x = small.stream(device, true), y = small.stream(device);
  IssuerId host = small.builder.add_issuer({.device = device});
};

TEST(FindCycle, ADagHasNone) {
  CycleCase c;
  const OpId a = c.small.op(c.x, 1), b = c.small.op(c.y, 1, {.after = {{a}}});
  c.small.op(c.x, 1, {.after = {{b}}});
  EXPECT_TRUE(find_cycle(std::move(c.small.builder).build()).empty());
}

TEST(FindCycle, EdgesOfBothKinds) {
  CycleCase c;
  c.small.op(c.x, 1);
  const OpId a = c.small.op(c.x, 1), b = c.small.op(c.y, 1, {.after = {{a}}});
  c.small.builder.add_edge(a, {.from = b, .kind = EdgeKind::kStartToStart});
  EXPECT_THAT(find_cycle(std::move(c.small.builder).build()), ElementsAre(a, b));
}

TEST(FindCycle, AnOpThatWaitsForItself) {
  CycleCase c;
  const OpId a = c.small.op(c.x, 1);
  c.small.builder.add_edge(a, {.from = a});
  EXPECT_THAT(find_cycle(std::move(c.small.builder).build()), ElementsAre(a));
}

TEST(FindCycle, StreamOrderUnlessAnyReadyOpMayStart) {
  for (const bool any_ready_op : {false, true}) {
    SmallGraph small;
    const DeviceId device = small.builder.add_device();
    const StreamId stream = small.builder.add_stream({.device = device, .kind = {}, .any_ready_op = any_ready_op});
    const OpId a = small.op(stream, 1), b = small.op(stream, 1);
    small.builder.add_edge(a, {.from = b});  // a is before b in its stream
    const std::vector<OpId> cycle = find_cycle(std::move(small.builder).build());
    if (any_ready_op) {
      EXPECT_TRUE(cycle.empty());
    } else {
      EXPECT_THAT(cycle, ElementsAre(a, b));
    }
  }
}

TEST(FindCycle, AnOpMayWaitForOneThatIsLaunchedLater) {
  CycleCase c;
  const OpId a = c.small.op(c.x, 1, {.issuer = c.host}), b = c.small.op(c.y, 1, {.issuer = c.host});
  c.small.builder.add_edge(a, {.from = b});
  EXPECT_TRUE(find_cycle(std::move(c.small.builder).build()).empty());
}

TEST(FindCycle, IssueAfterAnOpThatIsLaunchedLater) {
  CycleCase c;
  // The host launches b when d has ended, and launches d after b: neither comes. a and the op between them are not to blame.
  c.small.op(c.x, 1, {.issuer = c.host});
  const OpId d{3};
  const OpId b = c.small.op(c.y, 1, {.issue_after = {d}, .issuer = c.host});
  c.small.op(StreamId{0}, 1);
  ASSERT_EQ(c.small.op(c.x, 1, {.issuer = c.host}), d);
  EXPECT_THAT(find_cycle(std::move(c.small.builder).build()), ElementsAre(b, d));
}

TEST(FindCycle, OppositeOrdersOfTwoRendezvous) {
  SmallGraph small;
  const StreamId left = small.stream(small.builder.add_device()), right = small.stream(small.builder.add_device());
  const auto part = [](StreamId stream) { return std::vector<OpPart>{{.stream = stream}}; };
  const Collective transfer{.kind = CollectiveKind::kSendReceive, .ranks = 2};
  const OpId a = small.add(left, transfer, {}, part(right)), b = small.add(right, transfer, {}, part(left));
  const OpGraph in_order = std::move(small.builder).build();
  EXPECT_TRUE(find_cycle(in_order).empty());
  // One order of all ops gives both streams one order; an edge against it is the deadlock.
  SmallGraph opposite;
  const StreamId near = opposite.stream(opposite.builder.add_device()), far = opposite.stream(opposite.builder.add_device());
  opposite.add(near, transfer, {}, part(far));
  opposite.add(far, transfer, {}, part(near));
  opposite.builder.add_edge(a, {.from = b});
  EXPECT_THAT(find_cycle(std::move(opposite.builder).build()), ElementsAre(a, b));
}

}  // namespace
}  // namespace stepsim
