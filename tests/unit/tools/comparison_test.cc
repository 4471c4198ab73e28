#include "tools/comparison.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/unit/tools/test_jobs.h"
#include "tools/time_shares.h"

namespace stepsim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ComparedStep step_of(const JobInput& input, const std::string& label = "step") {
  const Job job = resolve_job(input);
  return compared_step(label, job, run_step(job));
}

double figure(const ComparedStep& step, const std::string& key) {
  for (const ComparedFigure& each : step.figures) {
    if (each.key == key) return each.value.value_or(-1);
  }
  return -2;
}

TEST(TimeShares, AddUpToTheStep) {
  for (const JobInput& input : {main_job("4"), pipeline_job(), main_job("4", {flag("--placement", "save-on-cpu")}),
                                main_job("4", {flag("--dp", "4"), flag("--zero", "3")})}) {
    const StepRun run = run_step(resolve_job(input));
    Duration sum{};
    for (const auto& [name, time] : time_shares(run.step.graph, run.run)) {
      EXPECT_GT(time, Duration{}) << name;
      sum += time;
    }
    EXPECT_EQ(sum, run.run.result.end);
  }
}

TEST(TimeShares, ExposedCopiesAreNamed) {
  const StepRun run =
      run_step(resolve_job(main_job("4", {flag("--offload-modules", "input"), parse_set("hardware.host_to_device=10 MB/s")})));
  Duration waits{};
  for (const auto& [name, time] : time_shares(run.step.graph, run.run)) {
    if (name == "waiting for backward copy in input") waits = time;
  }
  EXPECT_EQ(waits, exposed_copies(run.run.time, run.step.phases).backward);
}

TEST(Comparison, TwiceTheLayersTakeTwiceTheTime) {
  const ComparedStep two = step_of(main_job("2")), four = step_of(main_job("4"));
  const std::vector<OpDifference> differences = op_differences(two, four);
  Duration sum{};
  bool found = false;
  for (std::size_t i = 0; i < differences.size(); ++i) {
    const OpDifference& each = differences[i];
    sum += each.difference();
    const Duration before = differences[i == 0 ? 0 : i - 1].difference();
    EXPECT_LE(std::abs(each.difference().count()), std::abs(before.count()));
    if (each.name != "forward gate and up") continue;
    found = true;
    EXPECT_EQ(each.other, 2 * each.base);  // the same product, alone on its device
  }
  EXPECT_TRUE(found);
  EXPECT_NEAR(seconds(sum), figure(four, "step_time_s") - figure(two, "step_time_s"), 1e-12);
  EXPECT_THAT(op_differences(two, two), IsEmpty());
}

TEST(Comparison, NamesTheValuesThatDiffer) {
  const ComparedStep base = step_of(main_job("4"));
  const ComparedStep other = step_of(main_job("4", {parse_set("hardware.hbm=4000 GB/s"), parse_set("training.optimizer=sgd")}));
  const std::vector<ChangedValue> changed = changed_values({base, other});
  ASSERT_EQ(changed.size(), 2u);
  EXPECT_EQ(changed[0].path, "hardware.hbm");
  EXPECT_THAT(changed[0].values, ElementsAre("", "4000 GB/s"));
  EXPECT_EQ(changed[1].path, "training.optimizer");
  EXPECT_THAT(changed[1].values, ElementsAre("adamw", "sgd"));
  EXPECT_THAT(changed_values({base, base}), IsEmpty());
}

TEST(Comparison, TextAndJsonSayTheSame) {
  const ComparedStep base = step_of(main_job("4"), "a"), full = step_of(main_job("4", {flag("--recompute", "full")}), "b"),
                     slow = step_of(main_job("4", {parse_set("hardware.memory=1 GB")}), "c");
  const std::string text = comparison_text({base, full, slow});
  EXPECT_THAT(
      text,
      HasSubstr("1: a (llama3-8b on 8 x h100-sxm-80gb, none): fits\n2: b (llama3-8b on 8 x h100-sxm-80gb, full (uniform 1)): fits\n"));
  EXPECT_THAT(text, HasSubstr("GiB short\n"));
  EXPECT_THAT(text, HasSubstr("from 1 to 2"));
  EXPECT_THAT(text, HasSubstr("recompute ms"));
  EXPECT_THAT(text, testing::Not(HasSubstr("bubble")));  // no step has one
  const auto json = nlohmann::json::parse(comparison_json({base, full, slow}));
  ASSERT_EQ(json["jobs"].size(), 3u);
  ASSERT_EQ(json["differences"].size(), 2u);
  const double difference = figure(full, "step_time_s") - figure(base, "step_time_s");
  EXPECT_EQ(json["differences"][0]["step_time_s"]["absolute"], difference);
  EXPECT_EQ(json["differences"][0]["step_time_s"]["relative"], figure(full, "step_time_s") / figure(base, "step_time_s") - 1);
  const auto& first = json["differences"][0];
  EXPECT_NEAR(first["difference"].get<double>(), first["step_time_s"]["relative"].get<double>(), 1e-12);
  EXPECT_LT(first["difference_band"]["lower"], first["difference"]);
  EXPECT_GT(first["difference_band"]["upper"], first["difference"]);
  EXPECT_EQ(first["sign_certain"], true);                    // a forward pass more
  EXPECT_EQ(json["differences"][1]["sign_certain"], false);  // the same step on a smaller card
  EXPECT_EQ(json["differences"][1]["difference_band"]["upper"], 0);
  EXPECT_THAT(text, HasSubstr("\n2 is +"));
  EXPECT_THAT(text, HasSubstr("3 is as fast as 1"));
  EXPECT_THAT(text, HasSubstr(", sign certain; errors of kernels, links, stack cancel\nfrom 1 to 2: "));
  double explained = 0;
  for (const auto& op : json["differences"][0]["ops"]) explained += op["difference_s"].get<double>();
  EXPECT_NEAR(explained, difference, 1e-12);
  EXPECT_EQ(json["jobs"][2]["fits"], false);
  EXPECT_GT(json["jobs"][2]["short_by_bytes"], 0);
  EXPECT_EQ(json["changed"][0]["path"], "hardware.memory");
  // The partition of each step adds up to it.
  for (const ComparedStep& step : {base, full}) {
    double sum = 0;
    bool within = false;
    for (const ComparedFigure& each : step.figures) {
      within = within || each.key == "forward_s";
      if (within && each.unit == FigureUnit::kTime) sum += *each.value;
    }
    EXPECT_NEAR(sum, figure(step, "step_time_s"), 1e-12);
  }
}

}  // namespace
}  // namespace stepsim
