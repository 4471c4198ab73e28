#include "tools/calibrate_steps.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/unit/tools/test_jobs.h"
#include "tools/commands.h"
#include "tools/step_run.h"

namespace stepsim {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kHead = "id,model,layers,hardware,tp,sequence,micro_batch,recompute,step_time_s\n";

struct TestStep {
  const char* name;
  const char* tp;
  const char* sequence;
  const char* micro_batch;
  const char* recompute;
};
constexpr TestStep kSteps[] = {
    {"a", "1", "4096", "1", ""}, {"b", "1", "4096", "2", "full"}, {"c", "2", "8192", "1", ""}, {"d", "1", "2048", "1", "selective"}};

Job job_of(const TestStep& step) {
  JobInput input{"",
                 {flag("--model", "llama3-8b"), flag("--layers", "2"), flag("--hardware", "h100"), flag("--tp", step.tp),
                  flag("--sequence", step.sequence), flag("--micro-batch", step.micro_batch), flag("--stack", "none")}};
  if (*step.recompute != 0) input.flags.push_back(flag("--recompute", step.recompute));
  return resolve_job(input);
}

// What a machine would measure whose products take `slowdown` times as long.
double measured(const TestStep& step, double slowdown) {
  Job job = job_of(step);
  job.gpu.fit.sustained.gemm["bf16"] = slowdown;
  return run_step(job).step_time_s();
}

std::string row(const TestStep& step, double time_s) {
  return fmt::format("{},llama3-8b,2,h100,{},{},{},{},{:.9f}\n", step.name, step.tp, step.sequence, step.micro_batch, step.recompute,
                     time_s);
}

std::string table(double slowdown, const std::vector<double>& factors = {1, 1, 1, 1}) {
  std::string text = kHead;
  for (std::size_t i = 0; i < factors.size(); ++i) text += row(kSteps[i], factors[i] * measured(kSteps[i], slowdown));
  return text;
}

StepCalibration calibrated(const std::string& text) { return calibrate_steps("steps.csv", read_measured_steps("steps.csv", text), {}); }

std::string problem(const std::string& text) {
  return error_of([&] { calibrated(text); });
}

TEST(CalibrateSteps, FindsTheSlowdownThatMadeTheSteps) {
  for (const double slowdown : {1.0, 1.27, 1.6}) {
    const StepCalibration found = calibrated(table(slowdown));
    EXPECT_NEAR(found.stack.gemm.expected, slowdown, 0.001);
    EXPECT_NEAR(found.stack.gemm.lower, slowdown, 0.001);
    EXPECT_NEAR(found.stack.gemm.upper, slowdown, 0.001);
    EXPECT_LT(found.stack.evidence.front().error_after, 1e-4);
    EXPECT_LT(found.stack.evidence.front().left_out.value(), 1e-4);
    EXPECT_EQ(found.warnings, std::vector<std::string>{}) << slowdown;
    for (const CalibratedStep& step : found.steps) EXPECT_NEAR(step.with_stack_s / step.measured_s, 1, 1e-4) << step.id;
  }
}

TEST(CalibrateSteps, ShareOfProductsAndBareTimes) {
  const StepCalibration found = calibrated(table(1.3));
  const StackEvidence& evidence = found.stack.evidence.front();
  ASSERT_EQ(found.steps.size(), 4u);
  double mean = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    const CalibratedStep& step = found.steps[i];
    EXPECT_EQ(step.id, kSteps[i].name);
    EXPECT_EQ(step.line, static_cast<int>(i) + 2);
    EXPECT_EQ(step.bare_s, measured(kSteps[i], 1));
    EXPECT_GT(step.weight, 0.3);
    EXPECT_LT(step.weight, 1);
    mean += (1 - step.bare_s / step.measured_s) / 4;
  }
  EXPECT_NEAR(evidence.error_before, mean, 1e-12);
  EXPECT_GT(evidence.error_before, 0.1);
  EXPECT_EQ(evidence.rows, 4);
}

// Times 2 % up and down: single steps want other slowdowns, which are the range; the fitted one lies amid them. A step left out is off by
// its own 2 % and what the others are moved by.
TEST(CalibrateSteps, NoiseMakesTheRange) {
  const StepCalibration found = calibrated(table(1.3, {1.02, 0.98, 1.02, 0.98}));
  EXPECT_NEAR(found.stack.gemm.expected, 1.3, 0.05);
  EXPECT_GT(found.stack.gemm.upper, 1.31);
  EXPECT_LT(found.stack.gemm.lower, 1.29);
  const StackEvidence& evidence = found.stack.evidence.front();
  EXPECT_NEAR(evidence.error_after, 0.02, 0.005);
  EXPECT_GE(evidence.left_out.value(), evidence.error_after);
  EXPECT_LT(evidence.left_out.value(), 0.05);
  EXPECT_EQ(found.warnings, std::vector<std::string>{});
}

