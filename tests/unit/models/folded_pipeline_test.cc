// ZB-V, DualPipe and pairs as graphs of whole passes against what their authors publish.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "models/chunk_placement.h"
#include "models/pipeline_graph.h"
#include "sim/simulate.h"

namespace stepsim {
namespace {

constexpr PointToPoint kModes[] = {PointToPoint::kBlocking, PointToPoint::kBatched, PointToPoint::kOverlapped};

struct FoldedCase {
  PipelineKind kind = PipelineKind::kZbV;
  std::int32_t stages = 2, micro_batches = 4;
  PassDurations durations{};
  PointToPoint mode = PointToPoint::kOverlapped;
  std::int64_t transfer = 0;
  bool pairs = true;
};

struct FoldedRun {
  PipelineGraph pipeline;
  StepResult result;
};

FoldedRun run_of(const FoldedCase& of) {
  const std::vector<PassDurations> durations(static_cast<std::size_t>(of.stages), of.durations);
  PipelineGraph pipeline = pipeline_graph(pipeline_passes(of.kind, of.stages, 2, of.micro_batches, 0, of.pairs), 2, of.mode, durations,
                                          Duration(of.transfer), of.kind);
  StepResult result =
      simulate(pipeline.graph, plain_machine(of.stages), GivenCostModel(pipeline.costs), {.device = LedgerRule::kDeviceOrder});
  return {std::move(pipeline), std::move(result)};
}

std::string text_of(const FoldedCase& of) {
  return std::string(pipeline_name(of.kind)) + " p " + std::to_string(of.stages) + " m " + std::to_string(of.micro_batches) + " " +
         std::string(point_to_point_name(of.mode));
}

// 2401.10241 section 6: no bubble with F = B = W, 1F1B's memory (p micro-batches of a stage, so 2 p of its halves), twice the transfers. A
// stage begins when the first micro-batch comes to it, s passes late, and ends as much later: T = 6 m + p - 1 passes of a chunk.
TEST(FoldedPipeline, ZbVHasNoBubbleBehindTheFirstMicroBatch) {
  for (std::int32_t stages = 1; stages <= 8; ++stages) {
    for (std::int32_t micro_batches = 2 * stages - 1; micro_batches <= 40; micro_batches += 4) {
      for (const PointToPoint mode : kModes) {
        const FoldedCase of{PipelineKind::kZbV, stages, micro_batches, {Duration(10), Duration(10), Duration(10)}, mode};
        SCOPED_TRACE(text_of(of));
        const FoldedRun run = run_of(of);
        ASSERT_FALSE(run.result.deadlock.has_value());
        EXPECT_EQ(run.result.end.count(), 10 * (6 * micro_batches + stages - 1));
        const std::vector<std::int64_t> most(static_cast<std::size_t>(stages), std::min(2 * stages, 2 * micro_batches));
        EXPECT_EQ(passes_in_flight(run.pipeline, run.result, run.pipeline.until_weight), most);
      }
    }
  }
  // Too few to fill the pipeline: p 3, m 1. Six forward passes until 60; B of part 5 (stage 0) 60-70, part 4 70-80, part 3 (stage 2) 80-90;
  // stage 2 runs W of part 3 90-100 before B of part 2 100-110; part 1 110-120, part 0 120-130, its W 130-140.
  EXPECT_EQ(run_of({PipelineKind::kZbV, 3, 1, {Duration(10), Duration(10), Duration(10)}}).result.end.count(), 140);
}

std::int64_t transfers_in(const PipelineGraph& pipeline) {
  std::int64_t count = 0;
  for (const Op& op : pipeline.graph.ops()) count += pipeline.graph.label(op.kind) == "transfer";
  return count;
}

// Down and back there are 2 p - 2 hand-overs between stages and one within the last: twice the p - 1 of 1F1B. DualPipe: p - 1 as 1F1B.
TEST(FoldedPipeline, TransfersBetweenStages) {
  for (std::int32_t stages = 2; stages <= 8; stages += 2) {
    const std::int64_t micro_batches = 2 * stages;
    const auto count = [&](PipelineKind kind) {
      return transfers_in(run_of({kind, stages, 2 * stages, {Duration(1), Duration(1), Duration(1)}}).pipeline);
    };
    EXPECT_EQ(count(PipelineKind::kZbV), 2 * micro_batches * 2 * (stages - 1));
    EXPECT_EQ(count(PipelineKind::kDualPipe), 2 * micro_batches * (stages - 1));
  }
}

// deepseek-ai/DualPipe README: bubble (PP / 2 - 1)(F&B + B - 3 W) with B the whole backward pass, PP + 1 activations. It is the idle time
// of the middle stages, which pair m - p - 1 times (dualpipe.py steps 4 and 5); the others pair less and so have more work and less idle
// time.
TEST(FoldedPipeline, DualPipesBubbleIsThatOfItsReadme) {
  struct Durations {
    std::int64_t forward, whole, weight, pair;
  };
  for (const Durations& d : {Durations{10, 20, 10, 30}, Durations{10, 20, 10, 25}, Durations{10, 20, 8, 27}, Durations{12, 24, 10, 30}}) {
    for (std::int32_t stages = 2; stages <= 8; stages += 2) {
      for (std::int32_t micro_batches = 2 * stages; micro_batches <= 40; micro_batches += 6) {
        const FoldedCase of{PipelineKind::kDualPipe,
                            stages,
                            micro_batches,
                            {Duration(d.forward), Duration(d.whole - d.weight), Duration(d.weight), Duration(d.pair)}};
        SCOPED_TRACE(text_of(of) + " F&B " + std::to_string(d.pair));
        const FoldedRun run = run_of(of);
        const std::int64_t pairs = micro_batches - stages - 1;
        const std::int64_t work = pairs * d.pair + (micro_batches - pairs) * (d.forward + d.whole);
        EXPECT_EQ(run.result.end.count() - work, (stages / 2 - 1) * (d.pair + d.whole - 3 * d.weight));
        const std::vector<std::int64_t> most(static_cast<std::size_t>(stages), stages + 1);
        EXPECT_EQ(passes_in_flight(run.pipeline, run.result, run.pipeline.until_backward), most);
        EXPECT_EQ(passes_in_flight(run.pipeline, run.result, run.pipeline.until_weight), most);
      }
    }
  }
}

// A pair without a duration of its own is its two passes one behind the other, and runs when both have what they need: never earlier than
// without pairs.
TEST(FoldedPipeline, PairsWithoutOverlapTakeBothTimes) {
  const PassDurations durations{Duration(10), Duration(12), Duration(8)};
  for (std::int32_t stages = 2; stages <= 8; stages += 2) {
    const std::int32_t micro_batches = 2 * stages + 4;
    const std::int64_t paired = run_of({PipelineKind::kDualPipe, stages, micro_batches, durations}).result.end.count();
    const std::int64_t apart =
        run_of({PipelineKind::kDualPipe, stages, micro_batches, durations, PointToPoint::kOverlapped, 0, false}).result.end.count();
    EXPECT_EQ(paired, 30 * micro_batches + (stages / 2 - 1) * (30 + 20 - 24));
    EXPECT_LE(apart, paired);
  }
}

// Whatever an item waits for stands before it.
void expect_ordered(const std::vector<StagePasses>& passes, const std::vector<PipelineItem>& items) {
  std::vector<std::int32_t> next(passes.size(), 0);
  std::set<std::pair<std::int32_t, std::int32_t>> fed;
  const auto ran = [&](std::int32_t stage, std::int32_t pass) { return pass < next[static_cast<std::size_t>(stage)]; };
  for (const PipelineItem& item : items) {
    std::int32_t& now = next[static_cast<std::size_t>(item.stage)];
    if (!item.is_transfer) {
      ASSERT_EQ(item.pass, now);
      ASSERT_EQ(item.pair, passes[static_cast<std::size_t>(item.stage)].pairs_with_next(now));
      now += item.pair ? 2 : 1;
      continue;
    }
    ASSERT_TRUE(ran(item.from_stage, item.from_pass));
    ASSERT_TRUE(item.posted_after < 0 || ran(item.stage, item.posted_after));
    ASSERT_FALSE(ran(item.stage, item.pass));
    ASSERT_FALSE(item.sender_waits >= 0 && ran(item.from_stage, item.sender_waits));
    ASSERT_FALSE(item.receiver_waits >= 0 && ran(item.stage, item.receiver_waits));
    ASSERT_TRUE(fed.insert({item.stage, item.pass}).second);
  }
  for (std::size_t stage = 0; stage < passes.size(); ++stage) ASSERT_EQ(static_cast<std::size_t>(next[stage]), passes[stage].passes.size());
}

TEST(FoldedPipeline, NoStageWaitsForAnotherForEver) {
  for (const auto& [kind, chunks] : {std::pair(PipelineKind::kZbV, 2), std::pair(PipelineKind::kDualPipe, 2),
                                     std::pair(PipelineKind::k1F1B, 1), std::pair(PipelineKind::kInterleaved, 3)}) {
    for (std::int32_t stages = 1; stages <= 8; ++stages) {
      for (std::int32_t micro_batches = 1; micro_batches <= 40; ++micro_batches) {
        const bool dual = kind == PipelineKind::kDualPipe;
        if (dual && (stages % 2 != 0 || micro_batches % 2 != 0 || micro_batches < 2 * stages)) continue;
        if (kind == PipelineKind::kInterleaved && micro_batches % stages != 0) continue;
        for (const PointToPoint mode : kModes) {
          SCOPED_TRACE(std::string(pipeline_name(kind)) + " p " + std::to_string(stages) + " m " + std::to_string(micro_batches) + " " +
                       std::string(point_to_point_name(mode)));
          const std::vector<StagePasses> passes = pipeline_passes(kind, stages, chunks, micro_batches, 0, true);
          expect_ordered(passes, pipeline_program(passes, chunks, mode, kind));
        }
      }
    }
  }
}

// Through the engine with transfers that take time, under every mode: no deadlock, every op ran, never faster than without.
TEST(FoldedPipeline, TransfersCostTimeAndBlockNobody) {
  for (const PipelineKind kind : {PipelineKind::kZbV, PipelineKind::kDualPipe}) {
    for (std::int32_t stages = 2; stages <= 8; stages += 2) {
      for (const PointToPoint mode : kModes) {
        FoldedCase of{kind, stages, 2 * stages + 2, {Duration(10), Duration(12), Duration(8), Duration(27)}, mode};
        SCOPED_TRACE(text_of(of));
        const std::int64_t free = run_of(of).result.end.count();
        of.transfer = 3;
        const FoldedRun run = run_of(of);
        ASSERT_FALSE(run.result.deadlock.has_value());
        EXPECT_EQ(run.result.timeline.size(), run.pipeline.graph.ops().size());
        EXPECT_GT(run.result.end.count(), free);
      }
    }
  }
}

// 1F1B with pairs of half the time, one stage: F, m - 1 pairs, B.
TEST(PairedPipeline, OneStage) {
  const PassDurations durations{Duration(10), Duration(20), Duration(0), Duration(18)};
  for (std::int32_t micro_batches = 1; micro_batches <= 5; ++micro_batches) {
    const PipelineGraph pipeline =
        pipeline_graph(pipeline_passes(PipelineKind::k1F1B, 1, 1, micro_batches, 0, true), 1, PointToPoint::kOverlapped, {durations}, {});
    const StepResult result =
        simulate(pipeline.graph, plain_machine(1), GivenCostModel(pipeline.costs), {.device = LedgerRule::kDeviceOrder});
    EXPECT_EQ(result.end.count(), 10 + 18 * (micro_batches - 1) + 20);
    EXPECT_EQ(passes_in_flight(pipeline, result, pipeline.until_backward), std::vector<std::int64_t>{std::min(micro_batches, 2)});
  }
}

}  // namespace
}  // namespace stepsim
