// Stacks fitted on published steps, with a simulator whose steps a person can add up.
#include "tools/calibrate_published.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <set>

#include "tests/unit/error_of.h"
#include "tests/unit/tools/test_jobs.h"
#include "tools/published_calibration.h"
#include "tools/published_rows.h"

namespace stepsim {
namespace {

using testing::HasSubstr;

// A step of `alone_s`, 60 % of it products, and bands 10 % below it. Attention is 0 to 30 % of it: 10 % for each hundred seconds.
double step_s(double alone_s, double slowdown, double attention = 1) {
  return alone_s * (0.4 + 0.6 * slowdown + 0.001 * alone_s * (attention - 1));
}

struct Simulator {
  std::size_t runs = 0;
  std::set<double> slowdowns{};
  std::vector<SimulatedStep> operator()(std::span<const PublishedStep> steps) {
    std::vector<SimulatedStep> simulated;
    for (const PublishedStep& step : steps) {
      ++runs;
      const StackSpec stack = load_stack(step.input.flags.back().value);
      slowdowns.insert(stack.gemm.expected);
      SimulatedStep each;
      each.step_s = step_s(static_cast<double>(step.dimensions.front().second), stack.gemm.expected, stack.attention.expected);
      each.lower_s = 0.9 * each.step_s;
      each.upper_s = 1.2 * each.step_s;
      if (step.id == "refused") each.refused = "--tp: found 3, wanted 4";
      simulated.push_back(each);
    }
    return simulated;
  }
};

GroupedStep grouped_step(const std::string& id, std::int64_t alone_s, double slowdown, bool experts = false) {
  GroupedStep each{.experts = experts, .gpus = 8 * alone_s};
  each.step.id = id;
  each.step.dimensions = {{"hidden", alone_s}};
  each.step.measured_s = step_s(static_cast<double>(alone_s), slowdown);
  return each;
}

StackGroup group_of(std::vector<GroupedStep> steps) {
  return {.name = "mine", .machines = {"b200"}, .precisions = {"fp8"}, .frameworks = {"nemo@24.07"}, .steps = std::move(steps)};
}

StackCalibration calibrated(const StackGroup& group, Simulator& simulator, const FitChoice& choice = {}) {
  return calibrate_published(group, choice, [&](std::span<const PublishedStep> steps) { return simulator(steps); });
}

// Every second configuration by hash; repeats, also by other releases, are on one side.
TEST(HeldOutHalf, RepeatsNeverPartAndHalvesAreEven) {
  std::vector<std::string> texts;
  for (int i = 0; i < 20; ++i) texts.push_back(fmt::format("job {}", i % 10));
  const std::vector<bool> held_out = held_out_half(texts);
  std::size_t count = 0;
  for (std::size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(held_out[i], held_out[i + 10]);
    count += held_out[i] ? 1 : 0;
  }
  EXPECT_EQ(count, 5u);
  EXPECT_EQ(held_out_half({"alone", "alone"}), (std::vector<bool>{false, false}));
  std::reverse(texts.begin(), texts.end());  // by text, not by place
  const std::vector<bool> reversed = held_out_half(texts);
  for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(reversed[i], held_out[19 - i]);
}

TEST(ConfigurationText, IsTheSameForOtherReleasesAndStacks) {
  PublishedStep step;
  step.set("--tp", "parallel.tp", "8");
  step.set("--framework", "framework.name", "nemo@24.07");
  PublishedStep other = step;
  other.id = "B2";
  other.measured_s = 3;
  other.input.flags.back().value = "nemo@25.01";
  other.set("--stack", "hardware.stack", "none");
  EXPECT_EQ(configuration_text(step), configuration_text(other));
  other.dimensions = {{"hidden", 64}};
  EXPECT_NE(configuration_text(step), configuration_text(other));
}

TEST(CalibratePublished, FindsTheSlowdownOnHalfAndTestsTheOther) {
  std::vector<GroupedStep> steps;
  for (std::int64_t i = 1; i <= 8; ++i) steps.push_back(grouped_step(fmt::format("r{}", i), i, 1.5));
  Simulator simulator;
  const StackCalibration found = calibrated(group_of(steps), simulator);
  EXPECT_EQ(found.stack.gemm.expected, 1.5);
  EXPECT_EQ(found.stack.gemm.lower, 1.5);
  EXPECT_EQ(found.stack.machines, std::vector<std::string>{"b200"});
  ASSERT_EQ(found.stack.evidence.size(), 1u);
  const StackEvidence& evidence = found.stack.evidence[0];
  EXPECT_EQ(evidence.models, "dense");
  EXPECT_EQ(evidence.rows, 4);
  EXPECT_NEAR(evidence.error_before, 1 - 1 / 1.3, 1e-9);  // 0.4 + 0.6 x 1.5 = 1.3 against 1
  EXPECT_NEAR(evidence.error_after, 0, 1e-9);
  EXPECT_NEAR(evidence.left_out.value(), 0, 1e-9);
  ASSERT_TRUE(evidence.held_out);
  EXPECT_EQ(evidence.held_out->rows, 4);
  EXPECT_EQ(evidence.held_out->jobs, 4);
  EXPECT_NEAR(evidence.held_out->upper, 0, 1e-9);
  EXPECT_NEAR(evidence.held_out->kernel_width, 0.1, 1e-9);
  EXPECT_EQ(simulator.runs, 4u * 4 + 4 * 2);  // the fitted at 1, 1.4, 1.8 and 1.5, the others at 1 and 1.5
  EXPECT_EQ(simulator.slowdowns, (std::set<double>{1, 1.4, 1.5, 1.8}));
}

// Held-out steps that took 3 % more and 2 % less than simulated are the percentiles.
TEST(CalibratePublished, ResidualsOfTheHeldOutHalf) {
  std::vector<GroupedStep> steps;
  for (std::int64_t i = 1; i <= 8; ++i) steps.push_back(grouped_step(fmt::format("r{}", i), i, 1.2));
  std::vector<std::string> texts;
  for (const GroupedStep& each : steps) texts.push_back(configuration_text(each.step));
  const std::vector<bool> held_out = held_out_half(texts);
  std::size_t seen = 0;
  std::int64_t most = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (!held_out[i]) continue;
    steps[i].step.measured_s *= seen++ == 0 ? 1.03 : 0.98;
    most = std::max(most, steps[i].gpus);
  }
  Simulator simulator;
  const StackCalibration found = calibrated(group_of(steps), simulator);
  EXPECT_EQ(found.stack.gemm.expected, 1.2);
  const HeldOutSteps& residuals = found.stack.evidence.at(0).held_out.value();
  EXPECT_NEAR(residuals.lower, -0.02, 1e-9);
  EXPECT_NEAR(residuals.upper, 0.03, 1e-9);
  EXPECT_EQ(residuals.most_gpus, most);
  EXPECT_NEAR(found.stack.evidence[0].left_out.value(), (std::fabs(1 / 1.03 - 1) + 3 * (1 / 0.98 - 1)) / 4, 1e-9);
}

TEST(CalibratePublished, ExpertsAreHalvedApartOrTestedOnly) {
  std::vector<GroupedStep> steps;
  for (std::int64_t i = 1; i <= 4; ++i) steps.push_back(grouped_step(fmt::format("d{}", i), i, 1.2));
  for (std::int64_t i = 5; i <= 8; ++i) steps.push_back(grouped_step(fmt::format("e{}", i), i, 1.6, true));
  Simulator simulator;
  const StackCalibration dense = calibrated(group_of(steps), simulator, {.dense_only = true});
  EXPECT_EQ(dense.stack.gemm.expected, 1.2);
  ASSERT_EQ(dense.stack.evidence.size(), 2u);
  EXPECT_EQ(dense.stack.evidence[1].models, "experts");
  EXPECT_EQ(dense.stack.evidence[1].held_out->rows, 4);
  EXPECT_EQ(dense.stack.evidence[1].fitted_on, "");
  // 0.4 + 0.6 x 1.6 = 1.36 over 0.4 + 0.6 x 1.2 = 1.12.
  EXPECT_NEAR(dense.stack.evidence[1].held_out->upper, 1.36 / 1.12 - 1, 1e-9);
  const StackCalibration all = calibrated(group_of(steps), simulator);
  EXPECT_EQ(all.stack.evidence.at(0).rows, 2);
  EXPECT_EQ(all.stack.evidence.at(1).rows, 2);
  EXPECT_GT(all.stack.gemm.expected, 1.2);
  EXPECT_LT(all.stack.gemm.expected, 1.6);
}

// Products 1.25, attention 0.85: steps that hang on attention more and less tell them apart.
TEST(CalibratePublished, AttentionBesideProducts) {
  std::vector<GroupedStep> steps;
  for (std::int64_t i = 1; i <= 12; ++i) {
    steps.push_back(grouped_step(fmt::format("r{}", i), 25 * i, 1));
    steps.back().step.measured_s = step_s(static_cast<double>(25 * i), 1.25, 0.85);
  }
  Simulator simulator;
  const StackCalibration found = calibrated(group_of(steps), simulator, {.attention = true});
  EXPECT_NEAR(found.stack.gemm.expected, 1.25, 0.002);
  EXPECT_NEAR(found.stack.attention.expected, 0.85, 0.01);
  EXPECT_LT(found.stack.evidence.at(0).left_out.value(), 0.002);
  EXPECT_EQ(calibrated(group_of(steps), simulator).stack.attention.expected, 1);
}

TEST(CalibratePublished, RefusedStepsAreLeftOutAndNamed) {
  Simulator simulator;
  const StackCalibration found = calibrated(group_of({grouped_step("a", 1, 1.2), grouped_step("refused", 1, 1.2)}), simulator);
  EXPECT_EQ(found.stack.gemm.expected, 1.2);
  EXPECT_EQ(found.steps[1].refused, "--tp: found 3, wanted 4");
  EXPECT_EQ(found.stack.evidence.at(0).rows, 1);
  EXPECT_FALSE(found.stack.evidence[0].held_out);  // one configuration: nothing is held out
  EXPECT_THAT(error_of([&] { calibrated(group_of({grouped_step("refused", 1, 1.2)}), simulator); }),
              HasSubstr("mine: found no step that can be fitted: --tp: found 3, wanted 4"));
}

TEST(CalibratePublished, TheFileLoadsWithItsEvidence) {
  std::vector<GroupedStep> steps;
  for (std::int64_t i = 1; i <= 8; ++i) steps.push_back(grouped_step(fmt::format("r{}", i), i, i % 2 == 0 ? 1.5 : 1.4));
  Simulator simulator;
  StackCalibration found = calibrated(group_of(steps), simulator);
  found.stack.software = "ours \\ \"1\"";
  found.stack.straggler_per_doubling = 0.01;
  found.stack.evidence[0].source = "a table";
  found.stack.evidence[0].command = "stepsim calibrate --published";
  found.stack.evidence[0].date = "2026-11-30";
  const StackSpec read = load_stack(written("calibrate_published_stack.textproto", stack_file_text(found)));
  EXPECT_NEAR(read.gemm.expected, found.stack.gemm.expected, 1e-9);
  EXPECT_NEAR(read.gemm.upper, found.stack.gemm.upper, 1e-9);
  EXPECT_EQ(read.software, found.stack.software);
  EXPECT_EQ(read.straggler_per_doubling, 0.01);
  ASSERT_EQ(read.evidence.size(), 1u);
  const StackEvidence &evidence = read.evidence[0], &wanted = found.stack.evidence[0];
  EXPECT_EQ(evidence.frameworks, std::vector<std::string>{"nemo@24.07"});
  EXPECT_EQ(evidence.models, "dense");
  EXPECT_EQ(evidence.fitted_on, wanted.fitted_on);
  EXPECT_EQ(evidence.date, "2026-11-30");
  ASSERT_TRUE(evidence.held_out);
  EXPECT_EQ(evidence.held_out->jobs, wanted.held_out->jobs);
  EXPECT_NEAR(evidence.held_out->lower, wanted.held_out->lower, 1e-4);
  EXPECT_NEAR(evidence.held_out->upper, wanted.held_out->upper, 1e-4);
  EXPECT_EQ(evidence.held_out->most_gpus, wanted.held_out->most_gpus);
  const std::string text = published_calibration_text({.stacks = {found}});
  EXPECT_THAT(text, HasSubstr("dense, held out"));
  EXPECT_THAT(text, HasSubstr("Steps of the fitted half in the 5th to 95th percentile of the other half:"));
}

TEST(RowConditions, AmongAndNone) {
  const std::vector<RowCondition> conditions = row_conditions("precision=fp8|fp8-cs,id!=B1", "--where");
  ASSERT_EQ(conditions.size(), 2u);
  EXPECT_EQ(conditions[0].column, "precision");
  EXPECT_EQ(conditions[0].values, (std::vector<std::string>{"fp8", "fp8-cs"}));
  EXPECT_TRUE(conditions[0].among);
  EXPECT_EQ(conditions[1].column, "id");
  EXPECT_FALSE(conditions[1].among);
  EXPECT_TRUE(row_conditions("", "--where").empty());
  EXPECT_EQ(error_of([] { row_conditions("fp8", "--where"); }), "--where: found \"fp8\", wanted COLUMN=VALUE, COLUMN=A|B or COLUMN!=VALUE");
  const CsvTable table = parse_csv("a,b\n1,2\n", "t.csv");
  EXPECT_THAT(error_of([&] { published_rows(table, "vtrain", row_conditions("c=1", "--where")); }),
              HasSubstr("--where: found column \"c\", wanted one of a, b"));
  EXPECT_THAT(error_of([&] { published_rows(table, "gemm", {}); }), HasSubstr("wanted a format of steps: results, mpt or vtrain"));
}

}  // namespace
}  // namespace stepsim
