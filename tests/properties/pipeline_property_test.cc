// Pipelines through the engine against an independent oracle and against their closed forms. Durations in picoseconds.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "models/pipeline_graph.h"
#include "models/vocabulary.h"
#include "sim/metrics.h"
#include "sim/simulate.h"
#include "tests/properties/pipeline_oracle.h"

namespace stepsim {
namespace {

constexpr PipelineKind kKinds[] = {PipelineKind::kGPipe, PipelineKind::k1F1B, PipelineKind::kInterleaved, PipelineKind::kZbH1};
constexpr PointToPoint kModes[] = {PointToPoint::kBlocking, PointToPoint::kBatched, PointToPoint::kOverlapped};

// Small numbers, zeros among them, so that instants coincide.
class RandomPipelines {
 public:
  explicit RandomPipelines(std::uint64_t seed) : random_(seed) {}
  OraclePipeline next(PipelineKind kind) {
    OraclePipeline made{
        .schedule = std::string(pipeline_name(kind)), .stages = upto(1, 8), .chunks = 1, .micro_batches = upto(1, 20), .durations = {}};
    if (kind == PipelineKind::kInterleaved) {
      made.chunks = upto(1, 3);
      made.micro_batches = made.stages * upto(1, 4);
    }
    for (int stage = 0; stage < made.stages; ++stage) made.durations.push_back({upto(0, 12), upto(0, 20), upto(0, 12)});
    made.transfer = upto(0, 3) == 0 ? 0 : upto(1, 25);
    return made;
  }

 private:
  int upto(int least, int most) { return least + static_cast<int>(random_() % static_cast<std::uint64_t>(most - least + 1)); }
  std::mt19937_64 random_;
};

struct PipelineRun {
  PipelineGraph pipeline;
  StepResult result;
};

PipelineRun run_of(PipelineKind kind, const OraclePipeline& of, PointToPoint mode) {
  std::vector<PassDurations> durations;
  for (const OracleDurations& each : of.durations) {
    durations.push_back({Duration(each.forward), Duration(each.backward), Duration(each.weight)});
  }
  PipelineGraph pipeline =
      pipeline_graph(pipeline_passes(kind, of.stages, of.chunks, of.micro_batches), of.chunks, mode, durations, Duration(of.transfer));
  StepResult result =
      simulate(pipeline.graph, plain_machine(of.stages), GivenCostModel(pipeline.costs), {.device = LedgerRule::kDeviceOrder});
  return {std::move(pipeline), std::move(result)};
}

// Every instant of the critical stage's compute stream has one cause.
void expect_partitioned(const PipelineRun& run) {
  ASSERT_FALSE(run.result.deadlock.has_value());
  EXPECT_EQ(run.result.timeline.size(), run.pipeline.graph.ops().size());
  EXPECT_EQ(time_partition(run.pipeline.graph, run.result, {}).total(), run.result.end);
}

std::string text_of(const OraclePipeline& of) {
  std::string text = of.schedule + " p " + std::to_string(of.stages) + " v " + std::to_string(of.chunks) + " m " +
                     std::to_string(of.micro_batches) + " P2P " + std::to_string(of.transfer) + " F B W";
  for (const OracleDurations& each : of.durations) {
    for (const std::int64_t duration : {each.forward, each.backward, each.weight}) {
      text += ' ';
      text += std::to_string(duration);
    }
  }
  return text;
}

TEST(PipelineProperty, OverlappedStepsAreTheOracles) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    for (const PipelineKind kind : kKinds) {
      const OraclePipeline of = RandomPipelines(seed).next(kind);
      SCOPED_TRACE("seed " + std::to_string(seed) + ": " + text_of(of));
      const OracleOutcome expected = oracle_outcome(of);
      const PipelineRun run = run_of(kind, of, PointToPoint::kOverlapped);
      expect_partitioned(run);
      EXPECT_EQ(run.result.end.count(), expected.makespan);
      EXPECT_EQ(passes_in_flight(run.pipeline, run.result, run.pipeline.until_backward), expected.until_backward);
      ASSERT_EQ(run.pipeline.until_weight.valid(), kind == PipelineKind::kZbH1);
      if (kind != PipelineKind::kZbH1) continue;
      EXPECT_EQ(passes_in_flight(run.pipeline, run.result, run.pipeline.until_weight), expected.until_weight);
    }
  }
}

// Waiting for exchanges costs time, never passes in flight; and no schedule's stages block one another.
TEST(PipelineProperty, ExchangesNeitherBlockNorChangeWhatIsInFlight) {
  for (std::uint64_t seed = 1; seed <= 80; ++seed) {
    for (const PipelineKind kind : kKinds) {
      const OraclePipeline of = RandomPipelines(seed).next(kind);
      SCOPED_TRACE("seed " + std::to_string(seed) + ": " + text_of(of));
      std::map<PointToPoint, std::int64_t> makespans;
      for (const PointToPoint mode : kModes) {
        const PipelineRun run = run_of(kind, of, mode);
        expect_partitioned(run);
        makespans[mode] = run.result.end.count();
        EXPECT_EQ(passes_in_flight(run.pipeline, run.result, run.pipeline.until_backward), oracle_outcome(of).until_backward);
      }
      EXPECT_LE(makespans[PointToPoint::kBatched], makespans[PointToPoint::kBlocking]);
    }
  }
}

struct ClosedForm {
  PipelineKind kind;
  std::int64_t forward, backward;
};

// (m + p - 1)(F + B) for GPipe and 1F1B, (m v + p - 1)(F + B) with F and B of a chunk when interleaved (placement_and_memory.md, section
// 4): under every PointToPoint where all stages are alike and transfers take no time. Not so ZB-H1: its W passes stand behind exchanges,
// which then wait for stages that have no W in between.
TEST(PipelineProperty, ClosedFormsHoldUnderEveryPointToPointWithoutTransferTime) {
  for (const ClosedForm& of :
       {ClosedForm{PipelineKind::kGPipe, 3, 3}, ClosedForm{PipelineKind::k1F1B, 3, 3}, ClosedForm{PipelineKind::k1F1B, 3, 5},
        ClosedForm{PipelineKind::k1F1B, 5, 2}, ClosedForm{PipelineKind::kInterleaved, 3, 3}, ClosedForm{PipelineKind::kInterleaved, 3, 5},
        ClosedForm{PipelineKind::kInterleaved, 5, 2}}) {
    for (int stages = 1; stages <= 6; ++stages) {
      for (int turns = 1; turns <= 3; ++turns) {
        const bool interleaved = of.kind == PipelineKind::kInterleaved;
        const int chunks = interleaved ? 1 + turns % 3 : 1, micro_batches = interleaved ? stages * turns : 3 * turns - 1;
        OraclePipeline pipeline{.schedule = "", .stages = stages, .chunks = chunks, .micro_batches = micro_batches, .durations = {}};
        pipeline.durations.assign(static_cast<std::size_t>(stages), {of.forward, of.backward, 0});
        for (const PointToPoint mode : kModes) {
          SCOPED_TRACE(std::string(pipeline_name(of.kind)) + " " + std::string(point_to_point_name(mode)) + text_of(pipeline));
          const PipelineRun run = run_of(of.kind, pipeline, mode);
          EXPECT_EQ(run.result.end.count(), (std::int64_t{micro_batches} * chunks + stages - 1) * (of.forward + of.backward));
        }
      }
    }
  }
}

}  // namespace
}  // namespace stepsim
