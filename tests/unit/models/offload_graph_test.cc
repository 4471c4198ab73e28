#include "models/offload_graph.h"

#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

#include "sim/simulate.h"

namespace stepsim {
namespace {

struct OffloadRun {
  OffloadFigures figures;
  std::map<std::string, std::int64_t> starts;  // by op name, "backward L3 copy in"
};

OffloadRun run_of(const OffloadStack& of) {
  const OffloadGraph made = offload_graph(of);
  const StepResult result = simulate(made.graph, plain_machine(1), GivenCostModel(made.costs), {.device = LedgerRule::kDeviceOrder});
  OffloadRun run{.figures = offload_figures(of, made, result), .starts = {}};
  for (const OpRun& each : result.timeline) run.starts[made.graph.op_name(each.op)] = each.start.count();
  return run;
}

// f 4, b 4, h 0, copies of 6 each way; the last K of 5 layers stay, K sets at most, reloads K - 1 layers ahead.
OffloadStack transformer_engine(std::int64_t kept) {
  return {.layers = 5,
          .forward = Duration(4),
          .backward = Duration(4),
          .copy_out = Duration(6),
          .copy_in = Duration(6),
          .keep_last = kept,
          .max_resident = kept,
          .lookahead = kept - 1};
}

// Figures 3 and 4 of Transformer Engine's guide (offload.md, V4): 2 of 5 layers hide, 3 of 5 stall.
TEST(OffloadGraph, TransformerEngineHidesTwoLayersOfFiveAndStallsWithThree) {
  // Forward 5 waits for copy out 2, 4-10-16: it starts at 16 all the same. Copies in follow backward 5 (from 24) and end at 36 at the
  // latest, when backward 2 is due at 32 for layer 2, whose copy is 24-30, and backward 1 at 36.
  const OffloadFigures two = run_of(transformer_engine(3)).figures;
  EXPECT_EQ(two.forward_end.count(), 20);
  EXPECT_EQ(two.total.count(), 40);
  EXPECT_EQ(two.exposed.count(), 0);
  EXPECT_EQ(two.resident_sets, 3);
  EXPECT_EQ(two.host_sets, 2);
  // Copies out 4-10-16-22: forward 5 waits from 20 to 22 behind forward 4, 16-20. Copies in 30-36-42-48, then backward 1.
  const OffloadRun three = run_of(transformer_engine(2));
  EXPECT_EQ(three.figures.forward_end.count(), 26);
  EXPECT_EQ(three.figures.total.count(), 52);
  EXPECT_EQ(three.figures.exposed.count(), 12);
  EXPECT_EQ(three.figures.resident_sets, 2);
  EXPECT_EQ(three.figures.host_sets, 3);
}

// One forward, one copy and one backward of length 10, 1 and 10; three layers go. What is compared is when copies in start.
TEST(OffloadGraph, CopiesInAreQueuedByTheLookahead) {
  OffloadStack of{.layers = 4,
                  .forward = Duration(10),
                  .backward = Duration(10),
                  .head = Duration(5),
                  .copy_out = Duration(1),
                  .copy_in = Duration(1),
                  .keep_last = 1};
  const auto starts = [&](std::optional<std::int64_t> lookahead) {
    of.lookahead = lookahead;
    auto run = run_of(of);
    return std::vector<std::int64_t>{run.starts["backward L3 copy in"], run.starts["backward L2 copy in"],
                                     run.starts["backward L1 copy in"]};
  };
  using Starts = std::vector<std::int64_t>;
  EXPECT_EQ(starts(std::nullopt), (Starts{45, 46, 47}));  // all when the head ends
  EXPECT_EQ(starts(1), (Starts{45, 55, 65}));             // when backward 4, 3, 2 start
  EXPECT_EQ(starts(2), (Starts{45, 46, 55}));             // 5 (none: the head), 4, 3
  EXPECT_EQ(starts(0), (Starts{55, 66, 77}));             // when 4, 3, 2 have ended; backward waits for the copy
  EXPECT_EQ(starts(1'000'000'000'000), starts(std::nullopt));
}

TEST(OffloadGraph, OneBufferRunsWithoutOverlap) {
  // f 3, h 2, b 6, copies 2, 2 layers: forward 0-3, copy 3-5, forward 5-8, copy 8-10 beside the head 8-10, copy in 10-12, backward 12-18,
  // copy in 18-20, backward 20-26, however far ahead reloads are queued.
  for (const std::optional<std::int64_t> lookahead : {std::optional<std::int64_t>(0), std::optional<std::int64_t>(1), {}}) {
    const OffloadFigures figures = run_of({.layers = 2,
                                           .forward = Duration(3),
                                           .backward = Duration(6),
                                           .head = Duration(2),
                                           .copy_out = Duration(2),
                                           .copy_in = Duration(2),
                                           .max_resident = 1,
                                           .lookahead = lookahead})
                                       .figures;
    EXPECT_EQ(figures.forward_end.count(), 8);
    EXPECT_EQ(figures.total.count(), 26);
    EXPECT_EQ(figures.exposed.count(), 26 - 2 * 9 - 2);
    EXPECT_EQ(figures.resident_sets, 1);
    EXPECT_EQ(figures.host_sets, 2);
  }
}

TEST(OffloadGraph, GatesThatNothingOpensAreFindings) {
  const auto finding = [](const OffloadStack& of) {
    const std::optional<OffloadFinding> found = offload_finding(of);
    return found ? std::to_string(found->layer) + ": " + found->sentence : "";
  };
  EXPECT_EQ(finding({.layers = 3, .max_resident = 0}),
            "1: max_resident 0 has no place for the set of any layer: forward of layer 1 never starts");
  EXPECT_EQ(finding({.layers = 5, .keep_last = 3, .max_resident = 2}),
            "5: max_resident 2 is full with layers 3 to 4, kept until backward: forward of layer 5 never starts");
  EXPECT_EQ(finding({.layers = 2, .keep_last = 7, .max_resident = 1}),
            "2: max_resident 1 is full with layer 1, kept until backward: forward of layer 2 never starts");
  EXPECT_EQ(finding({.layers = 5, .keep_last = 3, .max_resident = 3}), "");
  EXPECT_EQ(finding({.layers = 5, .max_resident = 1, .lookahead = 0}), "");
  EXPECT_EQ(finding({.layers = 5, .keep_last = 5}), "");
  EXPECT_THROW(offload_graph({.layers = 5, .keep_last = 3, .max_resident = 2}), std::logic_error);
  EXPECT_THROW(offload_graph({.layers = 0}), std::logic_error);
  EXPECT_THROW(offload_graph({.layers = 1'000'000'000'000}), std::logic_error);
  EXPECT_THROW(offload_graph({.layers = 4, .forward = Duration::max()}), std::logic_error);
}

TEST(OffloadGraph, NothingMovesWhereAllStays) {
  const OffloadFigures figures =
      run_of(
          {.layers = 3, .forward = Duration(2), .backward = Duration(3), .copy_out = Duration(9), .copy_in = Duration(9), .keep_last = 9})
          .figures;
  EXPECT_EQ(figures.total.count(), 15);
  EXPECT_EQ(figures.exposed.count(), 0);
  EXPECT_EQ(figures.resident_sets, 3);
  EXPECT_EQ(figures.host_sets, 0);
}

}  // namespace
}  // namespace stepsim
