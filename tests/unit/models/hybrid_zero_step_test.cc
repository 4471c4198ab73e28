// A sharded optimizer whose gradients are all-reduced by flattened buckets and whose weights are broadcast (InternEvo); sums over
// instances.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/models/small_step.h"

namespace stepsim {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const Collective& collective_of(const OpGraph& graph, OpId op) { return std::get<Collective>(graph.work(op)); }

// One micro-batch a rank, buckets of two layers' 2 x 400 bytes; the embedding's 40 bytes are left.
StepRequest hybrid(std::int32_t data, std::int32_t instances) {
  StepRequest request = small_request(4);
  request.parallel.data = data;
  request.parallel.zero = 1;
  request.parallel.optimizer_instances = instances;
  request.parallel.overlap_gradient_reduce = true;
  request.parallel.overlap_weight_gather = false;
  request.parallel.bucket = Bytes(500);
  request.training.global_batch = data;
  return request;
}

std::vector<std::string> bucket_ops(const BuiltStep& built) {
  std::vector<std::string> kinds;
  for (std::int32_t op = 0; op < static_cast<std::int32_t>(built.graph.ops().size()); ++op) {
    const std::string kind(built.graph.label(built.graph.op(OpId{op}).kind));
    if (kind.starts_with("gradient bucket") || kind.starts_with("gradient all-reduce") || kind.starts_with("gradient reduce-scatter")) {
      kinds.push_back(kind);
    }
  }
  return kinds;
}

// A bug: beside backward, shards were reduced within an instance and never summed over the instances.
TEST(HybridZero, ShardsAreSummedOverInstancesBesideBackward) {
  const BuiltStep built = build_step(hybrid(8, 4), small_templates());
  EXPECT_THAT(bucket_ops(built),
              ElementsAre("gradient reduce-scatter", "gradient all-reduce over instances", "gradient reduce-scatter",
                          "gradient all-reduce over instances", "gradient reduce-scatter", "gradient all-reduce over instances"));
  // Two ranks share a copy: each sums its 400 of 800 bytes over 4 instances, two ranks apart.
  EXPECT_EQ(collective_of(built.graph, ops_of(built.graph, "gradient all-reduce over instances").front()),
            (Collective{.kind = CollectiveKind::kAllReduce, .message = Bytes(400), .ranks = 4, .stride = 2}));
  EXPECT_FALSE(run_step(built).deadlock.has_value());
}

TEST(HybridZero, WholeGradientsGoToAllReplicas) {
  StepRequest request = hybrid(8, 4);
  request.framework.reduces_to_all = true;
  const BuiltStep built = build_step(request, small_templates());
  EXPECT_THAT(bucket_ops(built), ElementsAre("gradient all-reduce", "gradient all-reduce", "gradient all-reduce"));
  const OpId first = ops_of(built.graph, "gradient all-reduce").front();
  EXPECT_EQ(collective_of(built.graph, first), (Collective{.kind = CollectiveKind::kAllReduce, .message = Bytes(800), .ranks = 8}));
}

// Flattened, sent off, and then the one before is copied back: what computes waits for it one bucket late, at the end for both.
TEST(HybridZero, BucketsAreFlattenedAndCopiedBack) {
  StepRequest request = hybrid(8, 1);
  request.framework.reduces_to_all = request.framework.flattens_buckets = true;
  const std::string flatten = "gradient bucket flatten", sum = "gradient all-reduce", back = "gradient bucket copy back";
  const BuiltStep built = build_step(request, small_templates());
  EXPECT_THAT(bucket_ops(built), ElementsAre(flatten, sum, flatten, sum, back, flatten, sum, back, back));
  const OpId copy = ops_of(built.graph, flatten).front();
  EXPECT_EQ(std::get<MemoryBound>(built.graph.work(copy)), (MemoryBound{.read = Bytes(800), .written = Bytes(800)}));
  const std::vector<OpRun> runs = runs_by_op(built.graph, run_step(built));
  const auto run = [&](OpId op) { return runs[static_cast<std::size_t>(op.index)]; };
  const std::vector<OpId> flattened = ops_of(built.graph, flatten), sums = ops_of(built.graph, sum), copied = ops_of(built.graph, back);
  for (std::size_t bucket = 0; bucket < sums.size(); ++bucket) {
    EXPECT_GE(run(sums[bucket]).start, run(flattened[bucket]).end);
    EXPECT_GE(run(copied[bucket]).start, run(sums[bucket]).end);
    if (bucket == 0) continue;
    EXPECT_GE(run(copied[bucket - 1]).start, run(flattened[bucket]).end);
  }
  request.parallel.overlap_gradient_reduce = false;  // one bucket, behind the passes
  EXPECT_THAT(bucket_ops(build_step(request, small_templates())), ElementsAre(flatten, sum, back));
}

// 4 x 100 + 10 parameters of 2 bytes, 820 bytes, in 5 tensors as the templates tell none apart: 4 ranks own 205 each; of 8 ranks 5 own a
// tensor, 164 bytes of each.
TEST(HybridZero, OwnersBroadcastTheirWeights) {
  for (const auto& [ranks, owners, message] : {std::tuple(4, 4u, 205), std::tuple(8, 5u, 164)}) {
    StepRequest request = hybrid(ranks, 1);
    request.framework.broadcasts_weights = true;
    const BuiltStep built = build_step(request, small_templates());
    EXPECT_THAT(ops_of(built.graph, "weight all-gather"), IsEmpty());
    const std::vector<OpId> broadcasts = ops_of(built.graph, "weight broadcast");
    ASSERT_EQ(broadcasts.size(), owners);
    EXPECT_EQ(collective_of(built.graph, broadcasts.front()),
              (Collective{.kind = CollectiveKind::kBroadcast, .message = Bytes(message), .ranks = ranks}));
    EXPECT_EQ(built.graph.issue_after(broadcasts.front()).size(), 1u);  // the host has waited for the update
    EXPECT_FALSE(run_step(built).deadlock.has_value());
  }
}

}  // namespace
}  // namespace stepsim