// Mean of absolute errors: one wrong row of four moves nothing, and is named.
TEST(CalibrateSteps, OneWrongRowIsNamedAndMovesNothing) {
  const StepCalibration found = calibrated(table(1.3, {1, 1.3, 1, 1}));
  EXPECT_NEAR(found.stack.gemm.expected, 1.3, 0.001);
  ASSERT_EQ(found.warnings.size(), 1u);
  // 1 / 1.3 = 0.769: 23 % too fast.
  EXPECT_THAT(found.warnings[0], StartsWith("b: 23 % too fast with the slowdown of the others, "));
}

// The steps ran with another recompute than the table says: no machine is that slow.
TEST(CalibrateSteps, WrongFactsAreToldFromASlowMachine) {
  const StepCalibration slow = calibrated(table(1.3, {2, 2, 2, 2}));
  EXPECT_GT(slow.stack.gemm.expected, 1.8);
  ASSERT_FALSE(slow.warnings.empty());
  EXPECT_THAT(slow.warnings[0], AllOf(StartsWith("The slowdown "), HasSubstr("lies outside 1.0 to 1.8"), HasSubstr("recompute")));
  const StepCalibration fast = calibrated(table(1, {0.8, 0.8, 0.8, 0.8}));
  EXPECT_LT(fast.stack.gemm.expected, 0.95);
  EXPECT_THAT(fast.warnings.at(0), HasSubstr("lies outside"));
}

TEST(CalibrateSteps, StepsThatNoSlowdownExplainsAreTold) {
  const StepCalibration found = calibrated(table(1.3, {20, 20, 20}));
  EXPECT_EQ(found.steps[0].own_slowdown, kMostSlowdown);
  EXPECT_THAT(found.warnings.at(1), AllOf(StartsWith("a: no slowdown of matrix products makes it"), HasSubstr("is the unit right?")));
}

// Milliseconds in a column of seconds, and the other way round: no stack file has such errors.
TEST(CalibrateSteps, WrongUnitsAreRefused) {
  const std::string wanted = "wanted seconds under step_time_s or milliseconds under step_time_ms";
  EXPECT_EQ(problem(table(1, {1000, 2000, 3000})), "steps.csv: found steps that take 1000 times as long as simulated, " + wanted);
  EXPECT_EQ(problem(table(1, {1, 1e-3, 1})), "steps.csv:3:1: found a step that is simulated to take 1000 times as long, " + wanted);
}

std::string refusal(const std::string& file, const std::string& output, const std::string& json = "") {
  CalibrateArguments arguments;
  arguments.files = {file};
  arguments.output = output;
  arguments.json = json;
  return error_of([&] { calibrate_command(arguments); });
}

TEST(CalibrateSteps, NoFileThatARowNamesIsAnOutput) {
  const std::string machine = written("calibrate_steps_input.textproto", "base: \"h100-sxm-80gb\"\n");
  const std::string steps =
      written("calibrate_steps_input.csv", "model,layers,hardware,sequence,step_time_s\nllama3-8b,2," + machine + ",4096,0.1\n");
  const std::string found = ": found " + machine + ", which is an input, wanted another file";
  EXPECT_EQ(refusal(steps, machine), "--output" + found);
  EXPECT_EQ(refusal(steps, "never.textproto", machine), "--json" + found);
}

TEST(CalibrateSteps, OutputsAreNamedAsTheyAreRead) {
  EXPECT_EQ(refusal("none.csv", "st.x"),
            "--output: found \"st.x\", wanted - or a name that ends in .textproto, which --hardware and --stack read");
  EXPECT_THAT(refusal("none.csv", "st.textproto"), StartsWith("none.csv: found no"));
}

TEST(CalibrateSteps, RepeatsAreLeftOutTogether) {
  const std::string text = kHead + row(kSteps[0], measured(kSteps[0], 1.3)) + row(kSteps[0], 1.01 * measured(kSteps[0], 1.3));
  const StepCalibration found = calibrated(text);
  EXPECT_FALSE(found.steps[0].left_out_s);
  EXPECT_FALSE(found.stack.evidence.front().left_out);
  EXPECT_THAT(found.warnings.at(0), StartsWith("No two steps of different jobs"));
  EXPECT_THAT(step_calibration_text(found), HasSubstr("none could be left out"));
}

