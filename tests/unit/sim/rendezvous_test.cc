// Ops with several parts: point-to-point transfers and grouped communication. Times in picoseconds.
#include <gtest/gtest.h>

#include "sim/run_plan.h"
#include "simulated.h"

namespace stepsim {
namespace {

struct Fixture {
  SmallGraph small;
  DeviceId left = small.builder.add_device(), right = small.builder.add_device();
  StreamId left_compute = small.stream(left, true), right_compute = small.stream(right, true);
  StreamId left_link = small.stream(left), right_link = small.stream(right);

  // A transfer with one part on each device.
  OpId transfer(StreamId from, StreamId to, std::int64_t duration, const SmallOp& more = {}, std::span<const QueueId> queues = {}) {
    small.rows.push_back({.fixed = Duration(more.fixed), .alone = Duration(duration), .issue = Duration(more.issue), .loads = more.loads});
    const OpPart further[] = {{.stream = to, .queues = queues}};
    return small.add(from, Given{.index = static_cast<std::int32_t>(small.rows.size()) - 1, .op_class = Given::Class::kPointToPoint}, more,
                     further);
  }
};

TEST(Rendezvous, StartsWhenTheLastPartIsThere) {
  // a = 30 on the left, b = 50 on the right, fixed 4, W = 100: max(a, b) + 4 + 100 on both.
  Fixture f;
  f.small.op(f.left_link, 30);
  f.small.op(f.right_link, 50);
  const OpId transfer = f.transfer(f.left_link, f.right_link, 100, {.fixed = 4});
  const OpId left = f.small.op(f.left_link, 1), right = f.small.op(f.right_link, 1);
  const Simulated step = simulated(std::move(f.small), small_machine(2, 0));
  EXPECT_EQ(step.start(transfer), 50);
  EXPECT_EQ(step.end(transfer), 154);
  EXPECT_EQ(step.run(transfer).slowed.count(), 0);
  EXPECT_EQ(step.start(left), 154);  // all parts end together
  EXPECT_EQ(step.start(right), 154);
  ASSERT_EQ(step.result.parts.size(), 2u);
  EXPECT_EQ(step.result.parts[0].occupied.count(), 30);
  EXPECT_EQ(step.result.parts[1].part, 1);
  EXPECT_EQ(step.result.parts[1].occupied.count(), 50);
}

TEST(Rendezvous, AReceiverIsInPlaceWhileItsSenderComputes) {
  // The edge comes from the sender's device: it holds back that part only.
  Fixture f;
  const OpId forward = f.small.op(f.left_compute, 40);
  const OpId transfer = f.transfer(f.left_link, f.right_link, 10, {.after = {{forward}}});
  const Simulated step = simulated(std::move(f.small), small_machine(2, 0));
  EXPECT_EQ(step.end(transfer), 50);
  EXPECT_EQ(step.result.parts[0].occupied.count(), 40);
  EXPECT_EQ(step.result.parts[1].occupied.count(), 0);
}

TEST(Rendezvous, AnEdgeFromAThirdDeviceConcernsAllParts) {
  Fixture f;
  const StreamId third = f.small.stream(f.small.builder.add_device());
  const OpId elsewhere = f.small.op(third, 40);
  f.transfer(f.left_link, f.right_link, 10, {.after = {{elsewhere}}});
  const Simulated step = simulated(std::move(f.small), small_machine(3, 0));
  EXPECT_EQ(step.result.parts[0].occupied.count(), 40);
  EXPECT_EQ(step.result.parts[1].occupied.count(), 40);
}

TEST(Rendezvous, AWaitingPartLoadsItsMultiprocessors) {
  // The right part spins from 0 to 80 with 1/8 of the right SMs, so a full kernel there runs at 7/8: 70 of work end at 80. From 80 on the
  // transfer (fixed 8: loads nothing; then W = 40 at 1/8) slows the next kernel: W = 105, 8 full, 40 at 7/8 = 35, 62 full: 80 + 8 + 40
  // + 62.
  Fixture f;
  Load spin{.resource = ResourceId{0}, .fraction_2e30 = load_fraction(0.125), .while_waiting = true};
  f.small.op(f.left_link, 80);
  const OpId transfer = f.transfer(f.left_link, f.right_link, 40, {.fixed = 8, .loads = {spin}});
  const OpId beside = f.small.op(f.right_compute, 70, {.loads = {load_of(0, 1)}}),
             next = f.small.op(f.right_compute, 105, {.loads = {load_of(0, 1)}});
  const Simulated step = simulated(std::move(f.small), small_machine(2, 1));
  EXPECT_EQ(step.end(beside), 80);
  EXPECT_EQ(step.start(transfer), 80);
  EXPECT_EQ(step.end(transfer), 128);
  EXPECT_EQ(step.end(next), 190);
}

TEST(Rendezvous, OtherLoadsBeginWithTheTransfer) {
  // The link load is not one of waiting: a copy on the link is not slowed until the transfer starts at 60, then both at a half.
  // Copy W = 100: 40 left at 60, ends at 140; transfer W = 50: 40 done by 140, ends at 150.
  Fixture f;
  f.small.op(f.left_link, 60);
  const OpId transfer = f.transfer(f.left_link, f.right_link, 50, {.loads = {load_of(0, 1)}});
  const OpId copy = f.small.op(f.right_compute, 100, {.loads = {load_of(0, 1)}});
  const Simulated step = simulated(std::move(f.small), small_machine(2, 1));
  EXPECT_EQ(step.end(copy), 140);
  EXPECT_EQ(step.end(transfer), 150);
}

// Costs that depend on the device, as those of unlike GPUs do.
class TwoSpeeds : public CostModel {
 public:
  Cost cost(const OpWork&, DeviceId device, TransferSide) const override {
    if (device.index == 0) return {.fixed = Duration(3), .alone = Duration(20), .issue = Duration(0), .loads = left_};
    return {.fixed = Duration(7), .alone = Duration(10), .issue = Duration(0), .loads = right_};
  }

