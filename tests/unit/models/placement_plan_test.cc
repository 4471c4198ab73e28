#include "models/placement_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>

#include "models/slot_table.h"
#include "sim/input_error.h"
#include "tests/unit/models/small_step.h"

namespace stepsim {

static bool operator==(const PlanStep& a, const PlanStep& b) {
  return a.verb == b.verb && a.layer == b.layer && a.first == b.first && a.last == b.last && a.again == b.again;
}
static void PrintTo(const PlanStep& step, std::ostream* out) {
  constexpr const char* kVerbs[] = {"forward", "backward", "drop", "copy out", "wait", "release", "release by event", "copy in"};
  *out << kVerbs[static_cast<int>(step.verb)] << " L" << step.layer << " " << step.first << ".." << step.last
       << (step.again ? " again" : "");
}

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

PlanStep forward(std::int32_t layer, std::int32_t first, std::int32_t last) { return {PlanVerb::kForward, layer, first, last, false}; }
PlanStep again(std::int32_t layer, std::int32_t first, std::int32_t last) { return {PlanVerb::kForward, layer, first, last, true}; }
PlanStep backward(std::int32_t layer, std::int32_t first, std::int32_t last) { return {PlanVerb::kBackward, layer, first, last, false}; }
PlanStep drop(std::int32_t layer, SlotIndex slot) { return {PlanVerb::kDrop, layer, slot, slot, false}; }

PlacementPolicy full(std::int64_t num_layers, RecomputeMethod method = RecomputeMethod::kUniform) {
  PlacementPolicy policy;
  policy.granularity = RecomputeGranularity::kFull;
  policy.method = method;
  policy.num_layers = num_layers;
  return policy;
}

PlacementPolicy selective(std::vector<std::string> modules) {
  PlacementPolicy policy;
  policy.granularity = RecomputeGranularity::kSelective;
  policy.modules = std::move(modules);
  return policy;
}

PlacementPolicy rows(std::vector<PlacementRow> each) {
  PlacementPolicy policy;
  policy.rows = std::move(each);
  return policy;
}

PlacementRow recompute(std::int64_t first, std::int64_t last, const std::string& name) {
  return {first, last, name, PlacementAction::kRecompute};
}

PlacementPlan plan_of(std::int64_t layers, const PlacementPolicy& policy, bool stops = false) {
  FrameworkPreset framework;
  framework.stops_after_last_saved = stops;
  const PlacementPlan plan = make_plan(small_layer(), layers, policy, framework);
  EXPECT_EQ(plan_error(plan, small_layer(), layers), "");
  return plan;
}

std::string refusal(const PlacementPolicy& policy, std::int64_t layers = 4) {
  try {
    check_policy(policy, small_layer(), layers, AttentionKind::kUnfused);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(PlacementPlan, KeepingEverythingRunsEveryLayerOnceEachWay) {
  const PlacementPlan plan = plan_of(2, {});
  EXPECT_THAT(plan.forward, ElementsAre(forward(0, 0, 2), forward(1, 0, 2)));
  EXPECT_THAT(plan.backward, ElementsAre(backward(1, 0, 2), backward(0, 0, 2)));
  EXPECT_EQ(forward_runs(plan, small_layer(), 2), 1.0);
}

TEST(PlacementPlan, UniformSegmentsKeepOnlyTheirFirstInput) {
  const PlacementPlan plan = plan_of(3, full(2));  // segments 0-1 and 2
  EXPECT_THAT(plan.forward, ElementsAre(forward(0, 0, 2), drop(0, 1), drop(0, 2), forward(1, 0, 2), drop(1, 1), drop(1, 2), drop(1, 0),
                                        forward(2, 0, 2), drop(2, 1), drop(2, 2)));
  EXPECT_THAT(plan.backward,
              ElementsAre(again(2, 0, 2), backward(2, 0, 2), again(0, 0, 2), again(1, 0, 2), backward(1, 0, 2), backward(0, 0, 2)));
  EXPECT_EQ(forward_runs(plan, small_layer(), 3), 2.0);
}

TEST(PlacementPlan, ReRunMayStopAfterTheLastSavedStorage) {
  // fc2 makes only the output: the last layer of a segment runs fc1 and act, the one before all three.
  EXPECT_THAT(plan_of(2, full(2), true).backward, ElementsAre(again(0, 0, 2), again(1, 0, 1), backward(1, 0, 2), backward(0, 0, 2)));
}

TEST(PlacementPlan, BlockRunsTheFirstLayersAgainOneByOne) {
  const PlacementPlan plan = plan_of(3, full(2, RecomputeMethod::kBlock));
  EXPECT_THAT(plan.forward,
              ElementsAre(forward(0, 0, 2), drop(0, 1), drop(0, 2), forward(1, 0, 2), drop(1, 1), drop(1, 2), forward(2, 0, 2)));
  EXPECT_THAT(plan.backward, ElementsAre(backward(2, 0, 2), again(1, 0, 2), backward(1, 0, 2), again(0, 0, 2), backward(0, 0, 2)));
}

TEST(PlacementPlan, EqualSegmentsPutTheLargerOnesFirst) {
  PlacementPolicy policy;
  policy.segments = 3;  // of 5 layers: 2, 2, 1
  PlacementPolicy sizes;
  sizes.segment_sizes = {2, 2, 1};
  EXPECT_EQ(plan_of(5, policy).backward, plan_of(5, sizes).backward);
  EXPECT_EQ(plan_of(5, policy).forward, plan_of(5, sizes).forward);
}

TEST(PlacementPlan, HalvingRunsLayersLogarithmicallyOften) {
  // T(n) = n/2 on the way to the middle + 2 T(n/2), T(1) = 1: n (1 + log2(n) / 2) layer runs for n = 2^k.
  PlacementPolicy policy;
  policy.halving = true;
  for (int k = 0; k <= 6; ++k) {
    const std::int64_t layers = std::int64_t{1} << k;
    EXPECT_EQ(forward_runs(plan_of(layers, policy), small_layer(), layers), 1.0 + k / 2.0) << layers;
  }
  EXPECT_THAT(plan_of(2, policy).backward, ElementsAre(backward(1, 0, 2), again(0, 0, 2), backward(0, 0, 2)));
}

TEST(PlacementPlan, OrdinaryModuleRunsAgainAsAWhole) {
  // mlp is the whole small layer; it frees the fc1 and act outputs. Backward op 0 reads the act output: everything runs before it.
  EXPECT_THAT(plan_of(1, selective({"mlp"})).forward, ElementsAre(forward(0, 0, 2), drop(0, 1), drop(0, 2)));
  EXPECT_THAT(plan_of(1, selective({"mlp"})).backward, ElementsAre(again(0, 0, 2), backward(0, 0, 2)));
  EXPECT_THAT(plan_of(1, selective({"mlp"}), true).backward, ElementsAre(again(0, 0, 1), backward(0, 0, 2)));
}

TEST(PlacementPlan, OrdinaryModuleKeepsWhatALaterOpSaves) {
  LayerTemplate layer = small_layer();
  layer.forward[2].module = "";  // fc2 outside: it saves the act output itself
  layer.slots[2].module = "mlp";
  const PlacementPlan plan = make_plan(layer, 1, selective({"mlp"}), {});
  EXPECT_EQ(plan_error(plan, layer, 1), "");
  EXPECT_THAT(plan.forward, ElementsAre(forward(0, 0, 2), drop(0, 1)));
  EXPECT_THAT(plan.backward, ElementsAre(backward(0, 0, 0), again(0, 0, 1), backward(0, 1, 2)));
}

TEST(PlacementPlan, OutputDiscardingMakesOnlyTheOutputAgain) {
  const PlacementPlan plan = plan_of(1, selective({"act"}));
  EXPECT_THAT(plan.forward, ElementsAre(forward(0, 0, 2), drop(0, 2)));
  EXPECT_THAT(plan.backward, ElementsAre(again(0, 1, 1), backward(0, 0, 2)));
}

TEST(PlacementPlan, RowsRunTheClosureBeforeTheFirstReader) {
  EXPECT_THAT(plan_of(1, rows({recompute(0, -1, "fc1 output")})).backward,
              ElementsAre(backward(0, 0, 0), again(0, 0, 0), backward(0, 1, 2)));
  // The act output needs the fc1 output, which is dropped too and then stays.
  EXPECT_THAT(plan_of(1, rows({recompute(0, -1, "fc1 output"), recompute(0, -1, "act output")})).backward,
              ElementsAre(again(0, 0, 1), backward(0, 0, 2)));
  EXPECT_THAT(plan_of(1, rows({recompute(0, -1, "*")})).backward, ElementsAre(again(0, 0, 1), backward(0, 0, 2)));
}

TEST(PlacementPlan, RowsHoldForTheirLayersAndLaterRowsWin) {
  const PlacementPlan plan = plan_of(3, rows({recompute(1, 2, "act"), {2, 2, "act output", PlacementAction::kKeep}}));
  EXPECT_THAT(plan.forward, ElementsAre(forward(0, 0, 2), forward(1, 0, 2), drop(1, 2), forward(2, 0, 2)));
  EXPECT_THAT(plan.backward, ElementsAre(backward(2, 0, 2), again(1, 1, 1), backward(1, 0, 2), backward(0, 0, 2)));
}

TEST(PlacementPlan, RowsMayDropWhatOneLayerHandsToTheNext) {
  // Layer 1's input is layer 0's output: fc2 of layer 0 makes it again, from the act output that is still there.
  const PlacementPlan by_output = plan_of(2, rows({recompute(0, 0, "output")}));
  EXPECT_THAT(by_output.backward, ElementsAre(backward(1, 0, 1), again(0, 2, 2), backward(1, 2, 2), backward(0, 0, 2)));
  EXPECT_EQ(plan_of(2, rows({recompute(1, 1, "input")})).backward, by_output.backward);
}

// Which rows drop what, straight from the meaning of a table: in every layer the last row that selects a storage decides.
std::vector<PlanStep> drops_by_hand(std::int64_t layers, const std::vector<PlacementRow>& table) {
  const auto selects = [](const std::string& name, SlotIndex slot) {
    if (slot == 0 || slot == 3) return name == (slot == 0 ? "input" : "output");
    const std::vector<std::string> names =
        slot == 1 ? std::vector<std::string>{"fc1 output", "mlp", "*"} : std::vector<std::string>{"act output", "mlp", "act", "*"};
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  std::vector<PlanStep> drops;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    std::map<std::size_t, std::vector<SlotIndex>> by_row;  // those of one row together
    for (const SlotIndex slot : {0, 1, 2}) {
      std::optional<std::size_t> last;
      for (std::size_t row = 0; row < table.size(); ++row) {
        const auto covers = [&](std::int64_t of) {
          return of >= table[row].first_layer && of <= (table[row].last_layer == -1 ? layers - 1 : table[row].last_layer);
        };
        const bool handed_on = slot == 0 && selects(table[row].module_or_slot, 3) && covers(layer - 1);
        if (handed_on || (selects(table[row].module_or_slot, slot) && covers(layer))) last = row;
      }
      if (last && table[*last].action == PlacementAction::kRecompute) by_row[*last].push_back(slot);
    }
    for (const auto& [row, slots] : by_row) {
      for (const SlotIndex slot : slots) drops.push_back(drop(static_cast<std::int32_t>(layer), slot));
    }
  }
  return drops;
}

TEST(PlacementPlan, TablesOfManyRowsMeanWhatTheirRowsSay) {
  constexpr const char* kNames[] = {"fc1 output", "act output", "mlp", "act", "*", "input", "output"};
  std::uint32_t random = 1;  // Numerical Recipes' generator: the same tables everywhere
  const auto below = [&random](std::int64_t limit) {
    random = random * 1664525 + 1013904223;
    return static_cast<std::int64_t>(random >> 8) % limit;
  };
  for (int table = 0; table < 300; ++table) {
    const std::int64_t layers = 2 + below(12);
    std::vector<PlacementRow> each;
    for (std::int64_t row = below(25); row >= 0; --row) {
      const char* name = kNames[below(7)];
      const std::int64_t least = name == std::string("input") ? 1 : 0, most = name == std::string("output") ? layers - 2 : layers - 1;
      const std::int64_t first = least + below(most - least + 1), last = first + below(most - first + 1);
      each.push_back({first, last == layers - 1 && below(2) == 0 ? -1 : last, name,
                      below(3) == 0 ? PlacementAction::kKeep : PlacementAction::kRecompute});
    }
    EXPECT_EQ(refusal(rows(each), layers), "");
    std::vector<PlanStep> drops;
    for (const PlanStep& step : plan_of(layers, rows(each)).forward) {
      if (step.verb == PlanVerb::kDrop) drops.push_back(step);
    }
    EXPECT_EQ(drops, drops_by_hand(layers, each)) << table;
  }
}

// A planner by tensor writes layers x tensors rows. 100,000 rows that all cover all layers took hours when each layer looked at each row.
TEST(PlacementPlan, TimeGrowsWithTheRowsAlone) {
  std::vector<PlacementRow> each;
  for (std::int64_t row = 0; row < 100'000; ++row) {
    each.push_back({0, -1, row % 2 == 0 ? "mlp" : "act", row % 3 == 0 ? PlacementAction::kKeep : PlacementAction::kRecompute});
  }
  each.back() = recompute(5, 5, "mlp");
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(refusal(rows(each), 126), "");
  const PlacementPlan plan = plan_of(126, rows(each));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  // Rows 99,996 (mlp, keep) and 99,997 (act, recompute) are followed by 99,998 (mlp, recompute), which has both storages of every layer.
  std::int64_t drops = 0;
  for (const PlanStep& step : plan.forward) drops += step.verb == PlanVerb::kDrop;
  EXPECT_EQ(drops, 2 * 126);
}

TEST(PlacementPlan, EveryPolicyIsValidForEveryNumberOfLayers) {
  for (const std::int64_t layers : {1, 2, 3, 5, 8, 13, 32}) {
    std::vector<PlacementPolicy> policies = {{}, selective({"mlp"}), selective({"act"}), selective({"act", "mlp"})};
    for (std::int64_t n = 1; n <= layers; ++n) {
      policies.push_back(full(n));
      policies.push_back(full(n, RecomputeMethod::kBlock));
      policies.emplace_back().segments = n;
      policies.push_back(rows({recompute(n - 1, -1, "*")}));
      policies.push_back(rows({recompute(0, n - 1, "fc1 output")}));
    }
    policies.emplace_back().halving = true;
    if (layers > 1) policies.push_back(rows({recompute(1, -1, "input"), recompute(0, -1, "*")}));
    for (const PlacementPolicy& policy : policies) {
      EXPECT_NO_THROW(check_policy(policy, small_layer(), layers, AttentionKind::kUnfused));
      plan_of(layers, policy);
      plan_of(layers, policy, true);
    }
  }
}

TEST(PlanError, NamesWhatIsWrong) {
  const LayerTemplate layer = small_layer();
  const auto error = [&layer](PlacementPlan plan) { return plan_error(plan, layer, 1); };
  EXPECT_EQ(error({{forward(0, 0, 2)}, {backward(0, 0, 2)}}), "");
  EXPECT_THAT(error({{forward(0, 0, 2), drop(0, 2)}, {backward(0, 0, 2)}}), HasSubstr("reads \"act output\", which is not there"));
  EXPECT_THAT(error({{forward(0, 0, 2), drop(0, 1)}, {backward(0, 0, 0), again(0, 1, 1)}}), HasSubstr("needs \"fc1 output\""));
  EXPECT_THAT(error({{forward(0, 0, 2)}, {backward(0, 0, 2), backward(0, 2, 2)}}), HasSubstr("twice"));
  EXPECT_THAT(error({{forward(0, 0, 2)}, {backward(0, 0, 1)}}), HasSubstr("does not run every backward op"));
  EXPECT_THAT(error({{forward(0, 0, 1)}, {}}), HasSubstr("does not run every forward op"));
  EXPECT_THAT(error({{forward(0, 0, 2)}, {backward(0, 1, 1)}}), HasSubstr("\"act gradient\", which is not made yet"));
  EXPECT_THAT(error({{forward(0, 0, 3)}, {}}), HasSubstr("range 0 to 3 of 3"));
  EXPECT_THAT(error({{forward(1, 0, 2)}, {}}), HasSubstr("layer 1 of 1"));
  EXPECT_THAT(error({{again(0, 0, 2)}, {}}), HasSubstr("re-run"));
  EXPECT_THAT(error({{forward(0, 0, 2), forward(0, 0, 0)}, {}}), HasSubstr("second run"));
  EXPECT_THAT(error({{forward(0, 0, 2), drop(0, 1), drop(0, 1)}, {}}), HasSubstr("twice"));
  EXPECT_THAT(error({{forward(0, 0, 2), drop(0, 5)}, {}}), HasSubstr("not made in forward"));
  EXPECT_THAT(error({{forward(0, 0, 2), drop(0, 3)}, {}}), HasSubstr("before the head reads it"));
}

TEST(PlanError, TransientsDoNotOutliveTheirRun) {
  LayerTemplate layer = small_layer();
  layer.backward[1].reads = {5};  // backward no longer needs the fc1 output: a transient
  const PlacementPlan wrong{{forward(0, 0, 2), drop(0, 2)}, {again(0, 1, 1), backward(0, 0, 2)}};
  EXPECT_THAT(plan_error(wrong, layer, 1), HasSubstr("needs \"fc1 output\""));
  const PlacementPlan right = make_plan(layer, 1, selective({"act"}), {});
  EXPECT_EQ(plan_error(right, layer, 1), "");
  EXPECT_THAT(right.backward, ElementsAre(again(0, 0, 1), backward(0, 0, 2)));
}

TEST(PlanError, UpdatesInPlaceNeedAFreshCopy) {
  LayerTemplate layer = small_layer();
  layer.forward[1] = small_op("act in place", {}, {}, {1}, "act");  // works on the fc1 output
  layer.forward[2].reads = {1, 0, 8};
  layer.backward[0].reads = {4, 1, 8};
  layer.slots[2].kind = SlotKind::kWorkspace;
  const PlacementPlan twice{{forward(0, 0, 2)}, {again(0, 1, 1), backward(0, 0, 2)}};
  EXPECT_THAT(plan_error(twice, layer, 1), HasSubstr("\"act in place\" needs \"fc1 output\""));
  const PlacementPlan right = make_plan(layer, 1, rows({recompute(0, 0, "fc1 output")}), {});
  EXPECT_EQ(plan_error(right, layer, 1), "");
  EXPECT_THAT(right.backward, ElementsAre(again(0, 0, 1), backward(0, 0, 2)));
}

TEST(CheckPolicy, RefusesWhatCannotBe) {
  EXPECT_EQ(refusal(full(4)), "");
  EXPECT_EQ(refusal(full(5)), "--recompute-num-layers: found 5, wanted 1 to 4 (the layers)");
  EXPECT_EQ(refusal(full(0)), "--recompute-num-layers: found 0, wanted 1 to 4 (the layers)");
  PlacementPolicy segments;
  segments.segments = 5;
  EXPECT_EQ(refusal(segments), "--recompute-segments: found 5, wanted 1 to 4 (the layers)");
  segments.segments = 2;
  segments.halving = true;
  EXPECT_THAT(refusal(segments), HasSubstr("--recompute-segments: found two of"));
  PlacementPolicy sizes;
  sizes.segment_sizes = {2, 1};
  EXPECT_EQ(refusal(sizes), "--recompute-segments: found sizes that add up to 3, wanted exactly the 4 layers");
  sizes.segment_sizes = {2, 3};
  EXPECT_THAT(refusal(sizes), HasSubstr("more than 4"));
  sizes.segment_sizes = {4, 0};
  EXPECT_THAT(refusal(sizes), HasSubstr("a segment of 0 layers"));
  sizes.segment_sizes = {1, 3};
  sizes.granularity = RecomputeGranularity::kSelective;
  EXPECT_THAT(refusal(sizes), HasSubstr("--recompute selective"));
}

TEST(CheckPolicy, RefusesModulesThatTheModelLacks) {
  EXPECT_EQ(refusal(selective({"mlp", "act"})), "");
  EXPECT_EQ(refusal(selective({"moe"})), "--recompute-modules: found \"moe\", which this model has not, wanted some of mlp, act");
  EXPECT_THAT(refusal(selective({"mla_up_proj"})), HasSubstr("which this model has not"));
  EXPECT_EQ(refusal(selective({"mpl"})), "--recompute-modules: found \"mpl\", wanted some of mlp, act, did you mean \"mlp\"?");
}

TEST(CheckPolicy, RefusesRowsThatSelectNothing) {
  EXPECT_EQ(refusal(rows({recompute(0, -1, "act output")})), "");
  EXPECT_EQ(refusal(rows({recompute(2, 4, "act")})), "--placement: found layers 2 to 4, wanted a range within 0 to 3");
  EXPECT_THAT(refusal(rows({recompute(0, -1, "act outptu")})), HasSubstr("did you mean \"act output\"?"));
  EXPECT_THAT(refusal(rows({recompute(0, -1, "act gradient")})), HasSubstr("backward does not read"));
  EXPECT_THAT(refusal(rows({recompute(0, 1, "input")})), HasSubstr("layer 0"));
  EXPECT_THAT(refusal(rows({recompute(0, -1, "output")})), HasSubstr("of the last layer"));
  PlacementPolicy policy = rows(std::vector<PlacementRow>(1'000'001, recompute(0, -1, "act")));
  EXPECT_EQ(refusal(policy), "--placement: found 1000001 rows, wanted at most 1000000");
  policy.rows.resize(1);
  policy.granularity = RecomputeGranularity::kFull;
  EXPECT_THAT(refusal(policy), HasSubstr("rows with full recompute"));
}

TEST(CheckPolicy, SaysThatDroppingAViewFreesNothing) {
  LayerTemplate layer = small_layer();
  layer.slots.push_back(small_slot("gate", SlotKind::kForward, 20));
  layer.slots.back().view_of = 1;
  try {
    check_policy(rows({recompute(0, -1, "gate")}), layer, 4, AttentionKind::kUnfused);
    FAIL() << "a view was accepted";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "--placement: found \"gate\", a view whose dropping frees nothing, wanted its storage \"fc1 output\"");
  }
}

TEST(CheckPolicy, WarnsWhereFusedAttentionLeavesNothingToFree) {
  LayerTemplate layer = small_layer();
  layer.slots[2].module = "core_attn";  // 16 of 64 bytes
  layer.forward[1].module = layer.forward[2].module = "core_attn";
  EXPECT_THAT(check_policy(selective({}), layer, 4, AttentionKind::kUnfused), ElementsAre());
  EXPECT_THAT(check_policy(selective({}), layer, 4, AttentionKind::kFlash), ElementsAre(HasSubstr("core_attn frees 25.0 %")));
}

TEST(SlotTable, NamesModulesInCommaSeparatedLists) {
  EXPECT_TRUE(names_module("mlp,act", "act"));
  EXPECT_TRUE(names_module("mlp , act", "mlp"));
  EXPECT_FALSE(names_module("moe_act", "act"));
  EXPECT_FALSE(names_module("", "act"));
}

}  // namespace
}  // namespace stepsim
