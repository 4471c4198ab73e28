#include "models/pipeline_graph.h"

#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

#include "models/vocabulary.h"
#include "sim/metrics.h"
#include "sim/simulate.h"

namespace stepsim {
namespace {

struct GraphCase {
  PipelineKind kind = PipelineKind::k1F1B;
  std::int32_t stages = 2, chunks = 1, micro_batches = 2;
  PointToPoint mode = PointToPoint::kOverlapped;
  std::int64_t transfer = 0;
};

// F 10, B 20, W 5.
PipelineGraph graph_of(const GraphCase& of) {
  const std::vector<PassDurations> durations(static_cast<std::size_t>(of.stages), {Duration(10), Duration(20), Duration(5)});
  return pipeline_graph(pipeline_passes(of.kind, of.stages, of.chunks, of.micro_batches), of.chunks, of.mode, durations,
                        Duration(of.transfer));
}

StepResult run_of(const PipelineGraph& pipeline) {
  return simulate(pipeline.graph, plain_machine(pipeline.graph.device_count()), GivenCostModel(pipeline.costs),
                  {.device = LedgerRule::kDeviceOrder});
}

// Starts by the names of ops, "forward L0 pass mb1", and the stage where the op is (transfers: the receiver).
std::map<std::pair<std::int32_t, std::string>, std::int64_t> starts(const PipelineGraph& pipeline, const StepResult& result) {
  std::map<std::pair<std::int32_t, std::string>, std::int64_t> starts;
  for (const OpRun& run : result.timeline) {
    const StreamId stream = pipeline.graph.parts(run.op)[0];
    const DeviceId device = pipeline.graph.streams()[static_cast<std::size_t>(stream.index)].device;
    starts[{device.index, pipeline.graph.op_name(run.op)}] = run.start.count();
  }
  return starts;
}

TEST(PipelineGraph, TransfersRunBesideComputeWhereTheyAreOverlapped) {
  // Stage 0: F0 0-10, F1 10-20, B0, B1. Stage 1 F0: sent 10-14, runs 14-24; F1's receive is posted at 24 and sent 24-28; B0 24-44, F1
  // 44-54, B1 54-74. B0 is sent 44-48, runs 48-68 on stage 0; B1 sent 74-78 (posted since 68), runs 78-98.
  const PipelineGraph pipeline = graph_of({.transfer = 4});
  const StepResult result = run_of(pipeline);
  auto start = starts(pipeline, result);
  EXPECT_EQ((start[{1, "forward L0 transfer mb0"}]), 10);
  EXPECT_EQ((start[{1, "forward L0 transfer mb1"}]), 24);
  EXPECT_EQ((start[{1, "forward L0 pass mb1"}]), 44);
  EXPECT_EQ((start[{0, "backward L0 transfer mb0"}]), 44);
  EXPECT_EQ((start[{0, "backward L0 transfer mb1"}]), 74);
  EXPECT_EQ((start[{0, "backward L0 pass mb1"}]), 78);
  EXPECT_EQ(result.end.count(), 98);
}

TEST(PipelineGraph, ComputeWaitsForExchangesWhereTheyAreNot) {
  // F0 of stage 0 0-10, its exchange 10-14 (stage 1 waits there), then F1 14-24 beside F0 of stage 1 14-24; B0 of stage 1 24-44; the
  // exchange of both 44-48 at once, or F1 behind B0 until 52 on the one stream of a device (B0 stands first in the program: its pass is
  // listed first).
  for (const auto& [mode, exchange] : {std::pair(PointToPoint::kBatched, 4), std::pair(PointToPoint::kBlocking, 8)}) {
    const PipelineGraph pipeline = graph_of({.mode = mode, .transfer = 4});
    const StepResult result = run_of(pipeline);
    auto start = starts(pipeline, result);
    EXPECT_EQ((start[{0, "forward L0 pass mb1"}]), 14);
    EXPECT_EQ((start[{1, "backward L0 pass mb0"}]), 24);
    EXPECT_EQ((start[{0, "backward L0 transfer mb0"}]), 44);
    EXPECT_EQ((start[{1, "forward L0 transfer mb1"}]), 40 + exchange);
    // B0 of stage 0 and F1 of stage 1 after the exchange; B1 of stage 1 10 later, sent for 4 at 74 + exchange, then B1 of stage 0.
    EXPECT_EQ((start[{0, "backward L0 pass mb0"}]), 44 + exchange);
    EXPECT_EQ((start[{1, "forward L0 pass mb1"}]), 44 + exchange);
    EXPECT_EQ(result.end.count(), 44 + exchange + 10 + 20 + 4 + 20);
  }
}

TEST(PipelineGraph, StreamsAreNamedAndOneADeviceWhereTransfersBlock) {
  const auto names = [](PointToPoint mode) {
    const PipelineGraph pipeline = graph_of({.mode = mode});
    std::vector<std::string> kinds;
    for (const Stream& stream : pipeline.graph.streams()) {
      if (stream.device == DeviceId{1}) kinds.emplace_back(pipeline.graph.label(stream.kind));
    }
    return kinds;
  };
  const std::vector<std::string> four = {"compute", "pp receive forward", "pp send forward", "pp receive backward", "pp send backward"};
  EXPECT_EQ(names(PointToPoint::kOverlapped), four);
  EXPECT_EQ(names(PointToPoint::kBatched), four);
  EXPECT_EQ(names(PointToPoint::kBlocking), (std::vector<std::string>{"compute", "pp"}));
}

TEST(PipelineGraph, CountsWhatIsInFlightUntilBackwardAndUntilTheWeightPass) {
  // ZB-H1, p 2, m 3: F0 F1 B0 W0 F2 B1 W1 B2 W2 holds 2 until B and until W; F0 B0 F1 B1 W0 F2 B2 W1 W2 holds 1 until B, 2 until W.
  const PipelineGraph pipeline = graph_of({.kind = PipelineKind::kZbH1, .micro_batches = 3});
  const StepResult result = run_of(pipeline);
  EXPECT_EQ(passes_in_flight(pipeline, result, pipeline.until_backward), (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(passes_in_flight(pipeline, result, pipeline.until_weight), (std::vector<std::int64_t>{2, 2}));
  // m (F + B + W) + (p - 1)(F + B - W)
  EXPECT_EQ(result.end.count(), 3 * 35 + 25);
  EXPECT_FALSE(graph_of({}).until_weight.valid());
  EXPECT_THROW(passes_in_flight(pipeline, result, LabelId{}), std::logic_error);
}

TEST(PipelineGraph, WaitingForAnotherStageIsBubbleAndForTransfersExposed) {
  // The step ends on stage 0, 98 long (first test): 20 of F, 40 of B; from 20 it waits for B0: for F0's transfer (10-14 beside its own F1),
  // stage 1 until 44 (24 bubble), the transfer until 48 (4 exposed); from 68 for stage 1 until 74 and the transfer until 78.
  const PipelineGraph pipeline = graph_of({.transfer = 4});
  const TimePartition time = time_partition(pipeline.graph, run_of(pipeline), {});
  EXPECT_EQ(time.total().count(), 98);
  EXPECT_EQ(time.busy[static_cast<std::size_t>(Phase::kForward)].count(), 20);
  EXPECT_EQ(time.busy[static_cast<std::size_t>(Phase::kBackward)].count(), 40);
  EXPECT_EQ(time.exposed_collective[static_cast<std::size_t>(Group::kPipeline)].count(), 8);
  EXPECT_EQ(time.bubble.count(), 30);
}

}  // namespace
}  // namespace stepsim