TEST(CalibrateSteps, OneRowIsFitted) {
  const StepCalibration found = calibrated(table(1.3, {1}));
  EXPECT_NEAR(found.stack.gemm.expected, 1.3, 0.001);
  EXPECT_FALSE(found.stack.evidence.front().left_out);
}

TEST(CalibrateSteps, WritesAStackThatLoadsAndGivesTheSteps) {
  const StepCalibration found =
      calibrate_steps("my \"steps\".csv", read_measured_steps("steps.csv", table(1.27)), {.software = "ours \\ 1"});
  const std::string path = written("calibrate_steps_own.textproto", stack_text(found));
  const StackSpec stack = load_stack(path);
  EXPECT_EQ(stack.machines, std::vector<std::string>{"h100-sxm-80gb"});
  EXPECT_EQ(stack.precisions, std::vector<std::string>{"bf16"});
  EXPECT_EQ(stack.frameworks, std::vector<std::string>{"megatron-core@2025"});
  EXPECT_EQ(stack.software, "ours \\ 1");
  EXPECT_NEAR(stack.gemm.expected, 1.27, 0.001);
  ASSERT_EQ(stack.evidence.size(), 1u);
  EXPECT_EQ(stack.evidence[0].source, "4 measured steps of my \"steps\".csv");
  EXPECT_EQ(stack.evidence[0].rows, 4);
  EXPECT_NEAR(stack.evidence[0].error_before, found.stack.evidence[0].error_before, 1e-4);
  Job job = job_of(kSteps[2]);
  apply_stack(stack, "bf16", job.gpu);
  EXPECT_NEAR(run_step(job).step_time_s() / measured(kSteps[2], 1.27), 1, 1e-4);
}

// What a user's machine file is called is what its stack holds for.
TEST(CalibrateSteps, StackOfAMachineFile) {
  const std::string machine = written("calibrate_steps_card.textproto", "base: \"h100-sxm-80gb\"\nhbm: \"3 TB/s\"\n");
  const std::string text = "model,layers,hardware,sequence,step_time_s\nllama3-8b,2," + machine + ",4096,0.1\n";
  const std::string stack = written("calibrate_steps_card_stack.textproto", stack_text(calibrated(text)));
  const Job job = resolve_job({"",
                               {flag("--model", "llama3-8b"), flag("--layers", "2"), flag("--hardware", machine),
                                flag("--sequence", "4096"), flag("--stack", stack)}});
  EXPECT_EQ(job.stack->machines, std::vector<std::string>{"calibrate_steps_card"});
  EXPECT_NEAR(run_step(job).step_time_s(), 0.1, 1e-4);
}

// All states of Llama-3 8B on one card of 80 GB, 18 bytes a parameter: what ran had something that the row lacks.
TEST(CalibrateSteps, AStepThatDoesNotFitIsTold) {
  const StepCalibration found = calibrated("model,hardware,sequence,step_time_s\nllama3-8b,h100,2048,0.4\n");
  EXPECT_THAT(found.warnings, testing::Contains(StartsWith("line 2: the simulated step does not fit, yet it ran: ")));
}

TEST(CalibrateSteps, JsonHasTheRows) {
  const nlohmann::json json = nlohmann::json::parse(step_calibration_json(calibrated(table(1.3))));
  EXPECT_NEAR(json["gemm"]["expected"].get<double>(), 1.3, 0.001);
  EXPECT_EQ(json["machine"], "h100-sxm-80gb");
  EXPECT_EQ(json["steps"].size(), 4u);
  EXPECT_EQ(json["steps"][1]["id"], "b");
  EXPECT_EQ(json["warnings"].size(), 0u);
}

TEST(CalibrateSteps, ProgressGrowsToItsEnd) {
  std::size_t last = 0;
  calibrate_steps("steps.csv", read_measured_steps("steps.csv", table(1.3, {1, 1})), {}, [&](std::size_t done, std::size_t all) {
    EXPECT_EQ(done, last + 1);
    EXPECT_GE(all, done);
    last = done;
  });
  EXPECT_GE(last, 6u);  // two steps, bare, at a second slowdown and at the fitted one
}

TEST(MeasuredSteps, ColumnsAreFlagsAndPaths) {
  const std::string text =
      "note,model,layers,hardware,gpus,zero,framework,sequence,global-batch,parallel.gather_limit,sequence_parallel,step_time_ms\n"
      "first,llama3-8b,2,h100,8,3,pytorch-fsdp,2048,16,3,,250\n";
  const std::vector<MeasuredStep> steps = read_measured_steps("steps.csv", text);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].id, "line 2");
  EXPECT_EQ(steps[0].measured_s, 0.25);
  EXPECT_EQ(steps[0].job.parallel.data, 8);
  EXPECT_EQ(steps[0].job.training.global_batch, 16);
  EXPECT_EQ(steps[0].job.parallel.gather_limit, 3);
  EXPECT_FALSE(steps[0].job.stack);
  EXPECT_TRUE(is_step_table({"model", "step_time"}));
  EXPECT_FALSE(is_step_table({"m", "n", "k", "latency_us"}));
}

