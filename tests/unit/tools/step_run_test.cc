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
  EXPECT_LT(run.reported_peaks().saved_activations, run.run.worst().peak.bytes);
  EXPECT_LE(run.reported_peaks().first_iteration, run.run.worst().peak.bytes);  // optimizer states are not born yet at the loss
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
  EXPECT_LT(full.reported_peaks().saved_activations, kept.reported_peaks().saved_activations);
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

TEST(StepRun, TheFirstIterationIsThatOfTheStepWithoutStates) {
  const StepRun steady = run_step(resolve_job(pipeline_job()));
  const StepRun first = run_step(resolve_job(pipeline_job({flag("--iteration", "first")})));
  ASSERT_EQ(steady.stage_peaks.size(), 4u);
  for (std::size_t stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(steady.stage_peaks[stage].first_iteration, first.run.memory[stage].peak.bytes) << stage;
    EXPECT_EQ(steady.stage_peaks[stage].saved_activations, first.stage_peaks[stage].saved_activations) << stage;
  }
  const std::vector<FlagValue> stops = {flag("--set", "hardware.memory=18.2 GB"), flag("--stop-at-out-of-memory", "true")};
  const StepRun stopped = run_step(resolve_job(main_job("32", stops)));
  ASSERT_TRUE(stopped.run.stopped);
  EXPECT_EQ(stopped.reported_peaks().first_iteration, run_step(resolve_job(main_job("32"))).reported_peaks().first_iteration);
}

TEST(StepRun, APipelineHasADeviceAStage) {
  const Job job = resolve_job(pipeline_job());
  const StepRun run = run_step(job);
  ASSERT_EQ(run.run.memory.size(), 4u);
  EXPECT_EQ(run.run.time.total(), run.run.result.end);
  EXPECT_EQ(run.reported_stage, run.run.worst_device);
  std::int64_t parameters = 0;
  for (const std::int64_t of_stage : run.step.parameters_of_stage) parameters += of_stage;
  const StepRun one = run_step(resolve_job(main_job("8")));
  EXPECT_EQ(parameters, one.step.parameters_per_device);  // Llama's head has a table of its own: nothing is held twice
  EXPECT_EQ(run.flops_of(FlopsConvention::kMegatronCausal).flops.model.value,
            8 * one.flops_of(FlopsConvention::kMegatronCausal).flops.model.value);  // eight micro-batches
  EXPECT_EQ(layers_held(run.step.stages, 0), "0-1");
  EXPECT_EQ(layers_held(run.step.stages, 3), "6-7");
  EXPECT_EQ(first_rank(job.parallel, 0), 0);
  EXPECT_EQ(first_rank(job.parallel, 3), 24);  // behind three stages of 8 tensor-parallel ranks
  EXPECT_EQ(micro_batches_of(job), 8);
  // 32 GPUs of 989 TFLOP/s.
  const ConventionFlops& flops = run.flops_of(FlopsConvention::kMegatronCausal);
  EXPECT_DOUBLE_EQ(*flops.mfu, flops.flops.model.value / (run.step_time_s() * 32 * 989e12));
}

TEST(StepRun, RecomputeOfAllStagesCounts) {
  const auto rerun = [](std::vector<FlagValue> more) {
    more.push_back(flag("--recompute", "full"));
    const StepRun run = run_step(resolve_job(pipeline_job(std::move(more))));
    const StepFlops& flops = run.flops_of(FlopsConvention::kMegatronCausal).flops;
    return flops.hardware.value - flops.model.value;
  };
  const double of_one = rerun({flag("--pp", "1")});
  EXPECT_GT(of_one, 0);
  EXPECT_DOUBLE_EQ(rerun({}), of_one);  // the same layers, cut otherwise
  EXPECT_DOUBLE_EQ(rerun({flag("--virtual-stages", "2")}), of_one);
}

TEST(StepRun, RankChoosesTheStage) {
  const StepRun last = run_step(resolve_job(pipeline_job({flag("--rank", "last")})));
  EXPECT_EQ(last.reported_stage, 3u);
  EXPECT_EQ(last.reported().device, DeviceId{3});
  const StepRun second = run_step(resolve_job(pipeline_job({flag("--rank", "1")})));
  EXPECT_EQ(second.reported_stage, 1u);
  EXPECT_EQ(second.run.result.end, last.run.result.end);
}

TEST(StepRun, ChunksOfAStageAreNamed) {
  const StepRun run = run_step(resolve_job(pipeline_job({flag("--virtual-stages", "2")})));
  EXPECT_EQ(layers_held(run.step.stages, 0), "0, 4");
  EXPECT_EQ(layers_held(run.step.stages, 3), "3, 7");
}

TEST(StepRun, BubbleOverTheRestOfTheStep) {
  TimePartition time;
  time.device = DeviceId{0};
  time.busy = {Duration(300), Duration(500)};
  time.bubble = Duration(200);
  const auto share = [&](std::vector<FlagValue> more) { return bubble_share(resolve_job(pipeline_job(std::move(more))), time); };
  EXPECT_DOUBLE_EQ(share({})->measured, 0.25);  // 200 / 800
  EXPECT_DOUBLE_EQ(share({})->ideal, 3.0 / 8);
  EXPECT_EQ(share({})->formula, "(p-1)/m = 3/8");
  EXPECT_EQ(share({flag("--virtual-stages", "2")})->formula, "(p-1)/(v m) = 3/(2 x 8)");
  EXPECT_DOUBLE_EQ(share({flag("--virtual-stages", "2")})->ideal, 3.0 / 16);
  EXPECT_DOUBLE_EQ(share({flag("--schedule", "zb-h1")})->ideal, 3.0 / 24);
  EXPECT_EQ(share({flag("--schedule", "zb-v")})->formula, "(p-1)/(6 m) = 3/(6 x 8)");
  EXPECT_EQ(share({flag("--schedule", "dualpipe")})->formula, "(p-2)/(3 m) = 2/(3 x 8)");
  EXPECT_FALSE(bubble_share(resolve_job(main_job()), time).has_value());
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
