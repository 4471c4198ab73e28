// Bytes a parameter of optimizers' kernels, the loop over parameters with its host reads, and steps without an optimizer.
#include "models/update_kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/models/small_step.h"

namespace stepsim {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Four layers of 100 parameters and an embedding of 10 on 4 ranks: fp32 shards of 25 and 3.
StepRequest sharded() {
  StepRequest request = small_request(4);
  request.parallel.data = 4;
  request.parallel.zero = 3;
  request.training.global_batch = 4;
  request.framework.gradients_always_allocated = false;
  request.framework.reads_gradient_norm = false;
  return request;
}

constexpr double kShards = 3 + 4 * 25;

double bytes_of(const OpGraph& graph, std::string_view kind) {
  double bytes = 0;
  for (const OpId op : ops_of(graph, kind)) bytes += static_cast<double>(memory_traffic(graph.work(op)).value);
  return bytes;
}

// spec accuracy.md B.4: fused 28 + 12 B a parameter, of which the norm reads 4 and the clip moves 8; unfused 80.
TEST(UpdateKernels, BytesOfAParameter) {
  StepRequest request = sharded();
  request.framework.always_clips = true;
  const BuiltStep fused = build_step(request, small_templates(2));
  EXPECT_EQ(bytes_of(fused.graph, "AdamW update"), 28 * kShards);  // reads p, g, m and v, writes p, m and v
  EXPECT_EQ(bytes_of(fused.graph, "gradient norm") + bytes_of(fused.graph, "gradient clip"), 12 * kShards);
  EXPECT_EQ(count_ops(fused.graph, "AdamW update"), 5);
  request.framework.fused_optimizer = false;
  const BuiltStep foreach = build_step(request, small_templates(2));
  EXPECT_EQ(bytes_of(foreach.graph, "AdamW update"), 80 * kShards);
  EXPECT_EQ(count_ops(foreach.graph, "AdamW update"), 5);
}

// spec accuracy.md C.1, Megatron-LM in fp16 with fp32 gradients: unscale 8, norm 4, clip 8, Adam 28, copy of the weights 6, clear 4.
TEST(UpdateKernels, MegatronsPathMovesFiftyEightBytes) {
  StepRequest request = small_request(1);
  request.training.precision = Precision::kFp16;
  request.training.gradient_dtype = DType::kFp32;
  request.framework.always_clips = request.framework.copies_updated_weights = true;
  const BuiltStep built = build_step(request, small_templates());
  double bytes = 0;
  for (const Op& op : built.graph.ops()) {
    if (op.phase == built.phase_labels[3]) bytes += static_cast<double>(memory_traffic(built.graph.work(op.work)).value);
  }
  EXPECT_EQ(bytes, 58 * 110.0);
}

// composer's DecoupledAdamW: a flat parameter a unit under FSDP1, eight kernels each, 80 B together; the host reads the step's number
// before the first of the eight is launched.
TEST(UpdateKernels, LoopOverFlatParameters) {
  StepRequest request = sharded();
  request.framework.copies_out_of_gathers = false;
  request.framework.fused_optimizer = false;
  request.framework.loops_over_parameters = true;
  const BuiltStep built = build_step(request, small_templates(2));
  const std::vector<OpId> updates = ops_of(built.graph, "AdamW update");
  ASSERT_EQ(updates.size(), 5u * 8u);
  EXPECT_EQ(bytes_of(built.graph, "AdamW update"), 80 * kShards);
  std::vector<std::int64_t> traffic;
  for (std::size_t each = 8; each < 16; ++each) traffic.push_back(memory_traffic(built.graph.work(updates[each])).value / (25 * 4));
  EXPECT_THAT(traffic, ElementsAre(2, 3, 2, 3, 2, 2, 2, 4));  // operands of each kernel of the first layer
  for (std::size_t each = 0; each < updates.size(); ++each) {
    const std::span<const OpId> after = built.graph.issue_after(updates[each]);
    if (each % 8 != 0) {
      EXPECT_TRUE(after.empty()) << each;
    } else {
      ASSERT_EQ(after.size(), 1u) << each;
      if (each > 0) {
        EXPECT_EQ(after.front(), updates[each - 1]);
      }
    }
  }
  EXPECT_FALSE(run_step(built).deadlock.has_value());
}

// Elsewhere the loop is over the parameters themselves: a layer of a matrix of 100 and a vector of 10.
TEST(UpdateKernels, LoopOverEachParameter) {
  StepRequest request = small_request(1);
  request.framework.fused_optimizer = false;
  request.framework.loops_over_parameters = true;
  StepTemplates templates = small_templates();
  LayerTemplate& layer = templates.kinds.front();
  layer.slots.push_back(small_slot("bias", SlotKind::kWeight, 20));                   // 10
  layer.slots.push_back(small_slot("bias gradient", SlotKind::kWeightGradient, 40));  // 11
  layer.forward.front().reads.push_back(10);
  layer.backward.back().updates.push_back(11);
  layer.parameters = 110;
  const BuiltStep built = build_step(request, templates);
  const std::vector<OpId> updates = ops_of(built.graph, "AdamW update");
  ASSERT_EQ(updates.size(), 3u * 8u);  // the embedding's 10, 100, 10
  EXPECT_EQ(memory_traffic(built.graph.work(updates[8])), Bytes(2 * 4 * 100));
  EXPECT_EQ(memory_traffic(built.graph.work(updates[16])), Bytes(2 * 4 * 10));
  // The second parameter's moments lie behind the first one's 8 B each.
  const StorageId moments = storages_of(built.graph, kOptimizerMoments)[1];
  const std::span<const Tensor> writes = built.graph.writes(updates[16]);
  const auto found = std::find_if(writes.begin(), writes.end(), [&](const Tensor& tensor) { return tensor.storage == moments; });
  ASSERT_NE(found, writes.end());
  EXPECT_EQ(found->offset, Bytes(800));
  EXPECT_EQ(found->size, Bytes(80));
}

std::vector<std::string> optimizer_ops(const BuiltStep& built) {
  std::vector<std::string> kinds;
  for (const Op& op : built.graph.ops()) {
    if (op.phase == built.phase_labels[3]) kinds.emplace_back(built.graph.label(op.kind));
  }
  return kinds;
}

// Forward and backward alone: gradients are made and summed, nothing else is kept.
TEST(NoOptimizer, GradientsAreMadeAndSummed) {
  StepRequest request = small_request(2);
  request.training.optimizer = OptimizerKind::kNone;
  request.parallel.data = 4;
  request.training.global_batch = 4;
  request.framework.gradients_always_allocated = false;
  const BuiltStep built = build_step(request, small_templates());
  EXPECT_THAT(optimizer_ops(built), ElementsAre("gradient all-reduce", "gradients let go"));
  EXPECT_TRUE(storages_of(built.graph, kOptimizerMoments).empty());
  EXPECT_TRUE(storages_of(built.graph, "master weights").empty());
  const StepResult result = run_step(built);
  for (const StorageId gradients : storages_of(built.graph, "main gradients")) {
    EXPECT_EQ(life_of(built.graph, result, gradients).dead, "optimizer gradients let go");
  }
  request.framework.gradients_always_allocated = true;
  request.parallel.data = 1;
  request.training.global_batch = 1;
  EXPECT_THAT(optimizer_ops(build_step(request, small_templates())), IsEmpty());
}

// Of FSDP the fp32 shards are the weights, so they stay; ZeRO 1 has no updated weights to gather.
TEST(NoOptimizer, ShardsThatAreTheWeightsStay) {
  StepRequest request = sharded();
  request.training.optimizer = OptimizerKind::kNone;
  const BuiltStep built = build_step(request, small_templates(2));
  EXPECT_EQ(storages_of(built.graph, "master weights").size(), 5u);
  EXPECT_TRUE(storages_of(built.graph, kOptimizerMoments).empty());
  EXPECT_EQ(count_ops(built.graph, "gradient reduce-scatter"), 5);
  request.parallel.zero = 1;
  request.parallel.overlap_weight_gather = true;
  const BuiltStep first = build_step(request, small_templates());
  EXPECT_EQ(count_ops(first.graph, "weight all-gather"), 0);
  EXPECT_TRUE(storages_of(first.graph, "master weights").empty());
  EXPECT_FALSE(run_step(first).deadlock.has_value());
}

}  // namespace
}  // namespace stepsim
