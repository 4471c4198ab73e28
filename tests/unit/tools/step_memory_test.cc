#include "tools/step_memory.h"

#include <nlohmann/json.hpp>

#include "tests/unit/tools/test_jobs.h"
#include "tools/memory_report.h"
#include "tools/step_run.h"

namespace stepsim {

constexpr std::int64_t kGiga = 1'000'000'000;

TEST(StepMemory, ReservesWhatItAllocatesAndMore) {
  const Job job = resolve_job(main_job("4"));
  const StepRun run = run_step(job);
  const StepMemory& memory = run.allocation;
  ASSERT_TRUE(memory.replayed());
  ASSERT_EQ(memory.devices.size(), 1u);
  ASSERT_EQ(memory.devices[0].steps.size(), 2u);
  const StepAllocation& first = memory.devices[0].steps[0];
  const StepAllocation& step = steady(memory.devices[0]);
  const std::int64_t peak = run.run.memory[0].peak.bytes.value;
  // Blocks are rounded up: 512 B each, and where the rest of a segment is not cut off up to 1 MiB.
  EXPECT_GE(step.allocated_peak.value, peak);
  EXPECT_LE(step.allocated_peak.value, peak + (std::int64_t{200} << 20));
  EXPECT_GE(step.at_peak.reserved, step.allocated_peak);
  EXPECT_GE(first.allocated_peak, run.stage_peaks[0].first_iteration);
  EXPECT_LT(first.allocated_peak, step.allocated_peak);  // the moments are not there yet
  EXPECT_EQ(step.at_end.allocated, first.at_end.allocated);
  EXPECT_EQ(memory.fit, CardFit::kFits);
  EXPECT_EQ(doubt_of_time(memory, run.run.result), "");
}

TEST(StepMemory, TheFirstIterationIsOneStep) {
  const StepRun run = run_step(resolve_job(main_job("2", {flag("--iteration", "first")})));
  const StepRun steady_run = run_step(resolve_job(main_job("2")));
  ASSERT_EQ(run.allocation.devices[0].steps.size(), 1u);
  EXPECT_EQ(run.allocation.devices[0].steps[0].allocated_peak, steady_run.allocation.devices[0].steps[0].allocated_peak);
}

// nccl#964, nccl#864: 688 MB to 1.6 GB for the first group, 2.2 GB for the second; 544 MB where it is of two.
TEST(StepMemory, TheProcessTakesAContextAndCommunicators) {
  const ProcessMemory alone =
      process_memory(resolve_job(main_job("2", {flag("--set", "parallel.tp=1"), flag("--set", "parallel.sequence_parallel=false")})));
  EXPECT_TRUE(alone.communicators.empty());
  EXPECT_EQ(alone.total().lower.value, std::int64_t{164} << 20);
  EXPECT_EQ(alone.total().upper.value, std::int64_t{512} << 20);
  const ProcessMemory two = process_memory(resolve_job(main_job("2", {flag("--dp", "2")})));
  ASSERT_EQ(two.communicators.size(), 2u);
  EXPECT_EQ(two.communicators[0].group, "tp");
  EXPECT_EQ(two.communication().lower.value, 688'000'000 + 544'000'000);
  EXPECT_EQ(two.communication().upper.value, 1'600'000'000 + 2'200'000'000);
}

static StepRun run_with(std::int64_t memory, const std::string& more = "hardware.expandable_segments=false") {
  return run_step(resolve_job(main_job("4", {flag("--set", "hardware.memory=" + std::to_string(memory) + " B"), flag("--set", more)})));
}

TEST(StepMemory, TellsWhatTheCardIsTooSmallFor) {
  const StepRun roomy = run_with(80 * kGiga);
  const std::int64_t reserved = reserved_peak(roomy.allocation.devices[0]).value, allocated = roomy.run.memory[0].peak.bytes.value;
  const ByteRange taken = roomy.allocation.process.total();
  EXPECT_EQ(run_with(reserved + taken.upper.value).allocation.fit, CardFit::kFits);
  EXPECT_EQ(run_with(reserved + taken.upper.value - 1).allocation.fit, CardFit::kTight);
  EXPECT_EQ(run_with(reserved + taken.lower.value).allocation.fit, CardFit::kTight);
  EXPECT_GE(run_with(reserved + taken.lower.value - 1).allocation.fit, CardFit::kRetries);
  EXPECT_EQ(run_with(allocated + taken.lower.value - 1).allocation.fit, CardFit::kBeside);
  const StepRun large = run_with(allocated - 1);
  EXPECT_EQ(large.allocation.fit, CardFit::kTooLarge);
  EXPECT_TRUE(large.run.result.out_of_memory.has_value());
  EXPECT_FALSE(large.fits());
  // What fits by the sum and beside the process, with nothing to spare for fragments.
  const StepRun tight = run_with(allocated + taken.lower.value + (1 << 20));
  EXPECT_EQ(tight.allocation.fit, CardFit::kFragmented);
  EXPECT_FALSE(tight.fits());
  EXPECT_FALSE(tight.run.result.out_of_memory.has_value());
  EXPECT_EQ(card_verdict(tight).compare(0, 34, "OUT OF MEMORY: by fragmentation: f"), 0) << card_verdict(tight);
  EXPECT_TRUE(tight.allocation.reserved_otherwise.has_value());
  const OutOfMemory refused = refused_claim(tight).value();
  EXPECT_GT(refused.requested, refused.available);
  EXPECT_FALSE(refused.holders.empty());
  EXPECT_FALSE(refused_claim(roomy).has_value());
}

TEST(StepMemory, AboveNinetyFivePercentTheTimeIsInDoubt) {
  const StepRun roomy = run_with(80 * kGiga);
  const std::int64_t reserved = reserved_peak(roomy.allocation.devices[0]).value;
  // 96 % of a card of this size, if the process took nothing: memory.fit is what it is, the share decides.
  StepMemory memory = roomy.allocation;
  memory.fullest_share = 0.96;
  EXPECT_EQ(doubt_of_time(memory, roomy.run.result), "96.0 % of gpu0 are reserved, above 95 %");
  memory.fullest_share = 0.95;
  EXPECT_EQ(doubt_of_time(memory, roomy.run.result), "");
  EXPECT_NEAR(*roomy.allocation.fullest_share, static_cast<double>(reserved) / (80.0 * kGiga), 1e-12);
}

TEST(StepMemory, TheSubtractionAddsUp) {
  const Job job = resolve_job(main_job("4"));
  const StepRun run = run_step(job);
  const nlohmann::json json = nlohmann::json::parse(allocation_json(job, run, 0));
  const std::int64_t card = run.run.memory[0].capacity->value, reserved = json["peak_reserved_bytes"];
  const nlohmann::json& process = json["process"];
  for (const auto& [end, other] : {std::pair("lower", "upper"), std::pair("upper", "lower")}) {
    EXPECT_EQ(process["free_bytes"][end].get<std::int64_t>(), card - reserved - process["context_bytes"][other].get<std::int64_t>() -
                                                                  process["communication_bytes"][other].get<std::int64_t>());
  }
  std::int64_t groups = 0, layers = 0;
  for (const nlohmann::json& group : json["alive_at_peak"]["groups"]) groups += group["bytes"].get<std::int64_t>();
  for (const nlohmann::json& layer : json["alive_at_peak"]["layers"]) layers += layer["bytes"].get<std::int64_t>();
  EXPECT_EQ(groups, run.run.memory[0].peak.bytes.value);
  EXPECT_EQ(layers, groups);
}

}  // namespace stepsim
