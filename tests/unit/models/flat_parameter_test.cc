// FSDP1's kernels beside its collectives, in bytes a parameter, and when it gathers ahead (BackwardPrefetch.BACKWARD_POST).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/models/small_step.h"

namespace stepsim {
namespace {

// Four layers of 100 parameters and an embedding of 10 on 4 ranks, all in flat parameters: shards of 25 and 3 (padded to 12).
StepRequest flat(std::int64_t micro_batches = 1) {
  StepRequest request = small_request(4);
  request.parallel.data = 4;
  request.parallel.zero = 3;
  request.training.global_batch = 4 * micro_batches;
  FrameworkPreset& framework = request.framework;
  framework.copies_out_of_gathers = false;
  framework.keeps_last_layer_gathered = false;
  framework.gradients_always_allocated = false;
  framework.concatenates_gradients = framework.predivides_gradients = framework.prefetches_after_backward = true;
  return request;
}

BuiltStep build(const StepRequest& request) { return build_step(request, small_templates(2)); }

// Read and written by the op of that kind in that layer, a parameter of `parameters`; 0: there is none.
double bytes_each(const BuiltStep& built, std::string_view kind, std::int32_t layer, double parameters) {
  double bytes = 0;
  for (const OpId op : ops_of(built.graph, kind)) {
    if (built.graph.op(op).layer == layer) bytes += static_cast<double>(memory_traffic(built.graph.work(op)).value);
  }
  return bytes / parameters;
}

std::string_view stream_of(const OpGraph& graph, std::string_view kind) {
  const StreamId stream = graph.op(ops_of(graph, kind).front()).stream;
  return graph.label(graph.streams()[static_cast<std::size_t>(stream.index)].kind);
}

// spec accuracy.md B.4: a unit and micro-batch 4 P + 14 P (cast 6, division 8) with an fp32 reduction; of the shard P / n: cast of the
// weights 6, division 8 and, with several micro-batches, addition 12.
TEST(FlatParameters, KernelsOfAnFp32Reduction) {
  const BuiltStep built = build(flat(2));
  constexpr double kTwo = 2;  // micro-batches
  EXPECT_EQ(bytes_each(built, "gradient concatenation", 2, 100 * kTwo), 4);
  EXPECT_EQ(bytes_each(built, "gradient copy-in", 2, 100 * kTwo), 6);
  EXPECT_EQ(bytes_each(built, "gradient division", 2, 100 * kTwo), 8);
  EXPECT_EQ(bytes_each(built, "gradient shard division", 2, 25 * kTwo), 8);
  EXPECT_EQ(bytes_each(built, "gradient shard add", 2, 25 * kTwo), 12);
  EXPECT_EQ(bytes_each(built, "gradient shard cast", 2, 25), 0);
  EXPECT_EQ(bytes_each(built, "weight shard cast", 2, 25 * 2 * kTwo), 6);    // gathered twice a micro-batch
  EXPECT_EQ(bytes_each(built, "gradient concatenation", -1, 10 * kTwo), 4);  // the root's: the embedding
  EXPECT_EQ(stream_of(built.graph, "gradient concatenation"), kComputeStream);
  EXPECT_EQ(stream_of(built.graph, "gradient division"), kReduceStream);
  EXPECT_EQ(run_step(built).timeline.size(), built.graph.ops().size());
  EXPECT_EQ(bytes_each(build(flat(1)), "gradient shard add", 2, 25), 0);  // one micro-batch has nothing to add to
}

// PURE mixed precision: 4 P for the concatenation, 4 P for the division, and the reduced 16-bit shard is cast to fp32, 6 P / n: gradients
// live in fp32 (keep_low_precision_grads False) and the optimizer needs no copy of them.
TEST(FlatParameters, KernelsOfA16BitReduction) {
  StepRequest request = flat(2);
  request.parallel.reduce_dtype = DType::kBf16;
  const BuiltStep built = build(request);
  constexpr double kTwo = 2;
  EXPECT_EQ(bytes_each(built, "gradient concatenation", 2, 100 * kTwo), 4);
  EXPECT_EQ(bytes_each(built, "gradient copy-in", 2, 100), 0);
  EXPECT_EQ(bytes_each(built, "gradient division", 2, 100 * kTwo), 4);
  EXPECT_EQ(bytes_each(built, "gradient shard division", 2, 25 * kTwo), 4);
  EXPECT_EQ(bytes_each(built, "gradient shard cast", 2, 25 * kTwo), 6);
  EXPECT_EQ(bytes_each(built, "gradient shard add", 2, 25 * kTwo), 12);
  EXPECT_EQ(std::get<Collective>(built.graph.work(ops_of(built.graph, "gradient reduce-scatter").front())).message, Bytes(200));
  for (const StorageId gradients : storages_of(built.graph, "main gradients")) {
    const Storage& storage = storage_of(built.graph, gradients);
    EXPECT_EQ(storage.size.value, storage.layer < 0 ? 3 * 4 : 25 * 4);
  }
  EXPECT_TRUE(storages_of(built.graph, "fp32 gradients").empty());
}

// default_hooks.py: a power of two next to the root, and the rest behind: 2 = 2 x 1 (nothing is left), 4 = 2 x 2.
TEST(FlatParameters, WhatIsDividedBefore) {
  StepRequest request = flat();
  request.parallel.data = 2;
  request.training.global_batch = 2;
  const BuiltStep built = build(request);
  EXPECT_EQ(count_ops(built.graph, "gradient division"), 5);
  EXPECT_EQ(count_ops(built.graph, "gradient shard division"), 0);
  EXPECT_EQ(count_ops(build(flat()).graph, "gradient shard division"), 5);
}

TEST(FlatParameters, ViewGradientsGoWithTheConcatenation) {
  const BuiltStep built = build(flat());
  const StepResult result = run_step(built);
  const std::vector<StorageId> views = storages_of(built.graph, "unsharded gradients"), whole = storages_of(built.graph, "flat gradients");
  ASSERT_EQ(views.size(), 5u);
  ASSERT_EQ(whole.size(), 5u);
  EXPECT_EQ(life_of(built.graph, result, views.front()), (Life{"backward L3 fc2 backward", "backward L3 gradient concatenation"}));
  EXPECT_EQ(life_of(built.graph, result, whole.front()), (Life{"backward L3 gradient concatenation", "backward L3 gradient copy-in"}));
  StepRequest plain = flat();
  plain.framework.concatenates_gradients = false;
  EXPECT_TRUE(storages_of(build(plain).graph, "flat gradients").empty());
}

// Launches of a pass: "G" for a gather, "R" for a reduce-scatter, a letter for each unit's first kernel.
std::string launches(const BuiltStep& built, Phase phase) {
  std::string order;
  for (const OpId id : built.graph.issue_order(IssuerId{0})) {
    const Op& op = built.graph.op(id);
    if (op.phase != built.phase_labels[static_cast<std::size_t>(phase)]) continue;
    const std::string_view kind = built.graph.label(op.kind);
    if (kind == "weight all-gather") order += 'G';
    if (kind == "gradient reduce-scatter") order += 'R';
    if (kind == "embedding backward") order += 'E';
    if (kind == "loss backward") order += 'H';
    if (kind == "fc2 backward") order += static_cast<char>('0' + op.layer);
  }
  return order;
}

// _runtime_utils.py _post_backward_hook: the next unit's gather behind this unit's kernels, before its reduction. The last layer's comes
// when its turn does; the root is gathered already.
TEST(BackwardPost, GathersBehindTheKernelsBeforeTheReduction) {
  EXPECT_EQ(launches(build(flat()), Phase::kBackward), "HG3GR2GR1GR0RER");
  StepRequest before = flat();
  before.framework.prefetches_after_backward = false;
  EXPECT_EQ(launches(build(before), Phase::kBackward), "GHG3RG2RG1R0RER");
  StepRequest none = flat();
  none.parallel.prefetch_backward = false;
  EXPECT_EQ(launches(build(none), Phase::kBackward), "HG3RG2RG1RG0RER");
}

OpRun run_of(const BuiltStep& built, const StepResult& result, std::string_view kind, std::int32_t layer) {
  for (const OpRun& run : result.timeline) {
    const Op& op = built.graph.op(run.op);
    if (built.graph.label(op.kind) == kind && op.layer == layer && op.phase == built.phase_labels[1]) return run;
  }
  ADD_FAILURE() << "no " << kind << " of layer " << layer;
  return {};
}

// Launches cost nothing here, so the host is as far ahead as the limiter lets it: the gather of layer 2 runs beside the kernels of layer 3,
// that of layer 1 waits for the end of layer 3 (limit 2), and reductions queue behind them on the same communicator.
TEST(BackwardPost, OverlapsAsFarAsTheLimiterLetsIt) {
  StepRequest request = flat();
  request.parallel.gather_limit = 2;
  const BuiltStep built = build(request);
  const StepResult result = run_step(built);
  ASSERT_FALSE(result.deadlock.has_value());
  EXPECT_LT(run_of(built, result, "weight all-gather", 2).start, run_of(built, result, "fc1 backward", 3).end);
  EXPECT_GE(run_of(built, result, "weight shard cast", 1).start, run_of(built, result, "fc1 backward", 3).end);
  EXPECT_LT(run_of(built, result, "weight all-gather", 1).start, run_of(built, result, "fc1 backward", 2).end);
  EXPECT_GE(run_of(built, result, "gradient reduce-scatter", 3).start, run_of(built, result, "gradient concatenation", 3).end);
  EXPECT_GE(run_of(built, result, "weight all-gather", 1).start, run_of(built, result, "weight all-gather", 2).end);
  // Off, the gather is launched when its unit's turn comes, but the host is ahead all the same.
  request.parallel.prefetch_backward = false;
  const BuiltStep late = build(request);
  EXPECT_GE(run_step(late).end, result.end);
}

// FSDP2's, spec accuracy.md B.4: weights copied out of each gather, 4 P; gradients copied into fp32, 6 P; a shard's cast before a gather,
// 6 P / n; none of FSDP1's.
TEST(CopiedGathers, KernelsByTheParameter) {
  StepRequest request = flat();
  request.framework.copies_out_of_gathers = true;
  request.framework.concatenates_gradients = request.framework.predivides_gradients = false;
  const BuiltStep built = build(request);
  EXPECT_EQ(bytes_each(built, "weight copy-out", 1, 100 * 2), 4);
  EXPECT_EQ(bytes_each(built, "gradient copy-in", 1, 100), 6);
  EXPECT_EQ(bytes_each(built, "weight shard cast", 1, 25 * 2), 6);
  for (const char* kind : {"gradient concatenation", "gradient division", "gradient shard division", "gradient shard cast"}) {
    EXPECT_EQ(count_ops(built.graph, kind), 0) << kind;
  }
  // HSDP: shards of 2, summed in fp32 over 2 replicas.
  request.parallel.shard = 2;
  const BuiltStep hybrid = build(request);
  const std::vector<OpId> sums = ops_of(hybrid.graph, "gradient all-reduce over replicas");
  ASSERT_THAT(sums, testing::SizeIs(5));
  EXPECT_EQ(std::get<Collective>(hybrid.graph.work(sums.front())),
            (Collective{.kind = CollectiveKind::kAllReduce, .message = Bytes(50 * 4), .ranks = 2, .stride = 2}));
}

}  // namespace
}  // namespace stepsim
