#include "sim/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

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

TEST(TimePartition, AnObserverIsToldWhatEachIntervalIsSpentOn) {
  // Left computes 0-6. Right: a copy 6-10 when left is done, its host launches `work` at 12 (12-15), idle for a kernel beside it until 20,
  // then `last` 20-21.
  TwoDevices two;
  const StreamId side = two.small.stream(two.right);
  const IssuerId host = two.small.builder.add_issuer({.device = two.right});
  const OpId left = two.small.op(two.first, 6, ahead());
  const OpId copy = two.small.op(side, 4, {.after = {{left}}}, Given::Class::kCopyToDevice);
  const OpId work = two.small.op(two.second, 3, ahead({.issue_after = {copy}, .issuer = host, .issue = 2}));
  const OpId beside = two.small.op(side, 10);  // 10-20
  const OpId last = two.small.op(two.second, 1, ahead({.after = {{beside}}}));
  const GivenCostModel costs = two.small.costs();
  const OpGraph graph = std::move(two.small.builder).build();
  const StepResult result = simulate(graph, plain_machine(2), costs);
  using On = TimeSpent::On;
  std::vector<std::tuple<On, OpId, std::int64_t, std::int64_t>> told;
  time_partition(graph, result, ahead_and_back(),
                 [&](const TimeSpent& each) { told.emplace_back(each.on, each.op, each.from.count(), each.until.count()); });
  // The waits before `work` and `last` are told backwards.
  EXPECT_THAT(told, ElementsAre(std::tuple(On::kLaunch, OpId{}, 10, 12), std::tuple(On::kOp, copy, 6, 10),
                                std::tuple(On::kDevices, left, 0, 6), std::tuple(On::kRunning, work, 12, 15),
                                std::tuple(On::kOp, beside, 15, 20), std::tuple(On::kRunning, last, 20, 21)));
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

// Stages in a line, each with a stream to receive on and one to send on. A transfer's first part is the receiver's.
struct Stages {
  SmallGraph small;
  std::vector<DeviceId> devices;
  std::vector<StreamId> compute, receive, send;

  explicit Stages(int count) {
    for (int i = 0; i < count; ++i) {
      devices.push_back(small.builder.add_device());
      compute.push_back(small.stream(devices.back(), true));
      receive.push_back(small.stream(devices.back()));
      send.push_back(small.stream(devices.back()));
    }
  }
  OpId transfer(std::size_t to, OpId made_by, std::int64_t duration) {
    small.rows.push_back({.fixed = ps(0), .alone = ps(duration)});
    const Given work{.index = static_cast<std::int32_t>(small.rows.size()) - 1, .op_class = Given::Class::kPointToPoint};
    const OpPart sender[] = {{.stream = send[to - 1], .queues = {}}};
    return small.add(receive[to], work, {.after = {{made_by}}, .kind = "pp", .kind_bucket = 2}, sender);
  }
  OpId everywhere(const std::vector<StreamId>& streams, std::int64_t duration, const SmallOp& more) {
    small.rows.push_back({.fixed = ps(0), .alone = ps(duration)});
    const Given work{.index = static_cast<std::int32_t>(small.rows.size()) - 1, .op_class = Given::Class::kCollective};
    std::vector<OpPart> further;
    for (std::size_t i = 1; i < streams.size(); ++i) further.push_back({.stream = streams[i], .queues = {}});
    return small.add(streams[0], work, more, further);
  }
  TimePartition partition() {
    const GivenCostModel costs = small.costs();
    const Machine machine = plain_machine(static_cast<std::int32_t>(devices.size()));
    const OpGraph graph = std::move(small.builder).build();
    const StepResult result = simulate(graph, machine, costs);
    EXPECT_FALSE(result.deadlock.has_value());
    const TimePartition parts = time_partition(graph, result, ahead_and_back());
    EXPECT_EQ(parts.total(), result.end);
    return parts;
  }
};

TEST(TimePartition, AReceiverLaunchedTransferWaitsForItsSender) {
  // Sender 0-5 and 5-12 on its compute stream, transfer 12-15, the receiver's op 15-22; another received meanwhile (5-8) does not matter.
  Stages stages(2);
  const OpId early = stages.small.op(stages.compute[0], 5, ahead());
  const OpId late = stages.small.op(stages.compute[0], 7, ahead());
  stages.transfer(1, early, 3);
  const OpId moved = stages.transfer(1, late, 3);
  stages.small.op(stages.compute[1], 7, ahead({.after = {{moved}}}));
  const TimePartition parts = stages.partition();
  EXPECT_EQ(parts.device, stages.devices[1]);
  EXPECT_EQ(parts.bubble, ps(12));
  EXPECT_THAT(parts.exposed_collective, ElementsAre(ps(0), ps(0), ps(3)));
  EXPECT_EQ(parts.busy[1], ps(7));
  EXPECT_EQ(parts.idle, ps(0));
}

TEST(TimePartition, ATransferThatWaitsForTheOneBeforeItIsATransfer) {
  // Both made at 5; the second has to wait on both streams: 5-9, 9-13.
  Stages stages(2);
  const OpId made = stages.small.op(stages.compute[0], 5, ahead());
  stages.transfer(1, made, 4);
  const OpId second = stages.transfer(1, made, 4);
  stages.small.op(stages.compute[1], 2, ahead({.after = {{second}}}));
  const TimePartition parts = stages.partition();
  EXPECT_EQ(parts.bubble, ps(5));
  EXPECT_EQ(parts.exposed_collective[2], ps(8));
}

TEST(TimePartition, ABubbleReachesBackThroughSeveralStages) {
  // 0-6 on the first, 6-8 moved, 8-13 on the second, 13-15 moved, 15-19 on the third, 19-21 moved, 21-31 on the fourth, which is critical:
  // 6 + 5 + 4 computed and two transfers of 2 moved elsewhere; the last transfer has a part here.
  Stages stages(4);
  OpId before = stages.small.op(stages.compute[0], 6, ahead());
  before = stages.small.op(stages.compute[1], 5, ahead({.after = {{stages.transfer(1, before, 2)}}}));
  before = stages.small.op(stages.compute[2], 4, ahead({.after = {{stages.transfer(2, before, 2)}}}));
  stages.small.op(stages.compute[3], 10, ahead({.after = {{stages.transfer(3, before, 2)}}}));
  const TimePartition parts = stages.partition();
  EXPECT_EQ(parts.device, stages.devices[3]);
  EXPECT_EQ(parts.bubble, ps(19));
  EXPECT_THAT(parts.exposed_collective, ElementsAre(ps(0), ps(0), ps(2)));
  EXPECT_EQ(parts.busy[1], ps(10));
}

TEST(TimePartition, AHostThatWaitedForAnotherDeviceIsABubbleUntilItIsFreed) {
  // The first computes 0-9, the transfer moves 9-11. The second's host launches its op when that is over, 4 later: 11-15, op 15-20.
  Stages stages(2);
  const OpId made = stages.small.op(stages.compute[0], 9, ahead());
  const OpId moved = stages.transfer(1, made, 2);
  const IssuerId host = stages.small.builder.add_issuer({.device = stages.devices[1]});
  stages.small.op(stages.compute[1], 5, ahead({.issue_after = {moved}, .issuer = host, .issue = 4}));
  const TimePartition parts = stages.partition();
  EXPECT_EQ(parts.bubble, ps(9));
  EXPECT_THAT(parts.exposed_collective, ElementsAre(ps(0), ps(0), ps(2)));
  EXPECT_EQ(parts.host, ps(4));
  EXPECT_EQ(parts.busy[1], ps(5));
}

TEST(TimePartition, ACollectiveOfAllDevicesWaitsForTheLastOfThem) {
  // All end at 20 + 4: the first device is the critical one. It computes 0-3 and then waits until 20, where the last one is done.
  for (const bool on_compute_streams : {true, false}) {
    Stages stages(3);
    std::vector<Edge> made;
    for (std::size_t i = 0; i < 3; ++i) {
      made.push_back({stages.small.op(stages.compute[i], std::vector<std::int64_t>{3, 20, 11}[i], back())});
    }
    SmallOp norm = back({.after = made, .kind = "norm", .kind_bucket = 1});
    stages.everywhere(on_compute_streams ? stages.compute : stages.receive, 4, norm);
    const TimePartition parts = stages.partition();
    EXPECT_EQ(parts.device, stages.devices[0]);
    EXPECT_EQ(parts.busy[2], ps(3));
    EXPECT_EQ(parts.bubble, ps(17));
    EXPECT_EQ(parts.exposed_collective[1], ps(4));
    EXPECT_EQ(parts.idle, ps(0));
  }
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