TEST(MeasuredSteps, WrongHeads) {
  EXPECT_EQ(problem("model,step_time\nx,1\n"), "steps.csv:1:7: found column step_time, wanted its unit: step_time_s or step_time_ms");
  EXPECT_EQ(problem("model,tpp,step_time_s\nx,1,1\n"),
            "steps.csv:1:7: found column \"tpp\", wanted a flag of the job, step_time_s, step_time_ms, id or note, did you mean \"tp\"?");
  EXPECT_EQ(problem("model,step_time_s,step_time_ms\nx,1,1\n"), "steps.csv:1:1: found step_time_s and step_time_ms, wanted one of them");
  EXPECT_EQ(problem("model,tp\nx,1\n"), "steps.csv:1:1: found no column of step times, wanted step_time_s or step_time_ms");
  EXPECT_EQ(problem("model,stack,step_time_s\nx,none,1\n"),
            "steps.csv:1:7: found column stack, wanted none: it is what these steps are to find");
  EXPECT_EQ(problem(kHead), "steps.csv:1:1: found a head without rows, wanted 3 to 10 measured steps");
  EXPECT_EQ(problem("model,model,step_time_s\nx,x,1\n"), "steps.csv:1:1: found column \"model\" twice, wanted it once");
}

TEST(MeasuredSteps, WrongCells) {
  const auto of = [](const std::string& cells) { return problem("model,hardware,tp,sequence,step_time_s\n" + cells + "\n"); };
  EXPECT_EQ(of("llama3-8b,h100,1,2048,-1"), "steps.csv:2:23: found step_time_s -1, wanted seconds above zero, at most 1e+06");
  EXPECT_EQ(of("llama3-8b,h100,1,2048,1.2 s"), "steps.csv:2:23: found step_time_s 1.2 s, wanted seconds above zero, at most 1e+06");
  EXPECT_EQ(of("llama3-8b,h100,1,2048,"), "steps.csv:2:23: found no step_time_s, wanted seconds above zero, at most 1e+06");
  EXPECT_EQ(of("llama3-8b,h100,1,2048,1e9"), "steps.csv:2:23: found step_time_s 1e9, wanted seconds above zero, at most 1e+06");
  EXPECT_EQ(of("llama3-8b,h100,0,2048,1"), "steps.csv:2:16: found tp 0, wanted a whole number from 1 to 1048576");
  EXPECT_EQ(of("llama3-8b,h100,x,2048,1"), "steps.csv:2:16: found tp \"x\", wanted a whole number");
  EXPECT_THAT(of("llama3-8b,h10,1,2048,1"), StartsWith("steps.csv:2:11: found hardware \"h10\", wanted a catalog name"));
  EXPECT_THAT(of("llama3-8b,h100,1,,1"), StartsWith("steps.csv:2:18: found no sequence, wanted the tokens of a sequence"));
  EXPECT_EQ(problem("hardware,step_time_s\nh100,1\n"),
            "steps.csv:2:1: found a job that is refused, wanted one that runs: --model: found none, wanted a catalog name (`stepsim list "
            "models`), a .textproto or a config.json");
  EXPECT_EQ(of("llama3-8b,h100,1,2048"), "steps.csv:2:1: found 4 cells, wanted 5 as in the head");
}

TEST(MeasuredSteps, OneMachineOnePrecisionEachStepOnce) {
  const std::string head = "model,layers,hardware,precision,sequence,step_time_s\n";
  EXPECT_EQ(problem(head + "llama3-8b,2,h100,,2048,1\nllama3-8b,2,a100,,2048,1\n"),
            "steps.csv:3:13: found hardware a100-sxm-80gb, wanted h100-sxm-80gb as in line 2: a stack is of one machine");
  EXPECT_EQ(problem(head + "llama3-8b,2,h100,,2048,1\nllama3-8b,2,h100,fp16,2048,1\n"),
            "steps.csv:3:18: found precision fp16, wanted bf16 as in line 2: a stack is of one precision");
  EXPECT_EQ(problem(head + "llama3-8b,2,h100,,2048,1\nllama3-8b,2,h100,,2048,1\n"),
            "steps.csv:3:1: found the job and the time of line 2 again, wanted each measured step once");
}

}  // namespace
}  // namespace stepsim
