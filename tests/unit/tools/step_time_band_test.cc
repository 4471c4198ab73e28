#include "tools/step_time_band.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/unit/tools/test_jobs.h"
#include "tools/comparison.h"

namespace stepsim {
namespace {

using testing::HasSubstr;

constexpr double kClose = 1e-12;

KernelKind product(std::int64_t m, StepPass pass = StepPass::kForward) { return {pass, Gemm{.m = m, .n = 1, .k = 1}}; }

// A step of 100 s, all of it forward: two products of 30 and 40 s, 10 s of attention, 20 s of a collective; each error by itself is set
// below.
BandedStep plain_step() {
  BandedStep step;
  step.shares.step = std::chrono::seconds(100);
  step.shares.work[product(1)] = std::chrono::seconds(30);
  step.shares.work[product(2)] = std::chrono::seconds(40);
  step.shares.work[{StepPass::kForward, without_size(Attention{.head_dim = 128})}] = std::chrono::seconds(10);
  step.shares.work[{StepPass::kForward, without_size(Collective{.message = Bytes(1), .ranks = 8})}] = std::chrono::seconds(20);
  step.errors.machine = "m";
  step.errors.nvlink_domain = 8;
  step.errors.cluster = "c";
  step.errors.stack = "s";
  return step;
}

ClassError& error_of(BandedStep& step, ErrorClass of) { return step.errors.classes[static_cast<std::size_t>(of)]; }
TimeRange& stack_of(BandedStep& step, ErrorClass of) { return step.errors.stack_ranges[static_cast<std::size_t>(of)]; }

BandedStep banded(const JobInput& input) {
  const Job job = resolve_job(input);
  const StepRun run = run_step(job);
  return banded_step(job, run.run, run.step.graph).value();
}

double width(const StepTimeBand& band) { return band.upper_s - band.lower_s; }

TEST(StepShares, AddUpToTheStepOverAllStages) {
  for (const JobInput& input : {main_job("4"), pipeline_job(), main_job("4", {flag("--placement", "save-on-cpu")}),
                                main_job("4", {flag("--dp", "4"), flag("--zero", "3")})}) {
    const StepShares shares = banded(input).shares;
    Duration sum = shares.slowed + shares.host;
    for (const auto& [work, time] : shares.work) {
      EXPECT_GT(time, Duration{});
      sum += time;
    }
    EXPECT_EQ(sum, shares.step);
    EXPECT_FALSE(shares.work.empty());
  }
}

// Two streams: a of 5 s, then b of 2 s (1 s alone, slowed by c) which waits for it; c of 6 s ends before b does.
TEST(StepShares, FollowTheLongestChain) {
  OpGraphBuilder builder;
  const DeviceId device = builder.add_device();
  const StreamId compute = builder.add_stream({.device = device, .compute = true});
  const StreamId other = builder.add_stream({.device = device});
  const auto work = [&](std::int64_t m) { return builder.work(Gemm{.m = m, .n = 1, .k = 1}); };
  const OpId a = builder.add_op({.work = work(1), .stream = compute}, {});
  const std::vector<Edge> after_a = {{a}};
  const OpId b = builder.add_op({.work = work(2), .stream = compute}, {.predecessors = after_a});
  const OpId c = builder.add_op({.work = work(3), .stream = other}, {});
  const OpGraph graph = std::move(builder).build();
  const Duration second = std::chrono::seconds(1);
  StepResult result;
  result.timeline = {{.op = a, .start = {}, .end = 5 * second},
                     {.op = c, .start = {}, .end = 6 * second},
                     {.op = b, .start = 5 * second, .end = 7 * second, .slowed = second}};
  result.end = 7 * second;
  const StepShares shares = step_shares(graph, result, critical_path(graph, result));
  EXPECT_EQ(shares.work.size(), 2u);  // c hides behind a
  EXPECT_EQ(shares.work.at(product(1)), 5 * second);
  EXPECT_EQ(shares.work.at(product(2)), second);
  EXPECT_EQ(shares.slowed, second);
  EXPECT_EQ(shares.host, Duration{});
}

TEST(StepShares, KindsForgetBytesButNotShapesOfProducts) {
  EXPECT_EQ(without_size(MemoryBound{.read = Bytes(1), .kernel = MemoryKernel::kNorm}),
            without_size(MemoryBound{.kernel = MemoryKernel::kNorm}));
  EXPECT_NE(without_size(MemoryBound{.kernel = MemoryKernel::kSoftmax}), without_size(MemoryBound{.kernel = MemoryKernel::kNorm}));
  EXPECT_EQ(without_size(Collective{.message = Bytes(5), .ranks = 8}), without_size(Collective{.message = Bytes(9), .ranks = 8}));
  EXPECT_NE(without_size(Gemm{.m = 1}), without_size(Gemm{.m = 2}));
  EXPECT_NE(without_size(Attention{.backward = true}), without_size(Attention{}));
}

TEST(StepErrors, ClassesOfWork) {
  const StepErrors errors{.nvlink_domain = 8};
  EXPECT_EQ(errors.error_class(Gemm{}), ErrorClass::kGemm);
  EXPECT_EQ(errors.error_class(Copy{.direction = CopyDirection::kDeviceToDevice}), ErrorClass::kMemory);
  EXPECT_EQ(errors.error_class(Copy{}), ErrorClass::kCopy);
  EXPECT_EQ(errors.error_class(Collective{.ranks = 8}), ErrorClass::kCollective);
  EXPECT_EQ(errors.error_class(Collective{.ranks = 16}), ErrorClass::kNetwork);
  EXPECT_EQ(errors.error_class(Collective{.ranks = 2, .stride = 8}), ErrorClass::kNetwork);
  EXPECT_EQ(errors.error_class(Marker{}), std::nullopt);
  EXPECT_EQ(errors.error_class(Given{}), std::nullopt);
}

TEST(StepErrors, TakeTheWorstRecordOfTheMachine) {
  Job job = resolve_job(main_job());
  const auto record = [](const std::string& op_class, const std::string& data, double fitted_error) {
    FitRecord made;
    made.op_class = op_class;
    made.data = data;
    made.fitted_rows = 9;
    made.fitted_error = fitted_error;
    return made;
  };
  job.gpu.fits = {record("gemm", "small", 0.01), record("gemm", "large", 0.01), record("memory", "all", 0.11)};
  for (FitRecord* const each : {&job.gpu.fits[0], &job.gpu.fits[1]}) {
    each->held_out_rows = 9;
    each->held_out_error = 0.05;
    each->held_out_bias = -0.01;
  }
  job.gpu.fits[1].held_out_error = 0.06;
  job.gpu.fits[1].held_out_bias = -0.04;
  const StepErrors errors = step_errors(job);
  EXPECT_EQ(errors.classes[0].common, 0.04);
  EXPECT_EQ(errors.classes[0].single, 0.06);
  EXPECT_THAT(errors.classes[0].reason, HasSubstr("9 held out of large: 6.0 %, bias -4.0 %"));
  EXPECT_EQ(errors.classes[2].common, 0.11);  // nothing held out: nothing is known to average out
  EXPECT_EQ(errors.classes[2].single, 0);
  EXPECT_THAT(errors.classes[1].reason, HasSubstr("no fit recorded"));
  FitRecord ratio = record("gemm", "ratios of layouts", 0.3);
  ratio.part = "weight-gradient";
  job.gpu.fits.insert(job.gpu.fits.begin(), ratio);
  EXPECT_EQ(step_errors(job).classes[0].single, 0.06);
  job.gpu.fits = {ratio};
  EXPECT_EQ(step_errors(job).classes[0].common, 0.3);
  job.gpu.fits.clear();
  EXPECT_GT(step_errors(job).classes[0].common, errors.classes[0].common);
}

TEST(StepErrors, DoublingsBeyondEightGpus) {
  for (const auto& [gpus, doublings] :
       std::map<std::int64_t, double>{{1, 0}, {8, 0}, {12, 0.5}, {16, 1}, {24, 1.5}, {64, 3}, {2240, 8.09375}}) {
    Job job = resolve_job(main_job());
    job.gpus = gpus;
    EXPECT_DOUBLE_EQ(step_errors(job).doublings, doublings) << gpus;  // 2240 = 8 x 2^8 x 1.09375
  }
}

TEST(StepErrors, AStackReplacesTheWideRange) {
  Job job = resolve_job(main_job());
  job.stack.reset();
  const StepErrors unknown = step_errors(job);
  EXPECT_GT(unknown.stack_ranges[0].upper, 0);
  EXPECT_THAT(unknown.stack, HasSubstr("unknown (megatron-core@2025, bf16)"));
  StackSpec stack;
  stack.name = "mine";
  stack.gemm = {.expected = 1.25, .lower = 1.2, .upper = 1.5};
  stack.collective = {.expected = 1, .lower = 0.9, .upper = 1};
  stack.straggler_per_doubling = 0.02;
  job.stack = stack;
  const StepErrors known = step_errors(job);
  EXPECT_EQ(known.stack, "mine");
  EXPECT_NEAR(known.stack_ranges[0].lower, -0.04, kClose);  // 1.2 / 1.25 - 1
  EXPECT_NEAR(known.stack_ranges[0].upper, 0.2, kClose);
  EXPECT_NEAR(known.stack_ranges[3].lower, -0.1, kClose);
  EXPECT_EQ(known.stack_ranges[3].upper, 0);
  EXPECT_EQ(known.straggler_per_doubling, 0.02);
  EXPECT_EQ(known.model, unknown.model);
  stack.evidence = {{.source = "one", .conditions = "", .rows = 1, .left_out = 0.001},
                    {.source = "own steps", .conditions = "", .rows = 5, .left_out = 0.015}};
  job.stack = stack;
  const StepErrors measured = step_errors(job);
  EXPECT_EQ(measured.classes[0].common, 0);  // in the stack's slowdown
  EXPECT_EQ(measured.classes[0].single, known.classes[0].single);
  EXPECT_EQ(measured.model, 0.015);
  EXPECT_THAT(measured.model_reason, HasSubstr("steps of mine, each by the others, are off by 1.5 % (own steps)"));
}

TEST(StepTimeBand, WithoutErrorsIsTheStep) {
  const StepTimeBand band = step_time_band(plain_step());
  EXPECT_NEAR(band.lower_s, 100, 1e-9);
  EXPECT_NEAR(band.upper_s, 100, 1e-9);
  EXPECT_TRUE(band.sources.empty());
}

TEST(StepTimeBand, CommonErrorsCountInFullAndSingleOnesAverageOut) {
  BandedStep step = plain_step();
  error_of(step, ErrorClass::kGemm) = {.common = 0.05, .single = 0.04};
  const StepTimeBand band = step_time_band(step);
  // 1.6 x (5 % of 70 s + 4 % of sqrt(30^2 + 40^2) s) = 1.6 x (3.5 + 2) = 8.8 s
  EXPECT_NEAR(band.lower_s, 91.2, 1e-9);
  EXPECT_NEAR(band.upper_s, 108.8, 1e-9);
  ASSERT_EQ(band.sources.size(), 1u);  // a class without an error and one without kernels add nothing
  EXPECT_EQ(band.sources[0].name, "matrix products");
  EXPECT_NEAR(band.sources[0].range.upper, 0.088, kClose);
}

TEST(StepTimeBand, TheModelIsOffInAllWork) {
  BandedStep step = plain_step();
  step.errors.model = 0.05;
  EXPECT_NEAR(step_time_band(step).upper_s, 108, 1e-9);  // 1.6 x 5 % of 100 s
  BandedStep other = step;  // 40 s of products moved to another pass: 40 s less of one kind, 40 s more of the other
  other.shares.work.erase(product(2));
  other.shares.work[product(2, StepPass::kBackward)] = std::chrono::seconds(40);
  EXPECT_NEAR(difference_band(step, other).upper(), 1.6 * 0.05 * 0.8, kClose);
}

TEST(StepTimeBand, IndependentErrorsAddInSquaresAndRangesAsTheyAre) {
  BandedStep step = plain_step();
  error_of(step, ErrorClass::kAttention).common = 0.1875;  // 1.6 x 0.1875 x 10 s = 3 s
  error_of(step, ErrorClass::kCollective).common = 0.125;  // 1.6 x 0.125 x 20 s = 4 s: 5 s together
  stack_of(step, ErrorClass::kGemm) = {-0.1, 0.3};         // of 70 s: -7, +21 s
  stack_of(step, ErrorClass::kAttention) = {0, 0.1};       // of 10 s: +1 s
  step.errors.doublings = 4;
  step.errors.straggler_per_doubling = 0.01;  // 4 s, later only
  const StepTimeBand band = step_time_band(step);
  EXPECT_NEAR(band.lower_s, 100 - 5 - 7, 1e-9);
  EXPECT_NEAR(band.upper_s, 100 + 5 + 21 + 1 + 4, 1e-9);
}

TEST(StepTimeBand, ContentionCountsByHalfAndLaunchesByTwo) {
  BandedStep step = plain_step();
  step.shares.slowed = std::chrono::seconds(6);
  StepTimeBand band = step_time_band(step);
  EXPECT_NEAR(band.lower_s, 97, 1e-9);
  EXPECT_NEAR(band.upper_s, 103, 1e-9);
  step.shares.slowed = {};
  step.shares.host = std::chrono::seconds(6);
  band = step_time_band(step);
  EXPECT_NEAR(band.lower_s, 97, 1e-9);
  EXPECT_NEAR(band.upper_s, 106, 1e-9);
}

TEST(StepTimeBand, WeightGradientsHaveTheStacksRangeOfTheirOwn) {
  BandedStep step = plain_step();
  step.errors.weight_gradient = {0, 0.1};
  EXPECT_NEAR(step_time_band(step).upper_s, 100, 1e-9);
  step.shares.work[{StepPass::kBackward, Gemm{.m = 3, .n = 1, .k = 1, .transpose_b = true}}] = std::chrono::seconds(50);  // NT
  EXPECT_NEAR(step_time_band(step).upper_s, 105, 1e-9);
  step.errors.weight_gradient = {};
  step.errors.weight_gradient_error = 0.05;  // 1.6 x 5 % of 50 s
  EXPECT_NEAR(step_time_band(step).lower_s, 96, 1e-9);
}

TEST(StepTimeBand, HoldsTheStepAndWidensWithEachError) {
  for (const JobInput& input : {main_job("4"), pipeline_job(), main_job("2", {flag("--dp", "8"), flag("--zero", "3")}),
                                main_job("2", {flag("--hardware", "v100-sxm-32gb"), flag("--precision", "fp16")})}) {
    const BandedStep step = banded(input);
    const StepTimeBand band = step_time_band(step);
    EXPECT_LE(0, band.lower_s);
    EXPECT_LT(band.lower_s, seconds(step.shares.step));
    EXPECT_GT(band.upper_s, seconds(step.shares.step));
    EXPECT_FALSE(band.sources.empty());
    for (const BandSource& source : band.sources) {
      EXPECT_LE(source.range.lower, 0);
      EXPECT_GE(source.range.upper, 0);
      EXPECT_FALSE(source.reason.empty()) << source.name;
    }
    for (std::size_t i = 0; i < kErrorClasses; ++i) {
      BandedStep wider = step;
      wider.errors.classes[i].common *= 2;
      const bool present = std::any_of(step.shares.work.begin(), step.shares.work.end(), [&](const auto& each) {
        return step.errors.error_class(each.first.work) == static_cast<ErrorClass>(i);
      });
      if (present) {
        EXPECT_GT(width(step_time_band(wider)), width(band)) << kErrorClassNames[i];
      } else {
        EXPECT_EQ(width(step_time_band(wider)), width(band)) << kErrorClassNames[i];
      }
      wider = step;
      wider.errors.stack_ranges[i].upper = 2 * step.errors.stack_ranges[i].upper + 0.1;
      EXPECT_GE(width(step_time_band(wider)), width(band));
    }
  }
}

TEST(StepTimeBand, StoppedStepsHaveNone) {
  const Job job = resolve_job(main_job("4", {parse_set("hardware.memory=1 GB"), flag("--stop-at-out-of-memory", "true")}));
  const StepRun run = run_step(job);
  EXPECT_EQ(banded_step(job, run.run, run.step.graph), std::nullopt);
}

TEST(DifferenceBand, OfAJobAgainstItselfIsNothing) {
  for (const JobInput& input : {main_job("4"), pipeline_job({flag("--dp", "4"), flag("--global-batch", "32")})}) {
    const BandedStep step = banded(input);
    const DifferenceBand band = difference_band(step, step);
    EXPECT_EQ(band.lower(), 0);
    EXPECT_EQ(band.upper(), 0);
    EXPECT_FALSE(band.sign_certain());
    EXPECT_TRUE(band.sources.empty());
  }
}

TEST(DifferenceBand, OfTwiceTheSameIsCertain) {
  BandedStep base = plain_step();
  for (ClassError& error : base.errors.classes) error = {.common = 0.1, .single = 0.1};
  stack_of(base, ErrorClass::kGemm) = {-0.1, 0.3};
  BandedStep other = base;
  other.shares.step *= 2;
  for (auto& [work, time] : other.shares.work) time *= 2;
  const DifferenceBand band = difference_band(base, other);  // whatever the kernels take, it takes twice as long
  EXPECT_NEAR(band.lower(), 1, kClose);
  EXPECT_NEAR(band.upper(), 1, kClose);
  EXPECT_TRUE(band.sign_certain());
}

TEST(DifferenceBand, OnlyWhatDiffersCounts) {
  BandedStep base = plain_step();
  error_of(base, ErrorClass::kGemm) = {.common = 0.05, .single = 0.04};
  BandedStep other = base;
  other.shares.step = std::chrono::seconds(110);
  other.shares.work[product(3)] = std::chrono::seconds(10);
  // Ratio 1.1. Products: 1.1 x (80/110 - 70/100) = 0.03 of the base more. Singles: 1.1 x 30 (1/110 - 1/100) = -0.03, of 40 s -0.04, of 10 s
  // +0.1: sqrt(.0009 + .0016 + .01) = sqrt(.0125). 1.6 x (.05 x .03 + .04 x sqrt(.0125)).
  const DifferenceBand band = difference_band(base, other);
  const double size = 1.6 * (0.05 * 0.03 + 0.04 * std::sqrt(0.0125));
  EXPECT_NEAR(band.difference, 0.1, kClose);
  EXPECT_NEAR(band.lower(), 1.1 / (1 + size / 1.1) - 1, kClose);  // by so many times shorter
  EXPECT_NEAR(band.upper(), 0.1 + size, kClose);
  EXPECT_TRUE(band.sign_certain());
  EXPECT_EQ(band.shared, "kernels, links, stack");
}

TEST(DifferenceBand, NothingCancelsBetweenMachines) {
  BandedStep base = plain_step();
  error_of(base, ErrorClass::kGemm).common = 0.05;         // 1.6 x 5 % x 70 % = 5.6 %
  error_of(base, ErrorClass::kCollective).common = 0.125;  // 4 %
  BandedStep other = base;
  EXPECT_EQ(difference_band(base, other).range.upper, 0);
  other.errors.cluster = "d";  // links by themselves: 4 % of either
  EXPECT_NEAR(difference_band(base, other).range.upper, std::sqrt(2.0) * 0.04, kClose);
  EXPECT_EQ(difference_band(base, other).shared, "kernels, stack");
  other.errors.products = "fp8";  // products too: sqrt(2) x 5.6 % and sqrt(2) x 4 %
  EXPECT_NEAR(difference_band(base, other).range.lower, -std::sqrt(2 * (0.056 * 0.056 + 0.04 * 0.04)), kClose);
  EXPECT_EQ(difference_band(base, other).shared, "kernels other than products, stack");
  other.errors.machine = "n";
  const DifferenceBand band = difference_band(base, other);
  EXPECT_NEAR(band.range.upper, std::sqrt(2 * (0.056 * 0.056 + 0.04 * 0.04)), kClose);
  EXPECT_EQ(band.shared, "");
  EXPECT_FALSE(band.sign_certain());
}

TEST(DifferenceBand, AnUnlikeStackAddsItsRange) {
  BandedStep base = plain_step();
  stack_of(base, ErrorClass::kGemm) = {-0.1, 0.3};  // -7, +21 %
  BandedStep other = base;
  EXPECT_EQ(difference_band(base, other).range.upper, 0);
  other.errors.stack = "t";
  const DifferenceBand band = difference_band(base, other);
  EXPECT_NEAR(band.range.lower, -0.07 - 0.21, kClose);
  EXPECT_NEAR(band.range.upper, 0.21 + 0.07, kClose);
}

TEST(DifferenceBand, OfOneMachineTheLargerErrorCounts) {
  BandedStep base = plain_step();
  base.errors.model = 0.05;
  BandedStep other = base;
  other.errors.model = 0.01;
  other.shares.work.erase(product(2));
  other.shares.work[product(4)] = std::chrono::seconds(40);
  EXPECT_NEAR(difference_band(base, other).upper(), 1.6 * 0.05 * 0.8, kClose);
  EXPECT_NEAR(difference_band(other, base).upper(), 1.6 * 0.05 * 0.8, kClose);
}

TEST(DifferenceBand, StragglersCancelAtOneSize) {
  BandedStep base = plain_step();
  base.errors.straggler_per_doubling = 0.01;
  base.errors.doublings = 3;
  BandedStep other = base;
  EXPECT_EQ(difference_band(base, other).range.upper, 0);
  other.errors.doublings = 5;
  EXPECT_NEAR(difference_band(base, other).range.upper, 0.02, kClose);
  EXPECT_EQ(difference_band(base, other).range.lower, 0);
}

// The difference of two bands, as if nothing cancelled.
TEST(DifferenceBand, IsNarrowerThanThatOfTheBands) {
  const std::vector<JobInput> jobs = {main_job("4"),  main_job("4", {flag("--recompute", "full")}),
                                      main_job("6"),  main_job("4", {flag("--dp", "4"), flag("--zero", "3")}),
                                      pipeline_job(), main_job("4", {flag("--hardware", "b200")})};
  for (const JobInput& first : jobs) {
    for (const JobInput& second : jobs) {
      const BandedStep base = banded(first), other = banded(second);
      const StepTimeBand of_base = step_time_band(base), of_other = step_time_band(other);
      const double base_s = seconds(base.shares.step), other_s = seconds(other.shares.step), ratio = other_s / base_s;
      const DifferenceBand band = difference_band(base, other);
      const double lower = (of_other.lower_s - other_s) / base_s - ratio * (of_base.upper_s / base_s - 1);
      const double upper = (of_other.upper_s - other_s) / base_s - ratio * (of_base.lower_s / base_s - 1);
      EXPECT_GE(band.range.lower, lower - kClose);
      EXPECT_LE(band.range.upper, upper + kClose);
      EXPECT_LE(band.lower(), band.difference);
      EXPECT_GE(band.upper(), band.difference);
      EXPECT_NEAR(band.difference, other_s / base_s - 1, kClose);
    }
  }
}

TEST(DifferenceBand, TheOtherWayRoundIsTheInverse) {
  BandedStep base = plain_step();
  error_of(base, ErrorClass::kGemm) = {.common = 0.05, .single = 0.2};
  BandedStep other = base;
  other.shares.step = std::chrono::seconds(70);
  other.shares.work[product(3)] = std::chrono::seconds(10);
  const DifferenceBand there = difference_band(base, other), back = difference_band(other, base);
  EXPECT_NEAR((1 + there.lower()) * (1 + back.upper()), 1, 1e-6);
  EXPECT_NEAR((1 + there.upper()) * (1 + back.lower()), 1, 1e-6);
  EXPECT_EQ(there.sign_certain(), back.sign_certain());
}

TEST(DifferenceBand, TheTextSaysWhetherTheSignIsCertain) {
  DifferenceBand band{.difference = 0.061, .range = {-0.011, 0.013}, .shared = "kernels, links, stack"};
  EXPECT_EQ(difference_band_text(band, 2), "2 is +6.1 % [+5.0, +7.4], sign certain; errors of kernels, links, stack cancel");
  band.range.lower = -0.07;
  band.shared = "kernels";
  EXPECT_EQ(difference_band_text(band, 3), "3 is +6.1 % [-0.5, +7.4], sign not certain; errors of kernels cancel");
  band.shared = "";
  EXPECT_EQ(difference_band_text(band, 3), "3 is +6.1 % [-0.5, +7.4], sign not certain; no errors cancel");
}

}  // namespace
}  // namespace stepsim
