#include "sim/list_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/simulate.h"
#include "tests/unit/sim/small_graph.h"

namespace stepsim {
namespace {

using ::testing::ElementsAre;

struct Schedule {
  SmallGraph small;
  DeviceId device = small.builder.add_device();
  StreamId compute = small.stream(device, true), in = small.stream(device);
  std::vector<std::int64_t> estimates;

  OpId work(std::int64_t duration, const SmallOp& more = {}) {
    estimates.push_back(duration);
    return small.op(compute, duration, more);
  }
  OpId copy(std::int64_t duration, const SmallOp& more = {}) {
    estimates.push_back(duration);
    return small.op(in, duration, more, Given::Class::kCopyToDevice);
  }
  std::vector<OpId> scheduled(const ListScheduleLimits& limits) {
    costs = small.costs();
    graph = std::move(small.builder).build();
    const OpEstimate estimate = [this](OpId op) { return estimates[static_cast<std::size_t>(op.index)]; };
    std::vector<OpId> order = list_schedule(graph, estimate, limits);
    graph = with_issue_order(std::move(graph), order);
    return order;
  }
  StepResult run(LedgerRule rule = LedgerRule::kScheduleOrder) const { return simulate(graph, plain_machine(1), costs, {.device = rule}); }

  OpGraph graph;
  GivenCostModel costs{{}};
};

TEST(ListSchedule, ExposedIsTheCopyLessWhatCoversIt) {
  Schedule s;
  const OpId copy = s.copy(100);
  const OpId consumer = s.work(10, {.after = {{copy}}});
  const OpId one = s.work(30), two = s.work(30);
  EXPECT_THAT(s.scheduled({}), ElementsAre(copy, one, two, consumer));
  EXPECT_EQ(s.run().end, TimePoint(100 + 10));  // 60 of 100 covered, 40 exposed: 60 + 40 + 10
}

// A launch that waits for an op must not come before that op's own launch, though nothing else orders the two: the thread would wait for
// ever (a step whose optimizer waits for the gradient norm deadlocked so).
TEST(ListSchedule, WhatALaunchWaitsForComesFirst) {
  Schedule s;
  const IssuerId host = s.small.builder.add_issuer({.device = s.device});
  const OpId copy = s.copy(100, {.issuer = host});
  const OpId consumer = s.work(10, {.after = {{copy}}, .issuer = host});
  const OpId norm = s.work(10, {.after = {{consumer}}, .issuer = host});
  const OpId update = s.work(30, {.issue_after = {norm}, .issuer = host});  // would fill the wait for the copy
  EXPECT_THAT(s.scheduled({}), ElementsAre(copy, consumer, norm, update));
  EXPECT_FALSE(s.run().deadlock);
  EXPECT_EQ(s.run().end, TimePoint(100 + 10 + 10 + 30));
}

TEST(ListSchedule, ACoveredCopyIsNotExposed) {
  Schedule s;
  const OpId copy = s.copy(50);
  const OpId consumer = s.work(10, {.after = {{copy}}});
  const OpId one = s.work(30), two = s.work(30), three = s.work(30);
  // The consumer goes as soon as its copy has ended, in its own place before `three`.
  EXPECT_THAT(s.scheduled({}), ElementsAre(copy, one, two, consumer, three));
  EXPECT_EQ(s.run().end, TimePoint(100));  // the work alone
}

TEST(ListSchedule, BlindEstimatesCoverTooLittle) {
  // As XLA sees it every asynchronous op takes 5,000 units and a kernel 1,000: five kernels before the consumer, whatever the bytes.
  Schedule s;
  const OpId copy = s.copy(100);
  s.estimates.back() = 5000;
  const OpId consumer = s.work(10, {.after = {{copy}}});
  s.estimates.back() = 1000;
  for (int kernel = 0; kernel < 8; ++kernel) {
    s.work(10);
    s.estimates.back() = 1000;
  }
  const std::vector<OpId> order = s.scheduled({});
  EXPECT_EQ(std::find(order.begin(), order.end(), consumer) - order.begin(), 6);  // the copy and five kernels
  EXPECT_EQ(s.run().end, TimePoint(100 + 10 + 30));                               // 50 of 100 covered; three kernels remain
}

// Four sets of 10 are brought in, each for one op of 20; copies take 20.
Schedule four_sets() {
  Schedule s;
  for (int i = 0; i < 4; ++i) {
    const StorageId set = s.small.storage(s.device, 10);
    const OpId copy = s.copy(20, {.writes = {set}});
    s.work(20, {.after = {{copy}}, .reads = {set}});
  }
  return s;
}

TEST(ListSchedule, MemoryLimitIsKept) {
  struct Case {
    std::int64_t limit, end;
  };
  // One set: copies and work take turns, 4 * 40. Two sets: the first copy is exposed, 20 + 4 * 20. Four: the same, with more memory.
  for (const Case& each : {Case{10, 160}, Case{20, 100}, Case{40, 100}}) {
    Schedule s = four_sets();
    s.scheduled({.device_memory = Bytes(each.limit), .asynchronous = {}});
    EXPECT_TRUE(find_cycle(s.graph).empty());
    StepResult result = s.run();
    EXPECT_EQ(memory_peak(s.graph, result, s.device, MemorySpace::kDevice).bytes, Bytes(each.limit));
  }
}

TEST(ListSchedule, WithoutALimitAllCopiesStartAtOnce) {
  Schedule s = four_sets();
  EXPECT_THAT(s.scheduled({}), ElementsAre(OpId{0}, OpId{2}, OpId{4}, OpId{6}, OpId{1}, OpId{3}, OpId{5}, OpId{7}));
  EXPECT_EQ(s.run().end, TimePoint(100));
}

TEST(ListSchedule, InFlightLimitIsKept) {
  Schedule s = four_sets();
  // A second copy starts when the first is waited for: it goes behind the op that waits.
  EXPECT_THAT(s.scheduled({.device_memory = {}, .asynchronous = 1}),
              ElementsAre(OpId{0}, OpId{1}, OpId{2}, OpId{3}, OpId{4}, OpId{5}, OpId{6}, OpId{7}));
}

TEST(ListSchedule, CopiesThatNobodyWaitsForLeaveTheLimitWhenTheyEnd) {
  Schedule s;
  const OpId a = s.work(30);
  const OpId x = s.copy(20, {.after = {{a}}}), y = s.copy(20, {.after = {{a}}});
  const OpId b = s.work(30, {.after = {{a}}}), c = s.work(30, {.after = {{b}}});
  // x runs 30-50; y may be issued when the compute stream has got to 60.
  EXPECT_THAT(s.scheduled({.device_memory = {}, .asynchronous = 1}), ElementsAre(a, x, b, y, c));
}

TEST(ListSchedule, KeepsReadsAndWritesAndMarkersInPlace) {
  Schedule s;
  const StorageId storage = s.small.storage(s.device, 10);
  const OpId copy = s.copy(50);
  const OpId write = s.work(10, {.after = {{copy}}, .writes = {storage}});
  const OpId read = s.work(10, {.reads = {storage}});  // no edge, but it needs what `write` leaves
  s.estimates.push_back(0);
  const OpId fence = s.small.marker(s.compute);
  const OpId behind = s.work(10);
  EXPECT_THAT(s.scheduled({}), ElementsAre(copy, write, read, fence, behind));
}

// A schedule in which only copies may move.
ListScheduleLimits only_copies(const Schedule& s) {
  return {
      .device_memory = {}, .asynchronous = {}, .movable = [&s](OpId op) { return op_class(s.graph.work(op)) == OpClass::kCopyToDevice; }};
}

OpId gather(Schedule& s, std::int64_t duration, const SmallOp& more = {}) {
  s.estimates.push_back(duration);
  return s.small.op(s.small.stream(s.device), duration, more, Given::Class::kCollective);
}

TEST(ListSchedule, NobodyFillsTheWaitForWhatMayNotMove) {
  for (const bool all_move : {true, false}) {
    Schedule s;
    const OpId fixed = gather(s, 100);
    const OpId consumer = s.work(10, {.after = {{fixed}}});
    const OpId one = s.work(30), two = s.work(30);
    const OpId copy = s.copy(60);
    const OpId reader = s.work(10, {.after = {{copy}}});
    // Where all move, one, two and reader fill 70 of the 100. Where only the copy does, it goes to the front: 10 + 30 + 30 cover it.
    const std::vector<OpId> order = s.scheduled(all_move ? ListScheduleLimits{} : only_copies(s));
    if (all_move) {
      EXPECT_THAT(order, ElementsAre(fixed, copy, one, two, reader, consumer));
    } else {
      EXPECT_THAT(order, ElementsAre(copy, fixed, consumer, one, two, reader));
    }
  }
}

TEST(ListSchedule, NothingPassesWhatMayNotMove) {
  for (const bool all_move : {true, false}) {
    Schedule s;
    const OpId copy = s.copy(50);
    const OpId waits = s.work(10, {.after = {{copy}}});
    const OpId near = s.work(20);
    const OpId fixed = gather(s, 5);
    const OpId far = s.work(20);
    // Both would cover 40 of the copy's 50. `far` stands behind the fixed one and stays there.
    const std::vector<OpId> order = s.scheduled(all_move ? ListScheduleLimits{} : only_copies(s));
    if (all_move) {
      EXPECT_THAT(order, ElementsAre(copy, fixed, near, far, waits));
    } else {
      EXPECT_THAT(order, ElementsAre(copy, near, waits, fixed, far));
    }
  }
}

TEST(ListSchedule, WhereNothingMayMoveTheOrderStays) {
  // Two stages under 1F1B with two micro-batches. The first waits for gradients; further forward passes would fill that.
  for (const bool all_move : {true, false}) {
    Schedule s;
    const DeviceId other = s.small.builder.add_device();
    const StreamId last = s.small.stream(other, true);
    const StreamId send = s.small.stream(s.device), receive = s.small.stream(other);
    const auto pass = [&](StreamId stream, const SmallOp& more) {
      s.estimates.push_back(10);
      return s.small.op(stream, 10, more);
    };
    const auto transfer = [&](OpId made) {
      s.estimates.push_back(5);
      s.small.rows.push_back({.fixed = Duration(0), .alone = Duration(5)});
      const Given work{.index = static_cast<std::int32_t>(s.small.rows.size()) - 1, .op_class = Given::Class::kPointToPoint};
      const std::vector<OpPart> receiver = {{.stream = receive, .queues = {}}};
      return s.small.add(send, work, {.after = {{made}}}, receiver);
    };
    std::vector<OpId> order, first_stage;
    OpId gradient{};
    for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
      order.push_back(pass(s.compute, {}));
      first_stage.push_back(order.back());
      if (gradient.valid()) {
        order.push_back(pass(s.compute, {.after = {{gradient}}}));
        first_stage.push_back(order.back());
      }
      order.push_back(transfer(first_stage.at(first_stage.size() - (gradient.valid() ? 2 : 1))));
      order.push_back(pass(last, {.after = {{order.back()}}}));
      gradient = order.back();
    }
    const std::vector<OpId> scheduled = s.scheduled(all_move ? ListScheduleLimits{} : only_copies(s));
    EXPECT_EQ(scheduled == order, !all_move);
  }
}

TEST(ListSchedule, CopiesPassWhatMayNotMove) {
  // The copy's maker runs before the fixed op, its reader behind: it starts as soon as it can, and no memory limit holds it.
  Schedule s;
  const OpId maker = s.work(10);
  const OpId fixed = gather(s, 5, {.after = {{maker}}});
  const OpId covers = s.work(50, {.after = {{fixed}}});
  const OpId copy = s.copy(40, {.after = {{maker}}});
  const OpId reader = s.work(10, {.after = {{copy}}});
  EXPECT_THAT(s.scheduled(only_copies(s)), ElementsAre(maker, copy, fixed, covers, reader));
  EXPECT_EQ(s.run().end, TimePoint(10 + 5 + 50 + 10));
}

TEST(ListSchedule, OnlyWhatMayMoveCountsAsInFlight) {
  Schedule s;
  const OpId fixed = gather(s, 100);
  const OpId work = s.work(10);
  const OpId copy = s.copy(20);
  const OpId reader = s.work(10, {.after = {{copy}}});
  const OpId last = s.work(10, {.after = {{fixed}}});
  ListScheduleLimits limits = only_copies(s);
  limits.asynchronous = 1;                                                         // the gather is in flight until `last`
  EXPECT_THAT(s.scheduled(limits), ElementsAre(copy, fixed, work, last, reader));  // `last` fills 10-20: no time counts that it waits
}

TEST(ListSchedule, AnAbsurdLimitStillGivesAnOrder) {
  Schedule s = four_sets();
  const std::vector<OpId> order = s.scheduled({.device_memory = Bytes(0), .asynchronous = 0});
  EXPECT_THAT(order, ElementsAre(OpId{0}, OpId{1}, OpId{2}, OpId{3}, OpId{4}, OpId{5}, OpId{6}, OpId{7}));
}

}  // namespace
}  // namespace stepsim
