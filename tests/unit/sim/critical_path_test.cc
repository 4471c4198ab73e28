#include "sim/critical_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/simulate.h"
#include "tests/unit/sim/small_graph.h"

namespace stepsim {
namespace {

using ::testing::ElementsAre;

std::vector<OpId> ops_of(const std::vector<PathStep>& path) {
  std::vector<OpId> ops;
  for (const PathStep& step : path) ops.push_back(step.op);
  return ops;
}

struct Case {
  SmallGraph small;
  DeviceId device = small.builder.add_device();
  StreamId compute = small.stream(device, true), side = small.stream(device);
  std::vector<PathStep> path() {
    const GivenCostModel costs = small.costs();
    const OpGraph graph = std::move(small.builder).build();
    return critical_path(graph, simulate(graph, plain_machine(1), costs));
  }
};

TEST(CriticalPath, FollowsTheLatestEnd) {
  Case c;
  const OpId a = c.small.op(c.compute, 3);
  const OpId copy = c.small.op(c.side, 9, {.after = {{a}}});  // 3-12
  c.small.op(c.compute, 4);                                   // 3-7
  const OpId last = c.small.op(c.compute, 2, {.after = {{copy}}});
  const std::vector<PathStep> path = c.path();
  EXPECT_THAT(ops_of(path), ElementsAre(a, copy, last));
  EXPECT_EQ(path[1].start, TimePoint(3));
  EXPECT_EQ(path[1].duration, Duration(9));
  EXPECT_EQ(path[1].device, c.device);
}

TEST(CriticalPath, FollowsStreamsAndQueues) {
  Case c;
  const QueueId engine = c.small.builder.add_queue({.device = c.device, .kind = {}});
  const OpId first = c.small.op(c.side, 9, {.queues = {engine}});
  const StreamId other = c.small.stream(c.device);
  const OpId second = c.small.op(other, 4, {.queues = {engine}});  // waits for the engine
  const OpId behind = c.small.op(other, 1);                        // and this one for its stream
  EXPECT_THAT(ops_of(c.path()), ElementsAre(first, second, behind));
}

TEST(CriticalPath, StartToStartEdges) {
  Case c;
  c.small.op(c.compute, 5);
  const OpId b = c.small.op(c.compute, 3);  // 5-8
  const OpId from_start = c.small.op(c.side, 9, {.after = {{b, EdgeKind::kStartToStart}}});
  EXPECT_THAT(ops_of(c.path()), ElementsAre(OpId{0}, b, from_start));
}

TEST(CriticalPath, ThroughALaunchThatWaited) {
  Case c;
  const IssuerId host = c.small.builder.add_issuer({.device = c.device});
  const OpId a = c.small.op(c.side, 6, {.issuer = host});
  c.small.op(c.compute, 1, {.issue_after = {a}, .issuer = host});            // launched at 6
  const OpId last = c.small.op(c.compute, 1, {.issuer = host, .issue = 5});  // launched at 11, after the one before it has ended
  EXPECT_THAT(ops_of(c.path()), ElementsAre(a, last));
}

TEST(CriticalPath, OfNothing) { EXPECT_TRUE(critical_path(OpGraphBuilder().build(), {}).empty()); }

TEST(LongestPath, IgnoresStreamsAndCountsStartsFromStarts) {
  Case c;
  const OpId a = c.small.op(c.compute, 0), b = c.small.op(c.compute, 0);
  c.small.op(c.compute, 0, {.after = {{a}, {b, EdgeKind::kStartToStart}}});
  const OpGraph graph = std::move(c.small.builder).build();
  // c starts when a has ended (4) and b has started (0).
  EXPECT_EQ(longest_path(graph, std::vector<Duration>{Duration(4), Duration(9), Duration(3)}), Duration(9));
  EXPECT_EQ(longest_path(graph, std::vector<Duration>{Duration(4), Duration(6), Duration(3)}), Duration(7));
}

}  // namespace
}  // namespace stepsim