 private:
  std::vector<Load> left_{{.resource = ResourceId{0}, .fraction_2e30 = kFullLoad / 2}};
  std::vector<Load> right_{{.resource = ResourceId{0}, .fraction_2e30 = kFullLoad},
                           {.resource = ResourceId{1}, .fraction_2e30 = kFullLoad}};
};

TEST(Rendezvous, TakesTheMaximaAndTheUnionOfItsParts) {
  // fixed max(3, 7), alone max(20, 10), loads 1 of resource 0 and 1 of resource 1: beside an op of device 0 (1/2 of resource 0, 3 + 20):
  // that one loads from 3, alone until 7 (4 done), then d = 1/2 and 1: x = 2t and t, 1/2 2t + t = 1: t = 1/2, so it stays at full speed and
  // ends at 23; the transfer has 16 / 2 = 8 done by then and ends at 35.
  SmallGraph small;
  const DeviceId left = small.builder.add_device(), right = small.builder.add_device();
  const StreamId a = small.stream(left), b = small.stream(right), c = small.stream(left);
  const OpPart further[] = {{.stream = b, .queues = {}}};
  const OpId transfer = small.add(a, Given{}, {}, further);
  const OpId other = small.add(c, Given{}, {});
  const OpGraph graph = std::move(small.builder).build();
  const Simulated step{.graph = graph, .result = simulate(graph, small_machine(2, 2), TwoSpeeds())};
  EXPECT_EQ(step.end(other), 23);
  EXPECT_EQ(step.end(transfer), 35);
  EXPECT_EQ(step.run(transfer).slowed.count(), 8);
}

TEST(Rendezvous, AGroupedSendAndReceiveIsOneOp) {
  // Both directions in one op of three parts; the middle one is held up until 25.
  Fixture f;
  const StreamId third = f.small.stream(f.small.builder.add_device());
  f.small.op(f.right_link, 25);
  f.small.rows.push_back({.fixed = Duration(0), .alone = Duration(10), .issue = Duration(0), .loads = {}});
  const OpPart further[] = {{.stream = f.right_link, .queues = {}}, {.stream = third, .queues = {}}};
  const OpId grouped = f.small.add(f.left_link, Given{.index = 1}, {}, further);
  const Simulated step = simulated(std::move(f.small), small_machine(3, 0));
  EXPECT_EQ(step.end(grouped), 35);
  ASSERT_EQ(step.result.parts.size(), 3u);
  EXPECT_EQ(step.result.parts[1].occupied.count(), 25);
  EXPECT_EQ(step.result.parts[2].occupied.count(), 0);
}

TEST(Rendezvous, OppositeOrdersDeadlockAndAreNamed) {
  // One communicator a device. The left device comes to `down` first, the right one to `up` first: each holds what the other needs.
  Fixture f;
  const QueueId left = f.small.builder.add_queue({.device = f.left}), right = f.small.builder.add_queue({.device = f.right});
  const StreamId left_up = f.small.stream(f.left), right_up = f.small.stream(f.right);
  const OpId late = f.small.op(f.left_compute, 10), also_late = f.small.op(f.right_compute, 10);
  f.small.op(left_up, 10);
  f.small.op(f.right_link, 10);
  const QueueId on_left[] = {left}, on_right[] = {right};
  const OpId down = f.transfer(f.left_link, f.right_link, 5, {.queues = {left}}, on_right);
  const OpId up = f.transfer(right_up, left_up, 5, {.queues = {right}}, on_left);
  const Simulated step = simulated(std::move(f.small), small_machine(2, 0));
  ASSERT_TRUE(step.result.deadlock);
  EXPECT_EQ(step.end(late), 10);
  EXPECT_EQ(step.end(also_late), 10);
  EXPECT_EQ(step.result.deadlock->first_waiting, down);
  EXPECT_EQ(step.result.deadlock->holders, std::vector<OpId>{up});
  EXPECT_EQ(step.result.deadlock->cycle, (std::vector<OpId>{down, up}));
  EXPECT_TRUE(step.result.parts.empty());  // neither ran
}

TEST(Rendezvous, TheSameTransfersInOneOrderRun) {
  // As above, but the right device comes to `down` first as well: `down` from 0 to 5, `up` when both are at it, from 10 to 15.
  Fixture f;
  const QueueId left = f.small.builder.add_queue({.device = f.left}), right = f.small.builder.add_queue({.device = f.right});
  const StreamId left_up = f.small.stream(f.left), right_up = f.small.stream(f.right);
  f.small.op(left_up, 10);
  const QueueId on_left[] = {left}, on_right[] = {right};
  const OpId down = f.transfer(f.left_link, f.right_link, 5, {.queues = {left}}, on_right);
  const OpId up = f.transfer(right_up, left_up, 5, {.queues = {right}}, on_left);
  const Simulated step = simulated(std::move(f.small), small_machine(2, 0));
  EXPECT_FALSE(step.result.deadlock);
  EXPECT_EQ(step.end(down), 5);
  EXPECT_EQ(step.end(up), 15);
}

TEST(Rendezvous, TwoPartsOnOneSlotWaitForThemselves) {
  Fixture f;
  const QueueId queue = f.small.builder.add_queue({.device = f.left});
  const QueueId same[] = {queue};
  const OpId transfer = f.transfer(f.left_link, f.left_compute, 5, {.queues = {queue}}, same);
  const Simulated step = simulated(std::move(f.small), small_machine(2, 0));
  ASSERT_TRUE(step.result.deadlock);
  EXPECT_EQ(step.result.deadlock->cycle, std::vector<OpId>{transfer});
}

TEST(Rendezvous, AMarkerWithPartsIsABarrier) {
  Fixture f;
  const OpId slow = f.small.op(f.right_compute, 30);
  f.small.op(f.left_compute, 10);
  const OpPart further[] = {{.stream = f.right_compute, .queues = {}}};
  const OpId barrier = f.small.add(f.left_compute, Marker{}, {}, further);
  const OpId next = f.small.op(f.left_compute, 5);
  const Simulated step = simulated(std::move(f.small), small_machine(2, 0));
  EXPECT_EQ(step.end(slow), 30);
  EXPECT_EQ(step.start(barrier), 30);
  EXPECT_EQ(step.start(next), 30);
}

// An op over n devices that waits for one op on each: n successors, not one for each pair.
TEST(Rendezvous, AnOpOverManyDevicesCostsAsMuchAsItsEdges) {
  constexpr std::int32_t kDevices = 4096;
  SmallGraph small;
  std::vector<Edge> before;
  std::vector<OpPart> further;
  StreamId first{};
  for (std::int32_t i = 0; i < kDevices; ++i) {
    const DeviceId device = small.builder.add_device();
    before.push_back({small.op(small.stream(device, true), i + 1)});
    const StreamId group = small.stream(device);
    if (i == 0) first = group;
    if (i > 0) further.push_back({.stream = group, .queues = {}});
  }
  small.rows.push_back({.alone = Duration(10)});
  const OpId all = small.add(first, Given{.index = kDevices, .op_class = Given::Class::kCollective}, {.after = before}, further);
  const GivenCostModel costs = small.costs();
  const OpGraph graph = std::move(small.builder).build();
  const Machine machine = small_machine(kDevices, 0);
  OpCosts rows(graph, machine, costs);
  const RunPlan plan = run_plan(graph, rows);
  EXPECT_EQ(plan.at_end.candidates.size(), static_cast<std::size_t>(kDevices));
  EXPECT_EQ(plan.owned_order.size(), static_cast<std::size_t>(2 * kDevices));  // an op and a part on each
  const StepResult result = simulate(graph, machine, costs);
  EXPECT_EQ(result.end.count(), kDevices + 10);
  ASSERT_EQ(result.parts.size(), static_cast<std::size_t>(kDevices));
  EXPECT_EQ(result.parts[100].occupied.count(), 101);  // each part waits for the op of its device only
  EXPECT_EQ(result.timeline.back().op, all);
}

}  // namespace
}  // namespace stepsim
