// The example job of GPT-3 175B on 64 GPUs, as a user runs it: time, bubble, memory of the stages, trace.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "models/vocabulary.h"
#include "tools/step_run.h"
#include "traces/chrome_trace_writer.h"

namespace stepsim {
namespace {

Job example(const std::string& recompute) {
  const std::string file = STEPSIM_SOURCE_DIR "/examples/gpt3-175b.textproto";
  std::vector<FlagValue> flags;
  if (recompute == "full") flags = {{"--recompute", "placement.recompute", recompute}};
  return resolve_job({file, flags});
}

void check_time(const Job& job, const StepRun& run, const std::string& name) {
  EXPECT_EQ(run.run.time.total(), run.run.result.end);
  const std::optional<BubbleShare> bubble = bubble_share(job, run.run.time);
  ASSERT_TRUE(bubble.has_value());
  EXPECT_DOUBLE_EQ(bubble->ideal, 7.0 / (3 * 64));  // (p-1)/(v m) of 2104.04473 section 2.2
  // The ideal has equal stages and no transfers. Here the head lengthens the last stage and each transfer the warm-up: the bubble is
  // larger; twice the ideal would be as much again as all of filling and draining.
  EXPECT_GT(bubble->measured, bubble->ideal) << name;
  EXPECT_LT(bubble->measured, 2 * bubble->ideal) << name;
  std::printf("| %s | %.2f | %.2f %% (ideal %.2f %%) |", name.c_str(), run.step_time_s(), 100 * bubble->measured, 100 * bubble->ideal);
}

// In flight on rank r: min(2(p-r-1) + (v-1)p + 1, mv) micro-batches of a chunk (placement_and_memory.md section 4): 2 fewer from stage to
// stage, of four layers each.
void check_memory(const StepRun& run, const std::string& name) {
  constexpr std::size_t kStages = 8;
  ASSERT_EQ(run.run.memory.size(), kStages);
  ASSERT_EQ(run.stage_peaks.size(), kStages);
  EXPECT_FALSE(run.run.result.out_of_memory.has_value());
  for (std::size_t stage = 0; stage < kStages; ++stage) {
    const DeviceMemory& memory = run.run.memory[stage];
    ASSERT_TRUE(memory.capacity.has_value());
    EXPECT_LE(memory.peak.bytes, *memory.capacity) << name << " stage " << stage;
    std::printf("%s %.2f", stage == 0 ? "" : ",", static_cast<double>(memory.peak.bytes.value) / (1 << 30));
    if (stage == 0) continue;
    EXPECT_LT(run.stage_peaks[stage].saved_activations, run.stage_peaks[stage - 1].saved_activations) << name << " stage " << stage;
    // The first stage has the embedding, the last the head: between them peaks follow what is in flight.
    if (stage + 1 < kStages) {
      EXPECT_LT(memory.peak.bytes, run.run.memory[stage - 1].peak.bytes) << name << " stage " << stage;
    }
  }
  std::printf(" |\n");
}

std::size_t count(const std::string& text, const std::string& word) {
  std::size_t found = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + word.size())) ++found;
  return found;
}

// One process a stage; along each transfer a flow. Every micro-batch crosses 23 borders of 24 model chunks, there and back.
void check_trace(const StepRun& run) {
  std::string text;
  std::vector<std::string> names;
  for (int stage = 0; stage < 8; ++stage) names.push_back("stage " + std::to_string(stage));
  write_chrome_trace(run.step.graph, run.run.result, {.role_names = kRoleNames, .title = "test", .device_names = names},
                     [&](std::string_view piece) { text += piece; });
  constexpr std::size_t kTransfers = 2 * 23 * 64;
  for (const std::string& name : names) EXPECT_EQ(count(text, "\"args\":{\"name\":\"" + name + "\"}"), 1u);
  EXPECT_EQ(count(text, "\"name\":\"transfer\""), 2 * kTransfers) << "a start and an end each";
}

TEST(PipelineExample, Gpt3OnSixtyFourGpus) {
  std::printf("## table: pipeline-example\n| recompute | step, s | bubble over the rest | peaks by stage, GiB |\n|---|---|---|---|\n");
  for (const std::string recompute : {"selective", "full"}) {
    const Job job = example(recompute);
    const StepRun run = run_step(job);
    check_time(job, run, recompute);
    check_memory(run, recompute);
    if (recompute == "selective") check_trace(run);
  }
  std::printf("\n");
}

}  // namespace
}  // namespace stepsim
