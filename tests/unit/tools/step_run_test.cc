#include "tools/step_run.h"

#include "tests/unit/tools/test_jobs.h"

namespace stepsim {

TEST(StepRun, PartsAddUpAndPeaksAreOrdered) {
  const Job job = resolve_job(main_job("4", {flag("--recompute", "full")}));
  const StepRun run = run_step(job);
  EXPECT_EQ(run.run.time.total(), run.run.result.end);
  EXPECT_GT(run.run.result.end.count(), 0);
  Bytes at_peak;
  for (const Bytes part : run.run.worst().peak.by_bucket) at_peak += part;
  EXPECT_EQ(at_peak, run.run.worst().peak.bytes);
  EXPECT_LT(run.saved_activations_peak, run.run.worst().peak.bytes);
  EXPECT_LE(run.first_iteration_peak, run.run.worst().peak.bytes);  // optimizer states are not born yet at the loss
}

TEST(StepRun, MfuIsModelFlopsOverTimeAndPeak) {
  const Job job = resolve_job(main_job("4"));
  const StepRun run = run_step(job);
  const ConventionFlops& flops = run.flops_of(FlopsConvention::kMegatronCausal);
  ASSERT_TRUE(flops.mfu.has_value());
  // 8 GPUs of 989 TFLOP/s dense bf16 (H100 SXM datasheet: 1,979 with sparsity).
  EXPECT_DOUBLE_EQ(*flops.mfu, flops.flops.model.value / (run.step_time_s() * 8 * 989e12));
  EXPECT_EQ(flops.flops.model, flops.flops.hardware);  // nothing runs again
  EXPECT_EQ(*flops.mfu, *flops.hfu);
  EXPECT_EQ(run.flops.size(), all_conventions().size());
}

TEST(StepRun, RecomputeRaisesHardwareFlopsOnly) {
  const StepRun kept = run_step(resolve_job(main_job("4")));
  const StepRun full = run_step(resolve_job(main_job("4", {flag("--recompute", "full")})));
  const FlopsConvention convention = FlopsConvention::kMegatronCausal;
  EXPECT_EQ(kept.flops_of(convention).flops.model, full.flops_of(convention).flops.model);
  EXPECT_GT(full.flops_of(convention).flops.hardware, kept.flops_of(convention).flops.hardware);
  EXPECT_LT(full.saved_activations_peak, kept.saved_activations_peak);
  EXPECT_GT(full.run.result.end, kept.run.result.end);
}

TEST(StepRun, AStepThatDoesNotFitIsAResult) {
  const StepRun run = run_step(resolve_job(main_job("32", {flag("--set", "hardware.memory=17 GB")})));
  ASSERT_TRUE(run.run.result.out_of_memory.has_value());
  EXPECT_FALSE(run.run.stopped);
  const StepRun whole = run_step(resolve_job(main_job("32")));
  EXPECT_EQ(run.run.result.end, whole.run.result.end);  // simulated to its end all the same
  EXPECT_EQ(run.run.worst().peak.bytes, whole.run.worst().peak.bytes);
  const StepRun stopped =
      run_step(resolve_job(main_job("32", {flag("--set", "hardware.memory=18.2 GB"), flag("--stop-at-out-of-memory", "true")})));
  EXPECT_TRUE(stopped.run.stopped);
  EXPECT_LT(stopped.run.result.end, whole.run.result.end);
  EXPECT_FALSE(stopped.flops_of(FlopsConvention::kPalm).mfu.has_value());  // its time is not that of a step
}

TEST(StepRun, TheLongestStepsStayInTheOrderOfTime) {
  const std::vector<PathStep> path = {{OpId{0}, DeviceId{0}, TimePoint(0), Duration(5)},
                                      {OpId{1}, DeviceId{0}, TimePoint(5), Duration(1)},
                                      {OpId{2}, DeviceId{0}, TimePoint(6), Duration(9)}};
  const std::vector<PathStep> longest = longest_steps(path, 2);
  ASSERT_EQ(longest.size(), 2u);
  EXPECT_EQ(longest[0].op, OpId{0});
  EXPECT_EQ(longest[1].op, OpId{2});
  EXPECT_EQ(longest_steps(path, 9).size(), 3u);
}

TEST(StepRun, RefusalsOfTheBuilderNameTheFlag) {
  EXPECT_EQ(error_of([] { run_step(resolve_job(main_job("4", {flag("--recompute-segments", "5")}))); }),
            "--recompute-segments: found 5, wanted 1 to 4 (the layers)");
}

}  // namespace stepsim
