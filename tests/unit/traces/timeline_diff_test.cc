#include "traces/timeline_diff.h"

#include <gtest/gtest.h>

#include <array>

#include "sim/append_graph.h"

namespace stepsim {

namespace {

// Two kernels on the compute stream, a copy beside them.
OpGraph two_streams() {
  OpGraphBuilder builder;
  const DeviceId device = builder.add_device();
  const StreamId compute = builder.add_stream({.device = device, .kind = builder.label("compute"), .compute = true});
  const StreamId copy = builder.add_stream({.device = device, .kind = builder.label("copy")});
  const WorkId work = builder.work(Given{});
  builder.add_op({.work = work, .stream = compute, .kind = builder.label("product")}, {});
  builder.add_op({.work = work, .stream = compute, .kind = builder.label("norm")}, {});
  builder.add_op({.work = work, .stream = copy, .kind = builder.label("copy out")}, {});
  return std::move(builder).build();
}

StepResult result_of(const std::array<std::array<int, 2>, 3>& runs) {
  StepResult result;
  for (std::int32_t op = 0; op < 3; ++op) {
    const Duration start(runs[at(op)][0]), end(runs[at(op)][1]);
    result.timeline.push_back({.op = OpId{op}, .issued = start, .start = start, .end = end});
    result.end = std::max(result.end, end);
  }
  return result;
}

}  // namespace

TEST(TimelineDifference, ComparesOpsKindsAndStreams) {
  const OpGraph graph = two_streams();
  // First: product 10, norm 4, copy 5 hidden. Second: product 8, norm 4, 2 apart; copy 6, of which 2 in the gap.
  const StepResult first = result_of({{{0, 10}, {10, 14}, {1, 6}}}), second = result_of({{{0, 8}, {10, 14}, {4, 10}}});
  const TimelineDifference difference = timeline_difference(graph, first, second);
  EXPECT_DOUBLE_EQ(difference.end_error(), 0);
  ASSERT_EQ(difference.kinds.size(), 3u);
  EXPECT_EQ(graph.label(difference.kinds[0].kind), "product");  // 2 off; then the copy 1, the norm 0
  EXPECT_EQ(difference.kinds[0].first, Duration(10));
  EXPECT_EQ(difference.kinds[0].second, Duration(8));
  EXPECT_EQ(graph.label(difference.kinds[1].kind), "copy out");
  ASSERT_EQ(difference.streams.size(), 2u);
  EXPECT_EQ(difference.streams[0].second_busy, Duration(12));
  EXPECT_EQ(difference.streams[1].first_overlap, Duration(5));
  EXPECT_EQ(difference.streams[1].second_overlap, Duration(4));
  EXPECT_DOUBLE_EQ(difference.median_op_error, 1.0 / 6);               // of 0, 1/6, 1/4
  EXPECT_DOUBLE_EQ(difference.weighted_op_error, (2 + 0 + 1) / 18.0);  // of 8 + 4 + 6
}

TEST(TimelineDifference, OpsThatRanInOneRunOnlyAreLeftOut) {
  const OpGraph graph = two_streams();
  const StepResult first = result_of({{{0, 10}, {10, 14}, {1, 6}}});
  StepResult second = first;
  second.timeline.pop_back();
  EXPECT_EQ(timeline_difference(graph, first, second).kinds.size(), 2u);
}

TEST(TimelineDifference, RunsJoinAsThoseOfTheGraphsSideBySide) {
  const OpGraph graph = two_streams();
  const StepResult first = result_of({{{0, 10}, {10, 14}, {1, 6}}}), second = result_of({{{0, 8}, {10, 15}, {4, 10}}});
  const std::vector<GraphRunView> runs = {{&graph, &first}, {&graph, &second}};
  const StepResult joined = joined_runs(runs);
  ASSERT_EQ(joined.timeline.size(), 6u);
  EXPECT_EQ(joined.end, Duration(15));
  EXPECT_TRUE(
      std::is_sorted(joined.timeline.begin(), joined.timeline.end(), [](const OpRun& a, const OpRun& b) { return a.start < b.start; }));
  const std::vector<const OpGraph*> graphs = {&graph, &graph};
  const OpGraph both = side_by_side(graphs);
  for (const OpRun& run : joined.timeline) EXPECT_LT(at(run.op.index), both.ops().size());
  EXPECT_EQ(joined.timeline.back().op, OpId{4});  // the second run's norm and the first's start together at 10, the lower op first
}

}  // namespace stepsim
