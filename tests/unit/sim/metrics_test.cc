#include "sim/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/simulate.h"
#include "tests/unit/sim/small_graph.h"

namespace stepsim {
namespace {

using ::testing::ElementsAre;

Duration ps(std::int64_t count) { return Duration(count); }

// Buckets of phases: 1 ahead, 2 back. Copy waits: 0 before ahead, 1 before back, 2 tail.
PhaseMeaning ahead_and_back() {
  return {.copy_wait_of_bucket = {0, 0, 1}, .copy_out_first_is_tail = {false, false, true}, .tail = 2, .copy_waits = 3};
}

SmallOp ahead(SmallOp op = {}) {
  op.phase = "ahead";
  op.phase_bucket = 1;
  return op;
}
SmallOp back(SmallOp op = {}) {
  op.phase = "back";
  op.phase_bucket = 2;
  return op;
}

struct OneDevice {
  SmallGraph small;
  DeviceId device = small.builder.add_device();
  StreamId compute = small.stream(device, true), side = small.stream(device);

  TimePartition partition(const Machine& machine = plain_machine(2)) {
    const GivenCostModel costs = small.costs();
    const OpGraph graph = std::move(small.builder).build();
    const StepResult result = simulate(graph, machine, costs);
    EXPECT_FALSE(result.deadlock.has_value());
    const TimePartition parts = time_partition(graph, result, ahead_and_back());
    EXPECT_EQ(parts.total(), result.end);
    return parts;
  }
};

TEST(TimePartition, BusyByPhase) {
  OneDevice one;
  one.small.op(one.compute, 3, ahead());
  one.small.op(one.compute, 5, back());
  one.small.op(one.compute, 4, ahead());
  const TimePartition parts = one.partition();
  EXPECT_EQ(parts.device, one.device);
  EXPECT_THAT(parts.busy, ElementsAre(ps(0), ps(7), ps(5)));
}

TEST(TimePartition, ContentionIsTakenFromBusy) {
  OneDevice one;
  const std::vector<Load> half = {{.resource = ResourceId{0}, .fraction_2e30 = kFullLoad}};
  one.small.op(one.compute, 10, ahead({.loads = half}));
  one.small.op(one.side, 10, {.loads = half});
  Machine machine = plain_machine(1);
  machine.resources.push_back({.name = "shared", .kind = "sm", .device = {}});
  const TimePartition parts = one.partition(machine);
  EXPECT_THAT(parts.busy, ElementsAre(ps(0), ps(10)));  // two that load one resource fully run at half speed: 20 for 10
  EXPECT_EQ(parts.contention, ps(10));
}

TEST(TimePartition, CopiesAreExposedByWhatWaits) {
  OneDevice one;
  const OpId in = one.small.op(one.side, 7, {}, Given::Class::kCopyToDevice);
  const OpId a = one.small.op(one.compute, 3, ahead({.after = {{in}}}));                       // waits 0-7
  const OpId more = one.small.op(one.side, 5, {.after = {{a}}}, Given::Class::kCopyToDevice);  // 10-15
  one.small.op(one.compute, 1, back({.after = {{more}}}));                                     // waits 10-15
  const TimePartition parts = one.partition();
  EXPECT_THAT(parts.exposed_copy, ElementsAre(ps(7), ps(5), ps(0)));
  EXPECT_EQ(parts.idle, ps(0));
}

TEST(TimePartition, CopiesOutBeforeTheFirstOpOfAPhaseAndAtTheEndAreTail) {
  OneDevice one;
  const OpId a = one.small.op(one.compute, 3, ahead());
  const OpId out = one.small.op(one.side, 5, {.after = {{a}}}, Given::Class::kCopyToHost);    // 3-8
  const OpId b = one.small.op(one.compute, 1, back({.after = {{out}}}));                      // the first of its phase waits 5
  const OpId again = one.small.op(one.side, 4, {.after = {{b}}}, Given::Class::kCopyToHost);  // 9-13
  const OpId c = one.small.op(one.compute, 2, back({.after = {{again}}}));                    // not the first: waits 4
  one.small.op(one.side, 6, {.after = {{c}}}, Given::Class::kCopyToHost);                     // 15-21: at the end
  const TimePartition parts = one.partition();
  EXPECT_THAT(parts.exposed_copy, ElementsAre(ps(0), ps(4), ps(11)));
  EXPECT_THAT(parts.busy, ElementsAre(ps(0), ps(3), ps(3)));
}

TEST(TimePartition, CollectivesByKind) {
  OneDevice one;
  const OpId a = one.small.op(one.compute, 2, ahead());
  const OpId gather = one.small.op(one.side, 6, {.after = {{a}}, .kind = "gather", .kind_bucket = 3}, Given::Class::kCollective);
  one.small.op(one.compute, 3, ahead());                       // hides 3 of it
  one.small.op(one.compute, 1, ahead({.after = {{gather}}}));  // waits 5-8
  SmallOp reduce = ahead();
  reduce.kind = "reduce";
  reduce.kind_bucket = 4;
  one.small.op(one.compute, 4, reduce, Given::Class::kCollective);  // on the compute stream itself
  const TimePartition parts = one.partition();
  EXPECT_THAT(parts.exposed_collective, ElementsAre(ps(0), ps(0), ps(0), ps(3), ps(4)));
  EXPECT_EQ(parts.busy[1], ps(6));
}

TEST(TimePartition, HostAndIdle) {
  OneDevice one;
  const IssuerId host = one.small.builder.add_issuer({.device = one.device});
  one.small.op(one.compute, 1, ahead({.issuer = host, .issue = 5}));  // launched at 5
  one.small.op(one.compute, 1, ahead({.issuer = host, .issue = 7}));  // at 12
  // Two devices-worth of work on a stream that is no compute stream: nothing that has a name.
  const OpId beside = one.small.op(one.side, 20);
  one.small.op(one.compute, 1, ahead({.after = {{beside}}}));  // waits 13-20
  const TimePartition parts = one.partition();
  EXPECT_EQ(parts.host, ps(5 + 6));
  EXPECT_EQ(parts.idle, ps(7));
  EXPECT_EQ(parts.busy[1], ps(3));
}

TEST(TimePartition, WaitsAreFollowedBackwards) {
  OneDevice one;
  // The op at the end waits for a copy (16-20), the copy for a collective (10-16), that for the first op's copy (2-10).
  const OpId a = one.small.op(one.compute, 2, ahead());
  const OpId out = one.small.op(one.side, 8, {.after = {{a}}}, Given::Class::kCopyToHost);
  const StreamId third = one.small.stream(one.device);
  const OpId gather = one.small.op(third, 6, {.after = {{out}}, .kind = "gather", .kind_bucket = 1}, Given::Class::kCollective);
  const OpId in = one.small.op(one.side, 4, {.after = {{gather}}}, Given::Class::kCopyToDevice);
  one.small.op(one.compute, 1, ahead({.after = {{in}}}));
  const TimePartition parts = one.partition();
  EXPECT_THAT(parts.exposed_copy, ElementsAre(ps(8 + 4), ps(0), ps(0)));
  EXPECT_THAT(parts.exposed_collective, ElementsAre(ps(0), ps(6)));
}

TEST(TimePartition, AWaitForAQueueIsAWaitForItsHolder) {
  OneDevice one;
  const QueueId engine = one.small.builder.add_queue({.device = one.device, .kind = {}});
  const StreamId other = one.small.stream(one.device);
  one.small.op(one.side, 9, {.queues = {engine}, .kind = "gather", .kind_bucket = 1}, Given::Class::kCollective);  // 0-9
  const OpId in = one.small.op(other, 4, {.queues = {engine}}, Given::Class::kCopyToDevice);                       // 9-13
  one.small.op(one.compute, 1, ahead({.after = {{in}}}));
  const TimePartition parts = one.partition();
  EXPECT_THAT(parts.exposed_collective, ElementsAre(ps(0), ps(9)));
  EXPECT_EQ(parts.exposed_copy[0], ps(4));
}

struct TwoDevices {
  SmallGraph small;
  DeviceId left = small.builder.add_device(), right = small.builder.add_device();
  StreamId first = small.stream(left, true), second = small.stream(right, true);
};

TEST(TimePartition, AnotherDeviceIsABubble) {
  TwoDevices two;
  const OpId a = two.small.op(two.first, 6, ahead());
  two.small.op(two.second, 4, ahead({.after = {{a}}}));
  const GivenCostModel costs = two.small.costs();
  const OpGraph graph = std::move(two.small.builder).build();
  const TimePartition parts = time_partition(graph, simulate(graph, plain_machine(2), costs), ahead_and_back());
  EXPECT_EQ(parts.device, two.right);  // ends at 10, the left one at 6
  EXPECT_EQ(parts.bubble, ps(6));
  EXPECT_EQ(parts.busy[1], ps(4));
}

TEST(TimePartition, ARendezvousThatWaitsForItsPeerIsABubble) {
  TwoDevices two;
  two.small.op(two.first, 6, ahead());
  const std::vector<OpPart> parts_of_transfer = {{.stream = two.first}};
  two.small.rows.push_back({.fixed = ps(0), .alone = ps(3)});
  const Given transfer{.index = 1, .op_class = Given::Class::kPointToPoint};
  two.small.add(two.second, transfer, {.kind = "transfer", .kind_bucket = 2}, parts_of_transfer);  // there from 0, runs 6-9
  two.small.op(two.second, 2, ahead());
  const GivenCostModel costs = two.small.costs();
  const OpGraph graph = std::move(two.small.builder).build();
  const TimePartition parts = time_partition(graph, simulate(graph, plain_machine(2), costs), ahead_and_back());
  EXPECT_EQ(parts.device, two.right);
  EXPECT_EQ(parts.bubble, ps(6));
  EXPECT_THAT(parts.exposed_collective, ElementsAre(ps(0), ps(0), ps(3)));
  EXPECT_EQ(parts.total(), ps(11));
}

TEST(TimePartition, BehindATransferWhoseSenderStillComputes) {
  TwoDevices two;
  two.small.op(two.first, 6, ahead());
  const StreamId send = two.small.stream(two.left), receive = two.small.stream(two.right);
  two.small.rows.push_back({.fixed = ps(0), .alone = ps(3)});
  const std::vector<OpPart> receiver = {{.stream = receive}};
  const Given transfer{.index = 1, .op_class = Given::Class::kPointToPoint};
  const OpId moved = two.small.add(send, transfer, {.after = {{OpId{0}}}, .kind = "transfer", .kind_bucket = 1}, receiver);
  two.small.op(two.second, 2, ahead({.after = {{moved}}}));
  const GivenCostModel costs = two.small.costs();
  const OpGraph graph = std::move(two.small.builder).build();
  const TimePartition parts = time_partition(graph, simulate(graph, plain_machine(2), costs), ahead_and_back());
  EXPECT_EQ(parts.bubble, ps(6));  // while the sender computes
  EXPECT_EQ(parts.exposed_collective[1], ps(3));
  EXPECT_EQ(parts.busy[1], ps(2));
}

TEST(TimePartition, TheLowestOfDevicesThatEndTogetherIsCritical) {
  TwoDevices two;
  two.small.op(two.second, 6, ahead());
  two.small.op(two.first, 6, ahead());
  const GivenCostModel costs = two.small.costs();
  const OpGraph graph = std::move(two.small.builder).build();
  EXPECT_EQ(time_partition(graph, simulate(graph, plain_machine(2), costs), {}).device, two.left);
}

TEST(TimePartition, OfNothing) {
  const OpGraph graph = OpGraphBuilder().build();
  EXPECT_EQ(time_partition(graph, {}, {}).total(), ps(0));
}

TEST(ResourceUse, BusyAndLoad) {
  OneDevice one;
  const QueueId engine = one.small.builder.add_queue({.device = one.device, .kind = {}, .slots = 2});
  const auto load = [](double u, std::uint16_t peers) {
    return std::vector<Load>{{.resource = ResourceId{0}, .fraction_2e30 = load_fraction(u), .peers = peers}};
  };
  one.small.op(one.compute, 10, {.fixed = 2, .loads = load(0.25, 1)});                    // loads 2-12
  one.small.op(one.side, 4, {.queues = {engine}, .fixed = 10, .loads = load(0.125, 2)});  // loads 10-14, holds the queue 0-14
  Machine machine = plain_machine(1);
  machine.resources.push_back({.name = "shared", .kind = "sm", .device = {}});
  const GivenCostModel costs = one.small.costs();
  const OpGraph graph = std::move(one.small.builder).build();
  const std::vector<ResourceUse> uses = resource_use(graph, machine, costs, simulate(graph, machine, costs));
  ASSERT_EQ(uses.size(), 2u);
  EXPECT_EQ(uses[0].resource, ResourceId{0});
  EXPECT_EQ(uses[0].busy, ps(12));
  EXPECT_DOUBLE_EQ(uses[0].load_s, (0.25 * 10 + 0.125 * 2 * 4) * 1e-12);
  EXPECT_EQ(uses[1].queue, engine);
  EXPECT_EQ(uses[1].busy, ps(14));
  EXPECT_DOUBLE_EQ(uses[1].load_s, 14 * 0.5 * 1e-12);  // one of two slots
}

}  // namespace
}  // namespace stepsim
