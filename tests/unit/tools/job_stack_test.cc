#include "tools/job_stack.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/unit/tools/test_jobs.h"
#include "tools/commands.h"
#include "tools/step_run.h"

namespace stepsim {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

JobInput job_on(const std::string& hardware, std::vector<FlagValue> more = {}) {
  JobInput input{"", {flag("--model", "llama3-8b"), flag("--hardware", hardware), flag("--sequence", "4096"), flag("--layers", "2")}};
  input.flags.insert(input.flags.end(), more.begin(), more.end());
  return input;
}

std::string source(const Job& job) {
  for (const JobValue& value : job.values) {
    if (value.path == "hardware.stack") return value.value + ", " + value.source;
  }
  return "absent";
}

std::string problem(const JobInput& input) {
  return error_of([&] { resolve_job(input); });
}

// Files of this test only: every ctest entry is a process of its own.
std::string own_stack(const std::string& more = "") {
  return written("job_stack_own.textproto", "machine: \"h100-sxm-80gb\" precision: \"bf16\"\ngemm { expected: 1.3 }\n" + more);
}

TEST(JobProfile, OfASetOrNone) {
  const std::string file = written("job_profile_own.textproto", "gemm { m: 4096 n: 4096 k: 4096 latency: \"200 us\" }\n");
  const Job set = resolve_job(job_on("h100", {flag("--set", "hardware.profile=" + file)}));
  ASSERT_NE(set.profile, nullptr);
  EXPECT_EQ(set.profile->kernels.size(), 1u);
  EXPECT_EQ(resolve_job(job_on("h100", {flag("--profile", file), flag("--set", "hardware.profile=none")})).profile, nullptr);
}

TEST(JobHardware, ABaseIsOfAMachineFile) {
  EXPECT_EQ(problem(job_on("h100", {flag("--set", "hardware.base=b200")})),
            "--set hardware.base: found a base, wanted another --hardware, or a machine file with it");
}

// 10^6 FLOP/s: no op takes 10^6 s, the step 10^7.
TEST(JobHardware, AStepLongerThanTheClockIsRefused) {
  const Job job = resolve_job({"",
                               {flag("--model", "llama3-8b"), flag("--hardware", "h100"), flag("--sequence", "4096"), flag("--tp", "8"),
                                flag("--set", "hardware.peak.bf16=0.001 GFLOP/s")}});
  EXPECT_THAT(error_of([&] { run_step(job); }), HasSubstr("found a step of more than 104 days"));
}

TEST(JobStack, UnknownIsSaidFirstAndTakesTheMiddleOfTheKnown) {
  const Job job = resolve_job(job_on("b200"));
  ASSERT_TRUE(job.stack);
  EXPECT_EQ(source(job), "typical, default: none is known for bf16 on b200 with megatron-core@2025");
  // From linear layers on a B300 to SimuMax's steps on a B200.
  const SlowdownRange range = typical_stack(load_gpu("b200"), "bf16")->gemm;
  EXPECT_EQ(job.gpu.fit.sustained.gemm.at("bf16"), range.expected);
  const std::string said = fmt::format(
      "No stack is known for bf16 on b200 with megatron-core@2025 (stepsim list stacks): matrix products take {:.2f} times as "
      "long as in benchmarks, the middle of what training took with known ones, {:.2f} to {:.2f}",
      range.expected, range.lower, range.upper);
  ASSERT_FALSE(job.assumed.empty());
  EXPECT_EQ(job.assumed.front(), said);
  const Job asked = resolve_job(job_on("b200", {flag("--stack", "typical")}));
  EXPECT_EQ(source(asked), "typical, --stack");
  EXPECT_EQ(asked.assumed.front(), said);
}

// No stack of a V100 is in the catalog.
TEST(JobStack, WithoutRelativesTheBareMachine) {
  const Job job = resolve_job(job_on("v100-sxm-32gb", {flag("--precision", "fp16")}));
  EXPECT_FALSE(job.stack);
  EXPECT_TRUE(job.gpu.fit.sustained.gemm.empty());
  EXPECT_EQ(source(job), "none, default: none is known for fp16 on v100-sxm-32gb with megatron-core@2025");
  EXPECT_THAT(job.assumed.front(), HasSubstr("kernel times are those of benchmarks; measured training took "));
  EXPECT_EQ(problem(job_on("v100-sxm-32gb", {flag("--precision", "fp16"), flag("--stack", "typical")})),
            "--stack: found typical, wanted none or a stack: none of fp16 on v100-sxm-32gb is in the catalog");
}

TEST(JobStack, KnownForExactlyThisMachinePrecisionAndFramework) {
  const Job job = resolve_job(job_on("h100-sxm-96gb-hbm2e", {flag("--framework", "torchtitan@2024-12")}));
  ASSERT_TRUE(job.stack);
  EXPECT_EQ(job.stack->name, "h100-96gb-torchtitan-2024-12");
  EXPECT_EQ(job.gpu.fit.sustained.gemm.at("bf16"), load_stack("h100-96gb-torchtitan-2024-12").gemm.expected);
  EXPECT_EQ(source(job), "h100-96gb-torchtitan-2024-12, default: the catalog's for bf16 on h100-sxm-96gb-hbm2e with torchtitan@2024-12");
  EXPECT_EQ(job.assumed.front(), "stack h100-96gb-torchtitan-2024-12 (measured with this framework on this machine)");
  EXPECT_THAT(job.assumed[1], HasSubstr("500 W"));
  for (const auto& more : {flag("--precision", "fp16"), flag("--framework", "megatron-core@2025"), flag("--hardware", "h100")}) {
    std::vector<FlagValue> flags = {flag("--model", "llama3-8b"), flag("--sequence", "4096"), flag("--layers", "2"), more};
    if (more.flag != "--hardware") flags.push_back(flag("--hardware", "h100-96gb"));
    if (more.flag != "--framework") flags.push_back(flag("--framework", "torchtitan@2024-12"));
    EXPECT_EQ(resolve_job({"", flags}).stack->name, "typical") << more.value;
  }
}

// Evidence about the catalog's machine says nothing of rates that a user states, nor of a user's file of that name.
TEST(JobStack, NoDefaultForAMachineOfTheUser) {
  const FlagValue titan = flag("--framework", "torchtitan@2024-12");
  EXPECT_FALSE(resolve_job(job_on("h100-96gb", {titan, flag("--set", "hardware.gemm_tile.compute=0.6")})).stack);
  EXPECT_FALSE(resolve_job(job_on("h100-96gb", {titan, flag("--set", "hardware.peak.bf16=800 TFLOP/s")})).stack);
  EXPECT_TRUE(resolve_job(job_on("h100-96gb", {titan, flag("--set", "hardware.memory=90 GiB")})).stack);
  const std::string machine = written("h100-sxm-96gb-hbm2e.textproto", "base: \"h100-sxm-96gb-hbm2e\"\n");
  EXPECT_FALSE(resolve_job(job_on(machine, {titan})).stack);
}

TEST(JobStack, NoneIsTheBareMachineAndNoAssumption) {
  const Job job = resolve_job(job_on("h100-96gb", {flag("--framework", "torchtitan@2024-12"), flag("--stack", "none")}));
  EXPECT_FALSE(job.stack);
  EXPECT_EQ(source(job), "none, --stack");
  for (const std::string& sentence : job.assumed) {
    EXPECT_THAT(sentence, testing::Not(StartsWith("stack ")));
    EXPECT_THAT(sentence, testing::Not(StartsWith("No stack")));
  }
}

TEST(JobStack, GivenByNameBySetAndByFile) {
  EXPECT_EQ(source(resolve_job(job_on("h100", {flag("--stack", "h100-llm-foundry")}))), "h100-llm-foundry, --stack");
  const Job set = resolve_job(job_on("h100", {flag("--stack", "none"), flag("--set", "hardware.stack=h100-llm-foundry")}));
  EXPECT_EQ(set.gpu.fit.sustained.gemm.at("bf16"), load_stack("h100-llm-foundry").gemm.expected);
  EXPECT_EQ(source(set), "h100-llm-foundry, --set");
  const Job own = resolve_job(job_on("h100", {flag("--stack", own_stack("assumption: \"Ours.\"\n"))}));
  EXPECT_EQ(own.stack->name, "job_stack_own");
  EXPECT_EQ(own.assumed.front(), "Ours.");
  EXPECT_NE(std::find(own.files.begin(), own.files.end(), testing::TempDir() + "job_stack_own.textproto"), own.files.end());
}

// As every file that a job file names.
TEST(JobStack, FilesAreLookedForBesideTheJobFile) {
  own_stack();
  const std::string job = written("job_stack_job.textproto",
                                  "model { name: \"llama3-8b\" layers: 2 }\nhardware {\n  name: \"h100\"\n"
                                  "  stack: \"job_stack_own.textproto\"\n}\ntraining { sequence: 4096 }\n");
  EXPECT_EQ(resolve_job({job, {}}).gpu.fit.sustained.gemm.at("bf16"), 1.3);
}

TEST(JobStack, ErrorsNameTheFlagOrThePlace) {
  EXPECT_THAT(
      problem(job_on("h100", {flag("--stack", "h100-llm-fondry")})),
      AllOf(StartsWith("--stack: found \"h100-llm-fondry\", wanted a catalog name"), HasSubstr("did you mean \"h100-llm-foundry\"?")));
  EXPECT_EQ(problem(job_on("b200", {flag("--set", "hardware.stack=h100-llm-foundry")})),
            "--set hardware.stack: found h100-llm-foundry of h100-sxm-80gb, wanted a stack of b200, or none");
  EXPECT_EQ(problem(job_on("h100", {flag("--stack", "")})), "--stack: found an empty text, wanted a value, or no hardware.stack at all");
  const std::string job = written("job_stack_wrong.textproto",
                                  "model { name: \"llama3-8b\" }\nhardware {\n  name: \"b200\"\n  stack: \"a100-fsdp\"\n}\n"
                                  "training { sequence: 4096 }\n");
  EXPECT_EQ(problem({job, {}}), job + ":4:3: found a100-fsdp of a100-sxm-40gb, a100-sxm-80gb, wanted a stack of b200, or none");
  const std::string stack = written("job_stack_bad.textproto", "machine: \"h100\"\nprecision: \"bf16\"\ngemm { expected: 0 }\n");
  EXPECT_EQ(problem(job_on("h100", {flag("--stack", stack)})), stack + ":3:8: found gemm.expected 0, wanted a number from 0.5 to 10");
}

// Forward, backward and what they wait for take longer, by less than products alone do.
TEST(JobStack, MovesTheStep) {
  const double bare = run_step(resolve_job(job_on("h100", {flag("--stack", "none")}))).step_time_s();
  const double slow = run_step(resolve_job(job_on("h100", {flag("--stack", own_stack())}))).step_time_s();
  EXPECT_GT(slow, 1.1 * bare);
  EXPECT_LT(slow, 1.3 * bare);
}

// Versions of one framework stand behind its name; a stack of none is taken by --stack alone.
TEST(JobStack, ListHasTheFrameworks) {
  ListArguments arguments;
  arguments.what = "stacks";
  testing::internal::CaptureStdout();
  list_command(arguments);
  const std::string table = testing::internal::GetCapturedStdout();
  EXPECT_THAT(table, AllOf(HasSubstr("llm-foundry@2023-10 2024-01  "), HasSubstr("--stack only  "), HasSubstr("frameworks")));
}

}  // namespace
}  // namespace stepsim
