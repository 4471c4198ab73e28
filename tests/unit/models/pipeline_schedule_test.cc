#include "models/pipeline_schedule.h"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <string>

namespace stepsim {
namespace {

// "F0 F1 B0": micro-batches; with chunks "F0.1" is micro-batch 1 of chunk 0. A bar is an exchange.
std::string text_of(const StagePasses& stage, bool chunks = false) {
  std::string text;
  for (std::size_t i = 0; i < stage.passes.size(); ++i) {
    const Pass& pass = stage.passes[i];
    if (i > 0) text += ' ';
    text += "FBW"[static_cast<int>(pass.kind)];
    if (chunks) text += std::to_string(pass.chunk) + ".";
    text += std::to_string(pass.micro_batch);
    if (stage.exchanges[i]) text += '|';
  }
  return text;
}

TEST(PipelineSchedule, GPipeRunsAllForwardPassesFirst) {
  const std::vector<StagePasses> passes = pipeline_passes(PipelineKind::kGPipe, 2, 1, 2);
  ASSERT_EQ(passes.size(), 2u);
  for (const StagePasses& stage : passes) EXPECT_EQ(text_of(stage), "F0| F1| B0| B1|");
  EXPECT_EQ(warmup_passes(PipelineKind::kGPipe, 2, 1, 7), (std::vector<std::int32_t>{7, 7}));
}

TEST(PipelineSchedule, OneForwardOneBackwardWarmsUpByTheStagesBehind) {
  // p - s - 1 forward passes, then pairs, then the backward passes that are left (2104.04473 figure 4, top).
  const std::vector<StagePasses> passes = pipeline_passes(PipelineKind::k1F1B, 3, 1, 4);
  EXPECT_EQ(text_of(passes[0]), "F0| F1| F2| B0| F3| B1| B2| B3|");
  EXPECT_EQ(text_of(passes[1]), "F0| F1| B0| F2| B1| F3| B2| B3|");
  EXPECT_EQ(text_of(passes[2]), "F0| B0| F1| B1| F2| B2| F3| B3|");
  EXPECT_EQ(warmup_passes(PipelineKind::k1F1B, 3, 1, 4), (std::vector<std::int32_t>{2, 1, 0}));
  // Fewer micro-batches than stages: the warm-up is all of them.
  EXPECT_EQ(warmup_passes(PipelineKind::k1F1B, 4, 1, 2), (std::vector<std::int32_t>{2, 2, 1, 0}));
  EXPECT_EQ(text_of(pipeline_passes(PipelineKind::k1F1B, 4, 1, 2)[0]), "F0| F1| B0| B1|");
}

TEST(PipelineSchedule, InterleavedChunksTakeTurnsAfterEveryGroupOfMicroBatches) {
  // Warm-up 2(p - r - 1) + (v - 1) p: 4 and 2. One exchange for a forward-backward pair.
  const std::vector<StagePasses> passes = pipeline_passes(PipelineKind::kInterleaved, 2, 2, 4);
  EXPECT_EQ(warmup_passes(PipelineKind::kInterleaved, 2, 2, 4), (std::vector<std::int32_t>{4, 2}));
  EXPECT_EQ(text_of(passes[0], true), "F0.0| F0.1| F1.0| F1.1| F0.2 B1.0| F0.3 B1.1| F1.2 B0.0| F1.3 B0.1| B1.2| B1.3| B0.2| B0.3|");
  EXPECT_EQ(text_of(passes[1], true), "F0.0| F0.1| F1.0 B1.0| F1.1 B1.1| F0.2 B0.0| F0.3 B0.1| F1.2 B1.2| F1.3 B1.3| B0.2| B0.3|");
}

TEST(PipelineSchedule, AGroupMayHaveMoreMicroBatchesThanStages) {
  // Warm-up 2(p - r - 1) + (v - 1) g with g 3: 5 and 3; a chunk's turn is three micro-batches.
  const std::vector<StagePasses> passes = pipeline_passes(PipelineKind::kInterleaved, 2, 2, 3, 3);
  EXPECT_EQ(warmup_passes(PipelineKind::kInterleaved, 2, 2, 3, 3), (std::vector<std::int32_t>{5, 3}));
  EXPECT_EQ(text_of(passes[0], true), "F0.0| F0.1| F0.2| F1.0| F1.1| F1.2 B1.0| B1.1| B1.2| B0.0| B0.1| B0.2|");
  EXPECT_EQ(text_of(passes[1], true), "F0.0| F0.1| F0.2| F1.0 B1.0| F1.1 B1.1| F1.2 B1.2| B0.0| B0.1| B0.2|");
  EXPECT_THROW(pipeline_passes(PipelineKind::kInterleaved, 4, 2, 6, 3), std::logic_error);
}

TEST(PipelineSchedule, AnInterleavedWarmUpIsAtMostAllPasses) {
  // p 4, v 2, m 4: 10, 8, 6, 4 of 8 passes (get_pp_rank_microbatches).
  EXPECT_EQ(warmup_passes(PipelineKind::kInterleaved, 4, 2, 4), (std::vector<std::int32_t>{8, 8, 6, 4}));
  EXPECT_EQ(text_of(pipeline_passes(PipelineKind::kInterleaved, 2, 2, 2)[0], true), "F0.0| F0.1| F1.0| F1.1| B1.0| B1.1| B0.0| B0.1|");
}

TEST(PipelineSchedule, ZeroBubbleDelaysWeightPassesByTheStage) {
  // engine.md section 7: after the (s+1)-th B one W each time, then the remaining W; no exchange behind a W.
  const std::vector<StagePasses> passes = pipeline_passes(PipelineKind::kZbH1, 2, 1, 3);
  EXPECT_EQ(text_of(passes[0]), "F0| F1| B0| W0 F2| B1| W1 B2| W2");
  EXPECT_EQ(text_of(passes[1]), "F0| B0| F1| B1| W0 F2| B2| W1 W2");
  // Fewer micro-batches than the delay: all W at the end.
  EXPECT_EQ(text_of(pipeline_passes(PipelineKind::kZbH1, 4, 1, 2)[3]), "F0| B0| F1| B1| W0 W1");
}

TEST(PipelineSchedule, OneStageIsASchedule) {
  EXPECT_EQ(text_of(pipeline_passes(PipelineKind::k1F1B, 1, 1, 2)[0]), "F0| B0| F1| B1|");
  EXPECT_EQ(text_of(pipeline_passes(PipelineKind::kInterleaved, 1, 2, 1)[0], true), "F0.0| F1.0 B1.0| B0.0|");
}

TEST(PipelineSchedule, PreconditionsAreChecked) {
  EXPECT_THROW(pipeline_passes(PipelineKind::k1F1B, 0, 1, 1), std::logic_error);
  EXPECT_THROW(pipeline_passes(PipelineKind::k1F1B, 1, 0, 1), std::logic_error);
  EXPECT_THROW(pipeline_passes(PipelineKind::k1F1B, 1, 1, 0), std::logic_error);
  EXPECT_THROW(pipeline_passes(PipelineKind::k1F1B, 2, 2, 2), std::logic_error);
  EXPECT_THROW(pipeline_passes(PipelineKind::kInterleaved, 2, 2, 3), std::logic_error);
  EXPECT_THROW(warmup_passes(PipelineKind::kGPipe, 1, 1, std::numeric_limits<std::int32_t>::max()), std::logic_error);
}

TEST(PipelineSchedule, HasTheNamesOfTheFlag) {
  EXPECT_EQ(pipeline_name(PipelineKind::kGPipe), "gpipe");
  EXPECT_EQ(pipeline_name(PipelineKind::k1F1B), "1f1b");
  EXPECT_EQ(pipeline_name(PipelineKind::kInterleaved), "interleaved");
  EXPECT_EQ(pipeline_name(PipelineKind::kZbH1), "zb-h1");
  EXPECT_EQ(pipeline_name(PipelineKind::kZbV), "zb-v");
  EXPECT_EQ(pipeline_name(PipelineKind::kDualPipe), "dualpipe");
}

}  // namespace
}  // namespace stepsim
