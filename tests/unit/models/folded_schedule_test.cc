#include "models/folded_schedule.h"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <string>
#include <tuple>

#include "models/chunk_placement.h"

namespace stepsim {
namespace {

// "F0.1" is micro-batch 1 of chunk 0; a plus stands between passes of a pair.
std::string text_of(const StagePasses& stage) {
  std::string text;
  for (std::size_t i = 0; i < stage.passes.size(); ++i) {
    const Pass& pass = stage.passes[i];
    if (i > 0) text += stage.pairs_with_next(static_cast<std::int32_t>(i) - 1) ? "+" : " ";
    text += "FBW"[static_cast<int>(pass.kind)];
    text += std::to_string(pass.chunk) + "." + std::to_string(pass.micro_batch);
  }
  return text;
}

TEST(ChunkPlacement, DealsFoldsAndMirrors) {
  const ChunkPlacement dealt{PipelineKind::kInterleaved, 3, 2}, folded{PipelineKind::kZbV, 3, 2}, mirrored{PipelineKind::kDualPipe, 4, 2};
  EXPECT_EQ(dealt.part({1, 1}), 4);     // 1 x 3 + 1
  EXPECT_EQ(folded.part({1, 1}), 4);    // 2 x 3 - 1 - 1
  EXPECT_EQ(folded.part({0, 1}), 5);    // the last part beside the first
  EXPECT_EQ(mirrored.part({0, 1}), 3);  // likewise
  EXPECT_EQ(dealt.parts(), 6);
  EXPECT_EQ(folded.parts(), 6);
  EXPECT_EQ(mirrored.parts(), 4);
  // Down to stage 2, within it, and back.
  EXPECT_EQ(folded.after({2, 0}), (ChunkPlace{2, 1}));
  EXPECT_EQ(folded.after({2, 1}), (ChunkPlace{1, 1}));
  EXPECT_EQ(folded.after({0, 1}), std::nullopt);
  EXPECT_EQ(dealt.after({2, 0}), (ChunkPlace{0, 1}));
  // Of the second direction the last stage comes first.
  EXPECT_EQ(mirrored.before({3, 1}), std::nullopt);
  EXPECT_EQ(mirrored.after({3, 1}), (ChunkPlace{2, 1}));
  EXPECT_EQ(mirrored.micro_batches(1, 10).begin, 5);
  EXPECT_EQ(folded.micro_batches(1, 10).begin, 0);
}

TEST(ChunkPlacement, EveryPartHasItsHoldersAndWhatFollowsIsPrecededByIt) {
  for (const PipelineKind kind : {PipelineKind::k1F1B, PipelineKind::kInterleaved, PipelineKind::kZbV, PipelineKind::kDualPipe}) {
    for (std::int32_t stages = 2; stages <= 8; stages += 2) {
      const ChunkPlacement placement{kind, stages, kind == PipelineKind::k1F1B ? 1 : 2};
      std::multiset<std::int32_t> parts;
      for (std::int32_t stage = 0; stage < stages; ++stage) {
        for (std::int32_t chunk = 0; chunk < placement.chunks; ++chunk) {
          parts.insert(placement.part({stage, chunk}));
          const std::optional<ChunkPlace> next = placement.after({stage, chunk});
          if (!next) continue;
          EXPECT_EQ(placement.part(*next), placement.part({stage, chunk}) + 1);
          EXPECT_EQ(placement.before(*next), (ChunkPlace{stage, chunk}));
        }
      }
      for (std::int32_t part = 0; part < placement.parts(); ++part) {
        EXPECT_EQ(parts.count(part), static_cast<std::size_t>(placement.copies()));
      }
    }
  }
}

// 2401.10241 Figure 6 in the order of ScheduleZBVZeroBubble: 2 (p - s) - 1 forward passes of chunk 0; s times F1 F0; p - s times F1 B1 W1;
// then F0 B0 W0 F1 B1 W1 while there are any; s times B0 B1; p - s times B0 W0; the other W1 and W0. With p 2, m 3 stage 1 puts off two.
TEST(FoldedSchedule, ZbVOfTwoStages) {
  EXPECT_EQ(text_of(zb_v_passes(2, 3, 0)), "F0.0 F0.1 F0.2 F1.0 B1.0 W1.0 F1.1 B1.1 W1.1 B0.0 W0.0 F1.2 B1.2 W1.2 B0.1 W0.1 B0.2 W0.2");
  EXPECT_EQ(text_of(zb_v_passes(2, 3, 1)), "F0.0 F1.0 F0.1 F1.1 B1.0 W1.0 F0.2 B0.0 W0.0 F1.2 B1.1 W1.1 B0.1 B1.2 B0.2 W0.1 W1.2 W0.2");
  // One micro-batch: the order of three without the others.
  EXPECT_EQ(text_of(zb_v_passes(2, 1, 1)), "F0.0 F1.0 B1.0 W1.0 B0.0 W0.0");
}

// dualpipe.py step() with 2 ranks, 4 micro-batches: F0 F1, the unpaired F0 B1 of middle ranks, one pair, B1 B0 of which the second is
// split, its W. The other rank is its mirror image.
TEST(FoldedSchedule, DualPipeOfTwoStages) {
  EXPECT_EQ(text_of(dual_pipe_passes(2, 4, 0, true)), "F0.0 F1.2 F0.1 B1.2 F1.3+B0.0 B1.3 B0.1 W0.1");
  EXPECT_EQ(text_of(dual_pipe_passes(2, 4, 1, true)), "F1.2 F0.0 F1.3 B0.0 F0.1+B1.2 B0.1 B1.3 W1.3");
  EXPECT_EQ(text_of(dual_pipe_passes(2, 4, 0, false)), "F0.0 F1.2 F0.1 B1.2 F1.3 B0.0 B1.3 B0.1 W0.1");
}

// Pairs of stage s, s to the nearer end: m - 3 p / 2 + s + 1, one fewer on the middle stages (dualpipe.py steps 4 and 5).
TEST(FoldedSchedule, DualPipePairsWhatTheSourcePairs) {
  for (std::int32_t stages = 2; stages <= 8; stages += 2) {
    for (std::int32_t micro_batches = 2 * stages; micro_batches <= 40; micro_batches += 2) {
      for (std::int32_t stage = 0; stage < stages; ++stage) {
        const std::int32_t end = std::min(stage, stages - 1 - stage);
        const StagePasses passes = dual_pipe_passes(stages, micro_batches, stage, true);
        const auto pairs = std::count(passes.pairs.begin(), passes.pairs.end(), true);
        EXPECT_EQ(pairs, micro_batches - 3 * stages / 2 + end + 1 - (end == stages / 2 - 1 ? 1 : 0));
      }
    }
  }
}

TEST(FoldedSchedule, EveryPassOccursOnceForwardBeforeBackwardBeforeWeight) {
  for (const PipelineKind kind : {PipelineKind::kZbV, PipelineKind::kDualPipe}) {
    for (std::int32_t stages = 1; stages <= 8; ++stages) {
      for (std::int32_t micro_batches = 1; micro_batches <= 40; ++micro_batches) {
        const bool dual = kind == PipelineKind::kDualPipe;
        if (dual && (stages % 2 != 0 || micro_batches % 2 != 0 || micro_batches < 2 * stages)) continue;
        const std::vector<StagePasses> passes = pipeline_passes(kind, stages, 2, micro_batches, 0, true);
        for (const StagePasses& stage : passes) {
          std::set<std::tuple<PassKind, std::int32_t, std::int32_t>> seen;
          for (const Pass& pass : stage.passes) {
            EXPECT_TRUE(seen.insert({pass.kind, pass.chunk, pass.micro_batch}).second);
            if (pass.kind == PassKind::kForward) continue;
            const PassKind before = pass.kind == PassKind::kWeight ? PassKind::kBackward : PassKind::kForward;
            EXPECT_TRUE(seen.contains({before, pass.chunk, pass.micro_batch}));
          }
          const ChunkPlacement placement{kind, stages, 2};
          std::size_t forward = 0, weight = 0;
          for (const auto& [pass, chunk, micro_batch] : seen) {
            const MicroBatchRange range = placement.micro_batches(chunk, micro_batches);
            EXPECT_TRUE(micro_batch >= range.begin && micro_batch < range.end);
            forward += pass == PassKind::kForward;
            weight += pass == PassKind::kWeight;
          }
          EXPECT_EQ(forward, static_cast<std::size_t>(dual ? micro_batches : 2 * micro_batches));
          EXPECT_TRUE(dual || weight == forward);
        }
      }
    }
  }
}

TEST(FoldedSchedule, WarmUps) {
  // Stage s of ZB-V: 2 (p - s) - 1 + 2 s forward passes, then F1 B1.
  EXPECT_EQ(warmup_passes(PipelineKind::kZbV, 3, 2, 9), (std::vector<std::int32_t>{5, 5, 5}));
  // DualPipe: p forward passes before the first backward pass, p + 1 on the middle stages.
  EXPECT_EQ(warmup_passes(PipelineKind::kDualPipe, 4, 2, 8), (std::vector<std::int32_t>{3, 4, 4, 3}));
}

TEST(FoldedSchedule, WhatCannotBeIsABug) {
  EXPECT_THROW(dual_pipe_passes(3, 6, 0, true), std::logic_error);
  EXPECT_THROW(dual_pipe_passes(2, 5, 0, true), std::logic_error);
  EXPECT_THROW(dual_pipe_passes(4, 6, 0, true), std::logic_error);
  EXPECT_THROW(pipeline_passes(PipelineKind::kZbV, 2, 1, 4), std::logic_error);
}

// Megatron-LM combined_1f1b.py: with one stage F1 runs beside B0, F2 beside B1; interleaved: one warm-up pass more than without.
TEST(PairedSchedule, OneMoreForwardPassIsAhead) {
  EXPECT_EQ(text_of(pipeline_passes(PipelineKind::k1F1B, 1, 1, 3, 0, true)[0]), "F0.0 F0.1+B0.0 F0.2+B0.1 B0.2");
  EXPECT_EQ(text_of(pipeline_passes(PipelineKind::k1F1B, 1, 1, 1, 0, true)[0]), "F0.0 B0.0");
  EXPECT_EQ(warmup_passes(PipelineKind::kInterleaved, 2, 2, 4), (std::vector<std::int32_t>{4, 2}));
  EXPECT_EQ(warmup_passes(PipelineKind::kInterleaved, 2, 2, 4, 0, true), (std::vector<std::int32_t>{5, 3}));
  EXPECT_EQ(text_of(pipeline_passes(PipelineKind::kInterleaved, 2, 2, 2, 0, true)[1]), "F0.0 F0.1 F1.0 F1.1+B1.0 B1.1 B0.0 B0.1");
  // Schedules without pairs stay as they are.
  EXPECT_EQ(text_of(pipeline_passes(PipelineKind::kGPipe, 1, 1, 2, 0, true)[0]), "F0.0 F0.1 B0.0 B0.1");
  EXPECT_EQ(pipeline_passes(PipelineKind::kZbH1, 3, 1, 4, 0, true)[1].passes, pipeline_passes(PipelineKind::kZbH1, 3, 1, 4)[1].passes);
}

}  // namespace
}  // namespace stepsim
