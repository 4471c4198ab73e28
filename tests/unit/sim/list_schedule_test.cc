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

TEST(ListSchedule, AnAbsurdLimitStillGivesAnOrder) {
  Schedule s = four_sets();
  const std::vector<OpId> order = s.scheduled({.device_memory = Bytes(0), .asynchronous = 0});
  EXPECT_THAT(order, ElementsAre(OpId{0}, OpId{1}, OpId{2}, OpId{3}, OpId{4}, OpId{5}, OpId{6}, OpId{7}));
}

}  // namespace
}  // namespace stepsim
