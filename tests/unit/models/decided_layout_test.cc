// What with_preset() fills in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/framework_preset.h"
#include "models/training_recipe.h"

namespace stepsim {
namespace {

ParallelLayout decided(const ParallelLayout& given, const FrameworkPreset& framework) { return with_preset(given, {}, framework); }

TEST(DecidedLayout, TakesThePresetsExchanges) {
  FrameworkPreset framework;
  framework.dispatcher = Dispatcher::kAllGather;
  framework.context_exchange = ContextExchange::kAllToAll;
  framework.tensor_overlap = TensorOverlap::kRing;
  framework.overlaps_expert_exchange = framework.delays_weight_gradients = true;
  ParallelLayout given;
  given.tensor = 2;
  given.sequence_parallel = true;
  const ParallelLayout layout = decided(given, framework);
  EXPECT_EQ(layout.dispatcher, Dispatcher::kAllGather);
  EXPECT_EQ(layout.context_exchange, ContextExchange::kAllToAll);
  EXPECT_EQ(layout.tensor_overlap, TensorOverlap::kRing);
  EXPECT_EQ(layout.overlap_expert_exchange, true);
  EXPECT_EQ(layout.delay_weight_gradients, true);
}

TEST(DecidedLayout, KeepsWhatTheUserSaid) {
  FrameworkPreset framework;
  framework.tensor_overlap = TensorOverlap::kRing;
  framework.overlaps_expert_exchange = true;
  ParallelLayout given;
  given.tensor = 2;
  given.sequence_parallel = true;
  given.dispatcher = Dispatcher::kDeepEp;
  given.context_exchange = ContextExchange::kAllGather;
  given.tensor_overlap = TensorOverlap::kNone;
  given.overlap_expert_exchange = false;
  given.delay_weight_gradients = true;
  const ParallelLayout layout = decided(given, framework);
  EXPECT_EQ(layout.dispatcher, Dispatcher::kDeepEp);
  EXPECT_EQ(layout.context_exchange, ContextExchange::kAllGather);
  EXPECT_EQ(layout.tensor_overlap, TensorOverlap::kNone);
  EXPECT_EQ(layout.overlap_expert_exchange, false);
  EXPECT_EQ(layout.delay_weight_gradients, true);
}

// Userbuffers carry the collectives of sequence parallelism alone.
TEST(DecidedLayout, NothingOverlapsWithoutSequenceParallelism) {
  FrameworkPreset framework;
  framework.tensor_overlap = TensorOverlap::kRing;
  for (const auto& [tensor, sequence_parallel] : {std::pair(1, true), std::pair(2, false)}) {
    ParallelLayout given;
    given.tensor = tensor;
    given.sequence_parallel = sequence_parallel;
    EXPECT_EQ(decided(given, framework).tensor_overlap, TensorOverlap::kNone) << tensor;
    given.tensor_overlap = TensorOverlap::kRing;
    EXPECT_EQ(decided(given, framework).tensor_overlap, TensorOverlap::kNone) << tensor;
  }
}

TEST(DecidedLayout, KernelsOfDispatchersNeedRanks) {
  FrameworkPreset framework;
  framework.dispatcher = Dispatcher::kHybridEp;
  ParallelLayout given;
  EXPECT_EQ(decided(given, framework).dispatcher, Dispatcher::kAllToAll);
  given.expert = 2;
  EXPECT_EQ(decided(given, framework).dispatcher, Dispatcher::kHybridEp);
}

TEST(DecidedLayout, PipelinesOfTwoDirectionsOverlapTheirTransfers) {
  FrameworkPreset framework;
  framework.point_to_point = PointToPoint::kBlocking;
  ParallelLayout given;
  given.schedule = PipelineKind::k1F1B;
  EXPECT_EQ(decided(given, framework).point_to_point, PointToPoint::kBlocking);
  for (const PipelineKind kind : {PipelineKind::kZbH1, PipelineKind::kZbV, PipelineKind::kDualPipe}) {
    given.schedule = kind;
    EXPECT_EQ(decided(given, framework).point_to_point, PointToPoint::kOverlapped);
  }
}

}  // namespace
}  // namespace stepsim
