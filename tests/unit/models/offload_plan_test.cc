// Where an offload schedule puts copies, waits, releases and copies back, on the small layer: slot 0 is the input (read by forward op 2 and
// backward op 2), slot 1 the fc1 output (made by forward op 0, read by 1; backward op 1), slot 2 the act output (1, 2; 0).
#include "models/offload_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/models/plan_text.h"
#include "tests/unit/models/small_step.h"

namespace stepsim {
namespace {

using testing::HasSubstr;

// The fc1 output of every layer goes when its layer is over, is let go of at once, and comes back when it is needed.
PlacementPolicy fc1_output() {
  PlacementPolicy policy;
  policy.offload.selection.names = {"fc1 output"};
  policy.offload.schedule = {
      .copy_out = CopyOutPlace::kLayerEnd, .release = ReleasePlace::kEvent, .in_flight = {}, .lookahead = 0, .asynchronous_limit = {}};
  return policy;
}

PlacementPlan plan_of(const PlacementPolicy& policy, std::int64_t layers = 3, std::int64_t stage = 0) {
  const PlacementPlan plan = make_plan(small_layer(), layers, policy, {}, stage);
  EXPECT_EQ(plan_error(plan, small_layer(), layers), "");
  return plan;
}

std::string forward_of(const PlacementPolicy& policy, std::int64_t layers = 3) { return steps_text(plan_of(policy, layers).forward); }
std::string backward_of(const PlacementPolicy& policy, std::int64_t layers = 3) { return steps_text(plan_of(policy, layers).backward); }

TEST(OffloadPlan, WithoutSelectionThePlanIsAsItWas) {
  EXPECT_EQ(forward_of({}, 1), "F0:0-2");
  PlacementPolicy policy = fc1_output();
  policy.offload.selection.least_bytes = Bytes(41);
  EXPECT_EQ(forward_of(policy, 1), "F0:0-2");
  EXPECT_EQ(backward_of(policy, 1), "B0:0-2");
}

TEST(OffloadPlan, CopiesOutAreIssuedWhereThePolicySays) {
  PlacementPolicy policy = fc1_output();
  policy.offload.schedule.copy_out = CopyOutPlace::kProduction;  // after op 0; let go of after op 1 has read it
  EXPECT_EQ(forward_of(policy, 1), "F0:0-0, out 0.1, F0:1-1, event 0.1, F0:2-2");
  policy.offload.schedule.copy_out = CopyOutPlace::kModuleEnd;  // a tensor's own group ends with its last reader
  EXPECT_EQ(forward_of(policy, 1), "F0:0-1, out 0.1, event 0.1, F0:2-2");
  for (const CopyOutPlace place : {CopyOutPlace::kLayerEnd, CopyOutPlace::kNextLayer}) {
    policy.offload.schedule.copy_out = place;
    EXPECT_EQ(forward_of(policy, 2), "F0:0-2, out 0.1, event 0.1, F1:0-2, out 1.1, event 1.1");
  }
}

TEST(OffloadPlan, ALayersInputGoesBeforeTheLayerRuns) {
  PlacementPolicy policy = fc1_output();
  policy.offload.selection.names = {"input"};
  policy.offload.schedule.copy_out = CopyOutPlace::kProduction;  // made by the layer before, read last by op 2
  EXPECT_EQ(forward_of(policy, 2), "out 0.0, F0:0-2, event 0.0, out 1.0, F1:0-2, event 1.0");
  EXPECT_EQ(backward_of(policy, 2), "B1:0-1, in 1.0, B1:2-2, B0:0-1, in 0.0, B0:2-2");
}

TEST(OffloadPlan, ReleaseWaitsUnderTheLimitInFlight) {
  PlacementPolicy policy = fc1_output();
  OffloadSchedule& schedule = policy.offload.schedule;
  schedule.release = ReleasePlace::kWait;  // without a limit compute waits for none
  EXPECT_EQ(forward_of(policy), "F0:0-2, out 0.1, event 0.1, F1:0-2, out 1.1, event 1.1, F2:0-2, out 2.1, event 2.1");
  schedule.in_flight = 0;  // for its own
  EXPECT_EQ(forward_of(policy), "F0:0-2, out 0.1, free 0.1, F1:0-2, out 1.1, free 1.1, F2:0-2, out 2.1, free 2.1");
  schedule.in_flight = 1;  // for the one before; nobody waits for the last
  EXPECT_EQ(forward_of(policy), "F0:0-2, out 0.1, F1:0-2, out 1.1, free 0.1, F2:0-2, out 2.1, free 1.1, event 2.1");
  schedule.in_flight = 2;
  EXPECT_EQ(forward_of(policy), "F0:0-2, out 0.1, F1:0-2, out 1.1, event 1.1, F2:0-2, out 2.1, free 0.1, event 2.1");
  schedule.in_flight = 3;  // as many as there are
  EXPECT_EQ(forward_of(policy), "F0:0-2, out 0.1, event 0.1, F1:0-2, out 1.1, event 1.1, F2:0-2, out 2.1, event 2.1");
}

TEST(OffloadPlan, OtherReleasesOnlyWaitUnderTheLimit) {
  PlacementPolicy policy = fc1_output();
  policy.offload.schedule.in_flight = 1;
  EXPECT_EQ(forward_of(policy), "F0:0-2, out 0.1, event 0.1, F1:0-2, out 1.1, wait 0.1, event 1.1, F2:0-2, out 2.1, wait 1.1, event 2.1");
}

TEST(OffloadPlan, TheLimitCountsGroupsOfOneName) {
  PlacementPolicy policy = fc1_output();
  policy.offload.selection.names = {"*"};  // one group a layer: compute waits for all of it when all of the next is issued
  policy.offload.schedule.release = ReleasePlace::kWait;
  policy.offload.schedule.in_flight = 1;
  EXPECT_EQ(forward_of(policy, 2),
            "F0:0-2, out 0.0, out 0.1, out 0.2, F1:0-2, out 1.0, event 1.0, out 1.1, event 1.1, out 1.2, free 0.0, free 0.1, free 0.2, "
            "event 1.2");
  policy.offload.selection.names = {"fc1 output", "act output"};
  EXPECT_EQ(forward_of(policy, 2), "F0:0-2, out 0.1, out 0.2, F1:0-2, out 1.1, free 0.1, event 1.1, out 1.2, free 0.2, event 1.2");
}

TEST(OffloadPlan, LayerStartsLetGoOfEarlierLayers) {
  PlacementPolicy policy = fc1_output();
  OffloadSchedule& schedule = policy.offload.schedule;
  schedule.release = ReleasePlace::kLayerStart;
  schedule.release_distance = 0;  // as soon as the copy is issued
  EXPECT_EQ(forward_of(policy), "F0:0-2, out 0.1, free 0.1, F1:0-2, out 1.1, free 1.1, F2:0-2, out 2.1, free 2.1");
  schedule.release_distance = 1;  // of the last at the end of forward
  EXPECT_EQ(forward_of(policy), "F0:0-2, out 0.1, free 0.1, F1:0-2, out 1.1, free 1.1, F2:0-2, out 2.1, free 2.1");
  schedule.release_distance = 2;
  EXPECT_EQ(forward_of(policy), "F0:0-2, out 0.1, F1:0-2, out 1.1, free 0.1, F2:0-2, out 2.1, free 1.1, free 2.1");
  schedule.release_distance = 1'000'000;
  EXPECT_EQ(forward_of(policy), "F0:0-2, out 0.1, F1:0-2, out 1.1, F2:0-2, out 2.1, free 0.1, free 1.1, free 2.1");
}

TEST(OffloadPlan, TheSamePlaceIsWhereALaterLayerMakesTheTensor) {
  PlacementPolicy policy = fc1_output();
  policy.offload.schedule.release = ReleasePlace::kSamePlace;
  EXPECT_EQ(forward_of(policy, 2), "F0:0-2, out 0.1, F1:0-0, free 0.1, F1:1-2, out 1.1, free 1.1");
}

TEST(OffloadPlan, AStashCountsTensors) {
  PlacementPolicy policy = fc1_output();
  OffloadSchedule& schedule = policy.offload.schedule;
  schedule.release = ReleasePlace::kTensor;
  EXPECT_EQ(forward_of(policy), "F0:0-2, out 0.1, F1:0-2, out 1.1, free 0.1, F2:0-2, out 2.1, free 1.1, free 2.1");
  schedule.release_distance = 0;
  EXPECT_EQ(forward_of(policy, 1), "F0:0-2, out 0.1, free 0.1");
}

TEST(OffloadPlan, WhatIsNotYetLetGoOfIsUsedInPlace) {
  PlacementPolicy policy = fc1_output();
  policy.offload.schedule.release = ReleasePlace::kTensor;
  policy.offload.schedule.in_place = true;  // the last copy out is for nothing
  EXPECT_EQ(forward_of(policy), "F0:0-2, out 0.1, F1:0-2, out 1.1, free 0.1, F2:0-2, out 2.1, free 1.1");
  EXPECT_EQ(backward_of(policy), "B2:0-2, B1:0-0, in 1.1, B1:1-2, B0:0-0, in 0.1, B0:1-2");
  policy.offload.schedule.release = ReleasePlace::kEvent;  // lets go of all
  EXPECT_EQ(backward_of(policy, 1), "B0:0-0, in 0.1, B0:1-2");
}

TEST(OffloadPlan, CopiesBackStandSoManyLayersBefore) {
  PlacementPolicy policy = fc1_output();
  OffloadSchedule& schedule = policy.offload.schedule;
  EXPECT_EQ(backward_of(policy), "B2:0-0, in 2.1, B2:1-2, B1:0-0, in 1.1, B1:1-2, B0:0-0, in 0.1, B0:1-2");
  schedule.lookahead = 1;
  EXPECT_EQ(backward_of(policy), "in 2.1, in 1.1, B2:0-2, in 0.1, B1:0-2, B0:0-2");
  schedule.lookahead = 2;
  EXPECT_EQ(backward_of(policy), "in 2.1, in 1.1, in 0.1, B2:0-2, B1:0-2, B0:0-2");
  schedule.lookahead = 1'000'000;
  EXPECT_EQ(backward_of(policy), "in 2.1, in 1.1, in 0.1, B2:0-2, B1:0-2, B0:0-2");
}

TEST(OffloadPlan, CopiesBackStandWhereTheOtherLayerIsDoneOrReads) {
  PlacementPolicy policy = fc1_output();
  OffloadSchedule& schedule = policy.offload.schedule;
  schedule.lookahead = 1;
  schedule.copy_in = CopyInPlace::kModuleEnd;  // backward op 1 is the last that reads an fc1 output
  EXPECT_EQ(backward_of(policy), "in 2.1, B2:0-1, in 1.1, B2:2-2, B1:0-1, in 0.1, B1:2-2, B0:0-2");
  schedule.copy_in = CopyInPlace::kSamePlace;
  EXPECT_EQ(backward_of(policy), "in 2.1, B2:0-0, in 1.1, B2:1-2, B1:0-0, in 0.1, B1:1-2, B0:0-2");
}

// Blocking copies that were issued where a tensor is made ran beside its readers: only the place that lets go of it waited.
TEST(OffloadPlan, SynchronousCopiesAreWaitedForWhereTheyAreIssued) {
  PlacementPolicy policy = fc1_output();
  OffloadSchedule& schedule = policy.offload.schedule;
  schedule.copy_out = CopyOutPlace::kProduction;
  schedule.synchronous = true;
  EXPECT_EQ(forward_of(policy, 1), "F0:0-0, out 0.1, wait 0.1, F0:1-1, free 0.1, F0:2-2");
  schedule.copy_out = CopyOutPlace::kLayerEnd;
  EXPECT_EQ(forward_of(policy, 1), "F0:0-2, out 0.1, free 0.1");
  schedule.lookahead = 2;  // prefetches nothing
  EXPECT_EQ(backward_of(policy, 1), "B0:0-0, in 0.1, B0:1-2");
}

TEST(OffloadPlan, LayersThatStayPaceTheOthers) {
  PlacementPolicy policy = fc1_output();
  policy.offload.selection.keep_last_layers = 2;  // K = 2 of 4: layer i is let go of before i + 2, copied back before backward of i + 1
  policy.offload.schedule.release = ReleasePlace::kLayerStart;
  policy.offload.schedule.paced_by_kept_layers = true;
  EXPECT_EQ(forward_of(policy, 4), "F0:0-2, out 0.1, F1:0-2, out 1.1, free 0.1, F2:0-2, free 1.1, F3:0-2");
  EXPECT_EQ(backward_of(policy, 4), "B3:0-2, in 1.1, B2:0-2, in 0.1, B1:0-2, B0:0-2");
  policy.offload.selection.keep_last_layers = 1;  // K = 1: nothing overlaps
  EXPECT_EQ(forward_of(policy, 2), "F0:0-2, out 0.1, free 0.1, F1:0-2");
  EXPECT_EQ(backward_of(policy, 2), "B1:0-2, B0:0-0, in 0.1, B0:1-2");
}

TEST(OffloadPlan, SlicesMoveOneByOne) {
  PlacementPolicy policy = fc1_output();
  policy.offload.selection.names.clear();
  policy.rows = {{0, -1, "fc1 output", PlacementAction::kOffload, 0, -1, 2, 3}};  // two thirds
  EXPECT_EQ(forward_of(policy, 1), "F0:0-2, out 0.1 0/3, out 0.1 1/3, event 0.1 0/3, event 0.1 1/3");
  EXPECT_EQ(backward_of(policy, 1), "B0:0-0, in 0.1 0/3, in 0.1 1/3, B0:1-2");
}

TEST(OffloadPlan, WhatRecomputationStartsFromComesBackBeforeIt) {
  PlacementPolicy policy = fc1_output();
  policy.granularity = RecomputeGranularity::kFull;
  policy.offload.selection.names = {"*"};  // only the inputs are there to be moved
  EXPECT_EQ(forward_of(policy, 2), "F0:0-2, out 0.0, event 0.0, drop 0.1, drop 0.2, F1:0-2, out 1.0, event 1.0, drop 1.1, drop 1.2");
  EXPECT_EQ(backward_of(policy, 2), "in 1.0, R1:0-2, B1:0-2, in 0.0, R0:0-2, B0:0-2");
  policy.offload.schedule.lookahead = 1;  // a visit to a layer is its re-run and its backward
  EXPECT_EQ(backward_of(policy, 3), "in 2.0, in 1.0, R2:0-2, B2:0-2, in 0.0, R1:0-2, B1:0-2, R0:0-2, B0:0-2");
}

TEST(OffloadPlan, WhatIsRunAgainFromItsOwnGroupStaysDropped) {
  PlacementPolicy policy = fc1_output();
  policy.granularity = RecomputeGranularity::kSelective;
  policy.modules = {"act"};  // the act output is made again from the fc1 output, which is back by then
  policy.offload.selection.names = {"fc1 output", "act output"};
  EXPECT_EQ(forward_of(policy, 1), "F0:0-2, out 0.1, event 0.1, drop 0.2");
  EXPECT_EQ(backward_of(policy, 1), "in 0.1, R0:1-1, B0:0-2");
}

// ---- selection: the small layer's tensors have 8, 40 and 16 bytes

std::string selected(const OffloadSelection& selection, std::int64_t stage = 0, const std::vector<PlacementRow>& rows = {}) {
  PlacementPolicy policy = fc1_output();
  policy.offload.selection = selection;
  policy.rows = rows;
  policy.offload.schedule.copy_out = CopyOutPlace::kModuleEnd;
  return moved_text(moved_tensors(make_plan(small_layer(), 3, {}, {}), small_layer(), 3, policy, stage));
}

OffloadSelection two_names() {
  OffloadSelection selection;
  selection.names = {"act output", "fc1 output"};
  return selection;
}

TEST(OffloadSelection, TakesLayersFromEitherEnd) {
  OffloadSelection selection;
  selection.names = {"*"};
  EXPECT_EQ(selected(selection), "0.0 0.1 0.2 1.0 1.1 1.2 2.0 2.1 2.2");
  selection.keep_last_layers = 1;
  EXPECT_EQ(selected(selection), "0.0 0.1 0.2 1.0 1.1 1.2");
  selection.first_layers = 1;
  EXPECT_EQ(selected(selection), "0.0 0.1 0.2");
  selection.keep_last_layers = 3;
  EXPECT_EQ(selected(selection), "");
}

TEST(OffloadSelection, KeepsTheLastGroups) {
  OffloadSelection selection = two_names();  // six groups, in the order in which they are copied
  EXPECT_EQ(selected(selection), "0.1 0.2 1.1 1.2 2.1 2.2");
  selection.keep_last_groups = 3;
  EXPECT_EQ(selected(selection), "0.1 0.2 1.1");
  selection.keep_last_groups = 7;
  EXPECT_EQ(selected(selection), "");
  selection.keep_last_groups = 0;
  selection.keep_last_of_each_name = true;  // two names
  EXPECT_EQ(selected(selection), "0.1 0.2 1.1 1.2");
  selection.groups_fraction = 0.51;  // of 6: 3.06, rounded up, is no more than the names leave
  EXPECT_EQ(selected(selection), "0.1 0.2 1.1 1.2");
  selection.groups_fraction = 0.5;
  EXPECT_EQ(selected(selection), "0.1 0.2 1.1");
}

TEST(OffloadSelection, KeepsSmallTensors) {
  OffloadSelection selection;
  selection.names = {"*"};
  selection.least_bytes = Bytes(16);
  EXPECT_EQ(selected(selection), "0.1 0.2 1.1 1.2 2.1 2.2");
  selection.least_elements = 17;  // of a byte each
  EXPECT_EQ(selected(selection), "0.1 1.1 2.1");
}

TEST(OffloadSelection, FillsABudgetWithTheLargestFirst) {
  OffloadSelection selection;
  selection.names = {"*"};
  selection.budget = Bytes(100);  // 40 + 40; the third does not fit into 20, one of 16 does, one of 8 not into 4
  EXPECT_EQ(selected(selection), "0.1 0.2 1.1");
  selection.budget = Bytes(0);
  EXPECT_EQ(selected(selection), "");
}

TEST(OffloadSelection, LaterStagesMoveLess) {
  OffloadSelection selection = two_names();
  selection.less_per_stage = Bytes(50);
  EXPECT_EQ(selected(selection, 0), "0.1 0.2 1.1 1.2 2.1 2.2");
  EXPECT_EQ(selected(selection, 1), "0.1 0.2 1.1 1.2");  // 16 + 40 >= 50 stay
  EXPECT_EQ(selected(selection, 2), "0.1 0.2");          // 16 + 40 + 16 + 40 >= 100 stay
  selection.less_per_stage = Bytes(std::int64_t{1} << 62);
  EXPECT_EQ(selected(selection, 8), "");  // not 2^65 bytes modulo 2^64
}

TEST(OffloadSelection, RowsHaveTheLastWord) {
  OffloadSelection selection;
  selection.names = {"fc1 output"};
  selection.keep_last_layers = 1;
  const std::vector<PlacementRow> rows = {{0, 0, "fc1 output", PlacementAction::kKeep, 0, -1, 1, 1},
                                          {2, 2, "*", PlacementAction::kOffload, 0, -1, 1, 1},
                                          {2, 2, "act output", PlacementAction::kKeep, 0, -1, 1, 1}};
  EXPECT_EQ(selected(selection, 0, rows), "1.1 2.0 2.1");
}

// ---- broken plans

PlanStep runs(PlanVerb verb, std::int32_t first, std::int32_t last) { return {.verb = verb, .first = first, .last = last}; }
PlanStep moves(PlanVerb verb, SlotIndex slot, std::int16_t slice = 0, std::int16_t slices = 1) {
  return {.verb = verb, .first = slot, .last = slot, .slice = slice, .slices = slices};
}

const PlanStep kForwardPass = runs(PlanVerb::kForward, 0, 2), kBackwardPass = runs(PlanVerb::kBackward, 0, 2);
const PlanStep kOut = moves(PlanVerb::kCopyOut, 1), kFree = moves(PlanVerb::kRelease, 1), kIn = moves(PlanVerb::kCopyIn, 1);

std::string error_of(const std::vector<PlanStep>& forward, const std::vector<PlanStep>& backward) {
  return plan_error({forward, backward}, small_layer(), 1);
}

TEST(OffloadPlanError, FindsMovesOutOfOrder) {
  EXPECT_EQ(error_of({kForwardPass, kOut, kFree}, {kIn, kBackwardPass}), "");
  EXPECT_EQ(error_of({kForwardPass, kOut}, {kBackwardPass}), "");  // used in place
  EXPECT_THAT(error_of({kForwardPass, kFree}, {}), HasSubstr("\"fc1 output\", which was not copied out"));
  EXPECT_THAT(error_of({kForwardPass, moves(PlanVerb::kWaitOut, 1)}, {}), HasSubstr("which was not copied out"));
  EXPECT_THAT(error_of({kForwardPass, moves(PlanVerb::kReleaseByEvent, 1)}, {}), HasSubstr("which was not copied out"));
  EXPECT_THAT(error_of({kForwardPass, kOut, kOut}, {}), HasSubstr("copies out \"fc1 output\" twice"));
  EXPECT_THAT(error_of({kForwardPass, kOut, kFree, kFree}, {}), HasSubstr("lets go of \"fc1 output\" twice"));
  EXPECT_THAT(error_of({kForwardPass, kOut}, {kIn, kBackwardPass}), HasSubstr("copies back \"fc1 output\", which was not let go of"));
  EXPECT_THAT(error_of({kForwardPass, kOut, kFree}, {kIn, kIn, kBackwardPass}), HasSubstr("which was not let go of"));
  EXPECT_THAT(error_of({kForwardPass, moves(PlanVerb::kDrop, 1), kOut}, {}), HasSubstr("copies out \"fc1 output\", which is not there"));
}

TEST(OffloadPlanError, FindsReadersOfWhatIsAway) {
  EXPECT_THAT(error_of({kForwardPass, kOut, kFree}, {kBackwardPass}),
              HasSubstr("\"act backward\" reads \"fc1 output\", which is not there"));
  EXPECT_THAT(error_of({runs(PlanVerb::kForward, 0, 0), kOut, kFree, runs(PlanVerb::kForward, 1, 2)}, {}),
              HasSubstr("\"act\" needs \"fc1 output\", which is not there"));
  // Made again in a re-run for others, it is still the one on the host that backward reads.
  const PlanStep again{.verb = PlanVerb::kForward, .first = 0, .last = 1, .again = true};
  EXPECT_THAT(error_of({kForwardPass, kOut, kFree}, {again, kBackwardPass}), HasSubstr("reads \"fc1 output\", which is not there"));
  EXPECT_EQ(error_of({kForwardPass, kOut, kFree}, {again, kIn, kBackwardPass}), "");
}

TEST(OffloadPlanError, FindsSlicesThatAreAway) {
  const auto slice = [](PlanVerb verb, std::int16_t number) { return moves(verb, 1, number, 2); };
  const std::vector<PlanStep> gone = {kForwardPass, slice(PlanVerb::kCopyOut, 0), slice(PlanVerb::kCopyOut, 1),
                                      slice(PlanVerb::kRelease, 0), slice(PlanVerb::kRelease, 1)};
  EXPECT_EQ(error_of(gone, {slice(PlanVerb::kCopyIn, 1), slice(PlanVerb::kCopyIn, 0), kBackwardPass}), "");
  EXPECT_THAT(error_of(gone, {slice(PlanVerb::kCopyIn, 1), kBackwardPass}), HasSubstr("reads \"fc1 output\", which is not there"));
  EXPECT_THAT(error_of({kForwardPass, moves(PlanVerb::kCopyOut, 1, 2, 2)}, {}), HasSubstr("slice 2 of 2"));
}

TEST(OffloadPlanError, FindsMovesOfWhatIsNoStorageOfTheLayer) {
  EXPECT_THAT(error_of({kForwardPass, moves(PlanVerb::kCopyOut, 10)}, {}), HasSubstr("range 10 to 10 of 10"));
  EXPECT_THAT(error_of({kForwardPass, moves(PlanVerb::kCopyOut, 8)}, {}), HasSubstr("\"weight\", which is not there"));
  LayerTemplate layer = small_layer();
  layer.slots.push_back(small_slot("gate", SlotKind::kForward, 20));
  layer.slots.back().view_of = 1;
  EXPECT_THAT(plan_error({{kForwardPass, moves(PlanVerb::kCopyOut, 10)}, {}}, layer, 1), HasSubstr("moves \"gate\", a view"));
}

}  // namespace
}  // namespace stepsim
