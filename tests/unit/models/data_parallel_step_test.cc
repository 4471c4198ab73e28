// Gradients summed in buckets, sharded optimizer state, and the kernels of the optimizer (ZeRO 0 and 1).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/unit/models/small_step.h"

namespace stepsim {
namespace {

using testing::Each;
using testing::ElementsAre;

// `data` ranks with four micro-batches each unless said otherwise.
StepRequest replicated(std::int64_t layers, std::int32_t data, std::int32_t zero = 0, std::int64_t micro_batches = 4) {
  StepRequest request = small_request(layers);
  request.parallel.data = data;
  request.parallel.zero = zero;
  request.training.global_batch = data * micro_batches;
  return request;
}

const MemoryBound& kernel_of(const OpGraph& graph, OpId op) { return std::get<MemoryBound>(graph.work(op)); }
const Collective& collective_of(const OpGraph& graph, OpId op) { return std::get<Collective>(graph.work(op)); }

std::string kind_of(const OpGraph& graph, OpId op) { return std::string(graph.label(graph.op(op).kind)); }

OpId op_named(const OpGraph& graph, std::string_view name) {
  for (std::int32_t op = 0; op < static_cast<std::int32_t>(graph.ops().size()); ++op) {
    if (graph.op_name(OpId{op}) == name) return OpId{op};
  }
  ADD_FAILURE() << "no op " << name;
  return OpId{0};
}

std::int64_t bytes_of_role(const OpGraph& graph, Role role) {
  std::int64_t bytes = 0;
  for (const Storage& storage : graph.storages()) {
    bytes += graph.bucket(storage.role) == static_cast<std::int32_t>(role) ? storage.size.value : 0;
  }
  return bytes;
}

// Kinds of the compute stream's ops behind the last micro-batch.
std::vector<std::string> optimizer_kernels(const BuiltStep& built) {
  std::vector<std::string> kinds;
  for (const OpId op : compute_ops(built.graph, DeviceId{0})) {
    if (built.graph.op(op).phase == built.phase_labels[3]) kinds.push_back(kind_of(built.graph, op));
  }
  return kinds;
}

TEST(OptimizerStep, RunsTheKernelsOfThePrecision) {
  StepRequest request = small_request(1);
  EXPECT_THAT(optimizer_kernels(build_step(request, small_templates())),
              ElementsAre("gradient norm", "AdamW update", "AdamW update", "gradient clear"));
  request.training.precision = Precision::kFp16;
  request.framework.always_clips = true;
  request.framework.copies_updated_weights = true;
  request.training.optimizer = OptimizerKind::kSgd;
  EXPECT_THAT(optimizer_kernels(build_step(request, small_templates(2))),
              ElementsAre("fp32 gradients", "gradient unscale", "gradient norm", "gradient clip", "SGD update", "weight copy", "SGD update",
                          "weight copy", "gradient clear"));
  request.training.precision = Precision::kFp32;  // no master weights to copy from, no loss scale
  request.framework.gradients_always_allocated = false;
  // Templates of 2 bytes a weight are read as half as many fp32 parameters.
  EXPECT_THAT(optimizer_kernels(build_step(request, small_templates(2))),
              ElementsAre("gradient norm", "gradient clip", "SGD update", "SGD update"));
}

// 110 parameters. fp16: gradients of 2 bytes, copied to 4; unscaled and clipped in place; the norm reads them once.
TEST(OptimizerStep, MovesTheBytesOfFp16Gradients) {
  StepRequest request = small_request(1);
  request.training.precision = Precision::kFp16;
  request.framework.always_clips = true;
  const BuiltStep built = build_step(request, small_templates(2));
  const auto work = [&](std::string_view kind) { return kernel_of(built.graph, ops_of(built.graph, kind).front()); };
  EXPECT_EQ(work("fp32 gradients"), (MemoryBound{.read = Bytes(220), .written = Bytes(440)}));
  EXPECT_EQ(work("gradient unscale"), (MemoryBound{.read = Bytes(440), .written = Bytes(440)}));
  EXPECT_EQ(work("gradient norm"), (MemoryBound{.read = Bytes(440), .written = Bytes(0)}));
  EXPECT_EQ(work("gradient clip"), (MemoryBound{.read = Bytes(440), .written = Bytes(440)}));
  EXPECT_EQ(work("gradient clear"), (MemoryBound{.read = Bytes(0), .written = Bytes(220)}));
  // Gradient copy, master, m, v in; master, m, v, fp16 weight out.
  EXPECT_EQ(kernel_of(built.graph, op_named(built.graph, "optimizer L0 AdamW update")),
            (MemoryBound{.read = Bytes(100 * 16), .written = Bytes(100 * 14)}));
  // The fp32 copies live within the optimizer only.
  const StorageId copy = storages_of(built.graph, "fp32 gradients").back();
  EXPECT_EQ(life_of(built.graph, run_step(built), copy), (Life{"optimizer fp32 gradients", "optimizer gradient clear"}));
}

TEST(OptimizerStep, CopiesWeightsInAKernelOfTheirOwn) {
  StepRequest request = small_request(1);
  request.framework.copies_updated_weights = true;
  const BuiltStep built = build_step(request, small_templates());
  EXPECT_EQ(kernel_of(built.graph, op_named(built.graph, "optimizer L0 AdamW update")),
            (MemoryBound{.read = Bytes(100 * 16), .written = Bytes(100 * 12)}));
  EXPECT_EQ(kernel_of(built.graph, op_named(built.graph, "optimizer L0 weight copy")),
            (MemoryBound{.read = Bytes(100 * 4), .written = Bytes(100 * 2)}));
}

// Eight kernels of torch's lists: 12 operands read and 8 written of the parameters' fp32 copy, 80 B a parameter.
TEST(OptimizerStep, EagerAdamWMovesEachOperandByItself) {
  StepRequest request = small_request(1);
  request.framework.fused_optimizer = false;
  const BuiltStep built = build_step(request, small_templates());
  EXPECT_EQ(kernel_of(built.graph, op_named(built.graph, "optimizer L0 AdamW update")),
            (MemoryBound{.read = Bytes(100 * 48), .written = Bytes(100 * 32)}));
}

// Without a group the norm is this device's: no collective, and the host waits for the kernel.
TEST(OptimizerStep, TheHostWaitsForTheNormWhereItReadsIt) {
  for (const bool reads : {true, false}) {
    StepRequest request = small_request(1);
    request.framework.reads_gradient_norm = reads;
    const BuiltStep built = build_step(request, small_templates());
    EXPECT_EQ(count_ops(built.graph, "gradient norm all-reduce"), 0);
    const std::span<const OpId> after = built.graph.issue_after(ops_of(built.graph, "AdamW update").front());
    ASSERT_EQ(after.size(), reads ? 1u : 0u);
    for (const OpId each : after) EXPECT_EQ(kind_of(built.graph, each), "gradient norm");
    EXPECT_TRUE(built.graph.issue_after(ops_of(built.graph, "AdamW update").back()).empty());
  }
}

StepRequest gpt2(std::int32_t data, std::int32_t zero, Bytes bucket) {
  StepRequest request;
  request.model = load_model("gpt2-124m");
  request.framework = load_framework("megatron-core@2025");
  request.training.sequence = 256;
  request.training.global_batch = 2 * data;
  request.parallel.data = data;
  request.parallel.zero = zero;
  request.parallel.bucket = bucket;
  request.parallel.overlap_gradient_reduce = true;
  return request;
}

Bytes sum_of(std::span<const Tensor> tensors) {
  Bytes sum;
  for (const Tensor& tensor : tensors) sum += tensor.size;
  return sum;
}

// Views of the gradients that the reductions read, by storage and offset.
std::map<std::int32_t, std::map<std::int64_t, std::int64_t>> views_of(const OpGraph& graph, const std::vector<OpId>& reductions) {
  std::map<std::int32_t, std::map<std::int64_t, std::int64_t>> views;
  for (const OpId op : reductions) {
    for (const Tensor& tensor : graph.reads(op)) {
      EXPECT_TRUE(views[tensor.storage.index].emplace(tensor.offset.value, tensor.size.value).second) << "reduced twice";
    }
  }
  return views;
}

TEST(GradientBuckets, TogetherTheyHoldEveryGradientOnce) {
  for (const std::int64_t bucket : {std::int64_t{0}, std::int64_t{1}, std::int64_t{10'000'000}, std::int64_t{40'000'000}}) {
    SCOPED_TRACE(bucket);
    const BuiltStep built = build_step(gpt2(2, 0, Bytes(bucket)));
    const OpGraph& graph = built.graph;
    const std::vector<OpId> reductions = ops_of(graph, "gradient all-reduce");
    const auto views = views_of(graph, reductions);
    for (const StorageId gradients : storages_of(graph, "main gradients")) {
      std::int64_t end = 0;
      ASSERT_TRUE(views.contains(gradients.index));
      for (const auto& [offset, size] : views.at(gradients.index)) {
        EXPECT_EQ(offset, end);
        end += size;
      }
      EXPECT_EQ(end, storage_of(graph, gradients).size.value);
    }
    EXPECT_EQ(views.size(), 14u);  // the embedding, twelve layers, the final norm (the head is tied)
    std::int64_t small = 0;
    for (const OpId op : reductions) {
      EXPECT_EQ(collective_of(graph, op).message, sum_of(graph.reads(op)));
      EXPECT_EQ(collective_of(graph, op).ranks, 2);
      small += collective_of(graph, op).message.value < bucket ? 1 : 0;
    }
    EXPECT_LE(small, bucket == 0 ? 0 : 1);  // the last one, of what is left
    EXPECT_EQ(reductions.size() == 1, bucket == 0);
  }
}

// A bug: the head's gradient, which chunked loss makes in the forward pass, was in no bucket.
TEST(GradientBuckets, HoldWhatForwardMakes) {
  for (const std::int64_t bucket : {std::int64_t{0}, std::int64_t{40'000'000}}) {
    StepRequest request = gpt2(2, 0, Bytes(bucket));
    request.model.tied_head = false;
    request.training.loss = LossKind::kChunked;
    request.training.loss_chunks = 4;
    const BuiltStep built = build_step(request);
    EXPECT_TRUE(find_cycle(built.graph).empty());
    EXPECT_FALSE(run_step(built).deadlock.has_value());
    std::int64_t reduced = 0, made = 0;
    for (const OpId op : ops_of(built.graph, "gradient all-reduce")) reduced += collective_of(built.graph, op).message.value;
    for (const StorageId each : storages_of(built.graph, "main gradients")) made += storage_of(built.graph, each).size.value;
    EXPECT_EQ(reduced, made);
    EXPECT_EQ(made, built.parameters_per_device * 4);
  }
}

// A layer of GPT-2 has 28.35 MB of fp32 gradients. Closed at 40 MB, several backward ops apart.
TEST(GradientBuckets, AreReducedBesideTheLastBackwardPass) {
  const BuiltStep built = build_step(gpt2(2, 0, Bytes(40'000'000)));
  const OpGraph& graph = built.graph;
  const std::vector<OpRun> runs = runs_by_op(graph, run_step(built));
  const auto run = [&](OpId op) { return runs[static_cast<std::size_t>(op.index)]; };
  const std::vector<OpId> reductions = ops_of(graph, "gradient all-reduce");
  // (124,439,808 + 47 x 768 parameters) x 4 bytes, of which the table of 154.5 MB is one gradient: at least two buckets below 40 MB's
  // worth.
  ASSERT_GE(reductions.size(), 6u);
  TimePoint backward_end{};
  for (const OpId op : compute_ops(graph, DeviceId{0})) {
    if (graph.op(op).phase == built.phase_labels[1]) backward_end = std::max(backward_end, run(op).end);
  }
  for (const OpId op : reductions) {
    EXPECT_EQ(graph.op(op).micro_batch, 1);  // of 0 and 1
    EXPECT_EQ(graph.label(graph.streams()[static_cast<std::size_t>(graph.op(op).stream.index)].kind), kReduceStream);
    EXPECT_EQ(graph.queues(op, 0).size(), 1u);
    // Whoever added to one of its gradients is done.
    for (const OpId writer : compute_ops(graph, DeviceId{0})) {
      if (graph.op(writer).phase != built.phase_labels[1]) continue;
      for (const Tensor& written : graph.writes(writer)) {
        for (const Tensor& reduced : graph.reads(op)) {
          if (written.storage != reduced.storage || written.offset != reduced.offset) continue;
          EXPECT_LE(run(writer).end, run(op).start) << graph.op_name(writer);
        }
      }
    }
  }
  EXPECT_LT(run(reductions.front()).start, backward_end);
  EXPECT_LT(run(reductions[reductions.size() - 2]).start, backward_end);
  EXPECT_GE(run(ops_of(graph, "gradient norm").front()).start, run(reductions.back()).end);
}

TEST(GradientBuckets, WithoutOverlapOneSumFollowsTheBackwardPass) {
  StepRequest request = gpt2(4, 0, Bytes(40'000'000));
  request.parallel.overlap_gradient_reduce = false;
  const BuiltStep built = build_step(request);
  const std::vector<OpId> reductions = ops_of(built.graph, "gradient all-reduce");
  ASSERT_EQ(reductions.size(), 1u);
  const std::int64_t parameters = 124'439'808 + 47 * 768;  // the padded table
  EXPECT_EQ(collective_of(built.graph, reductions[0]), (Collective{CollectiveKind::kAllReduce, Bytes(4 * parameters), 4, 1}));
  const std::vector<OpRun> runs = runs_by_op(built.graph, run_step(built));
  const OpRun& sum = runs[static_cast<std::size_t>(reductions[0].index)];
  for (const OpId op : compute_ops(built.graph, DeviceId{0})) {
    const OpRun& run = runs[static_cast<std::size_t>(op.index)];
    EXPECT_TRUE(built.graph.op(op).phase == built.phase_labels[3] ? run.start >= sum.end : run.end <= sum.start);
  }
}

// Small templates: embedding 10 parameters, layers of 100 with one gradient each of 400 bytes, last written by fc1 backward.
TEST(GradientBuckets, AreClosedByTheOpThatCompletesThem) {
  StepRequest request = replicated(4, 2, 0, 1);
  request.parallel.overlap_gradient_reduce = true;
  request.parallel.bucket = Bytes(500);  // two layers each; the embedding is left
  const BuiltStep built = build_step(request, small_templates());
  const std::vector<OpId> reductions = ops_of(built.graph, "gradient all-reduce");
  ASSERT_EQ(reductions.size(), 3u);
  EXPECT_THAT(waits_of(built.graph, reductions[0]), ElementsAre("backward L2 fc1 backward"));
  EXPECT_THAT(waits_of(built.graph, reductions[1]), ElementsAre("backward L0 fc1 backward"));
  EXPECT_THAT(waits_of(built.graph, reductions[2]), ElementsAre("backward embedding backward"));
  EXPECT_EQ(collective_of(built.graph, reductions[0]).message.value, 800);
  EXPECT_EQ(collective_of(built.graph, reductions[2]).message.value, 40);
}

TEST(GradientBuckets, NeighboursAreTensorRanksApart) {
  StepRequest request = gpt2(4, 0, Bytes(0));
  request.parallel.tensor = 2;
  const BuiltStep built = build_step(request);
  EXPECT_EQ(collective_of(built.graph, ops_of(built.graph, "gradient all-reduce").front()).stride, 2);
}

// Every chunk of every stage reduces its own gradients once, beside its last micro-batch.
TEST(GradientBuckets, BelongToChunksOfAPipeline) {
  for (const auto& [schedule, chunks] : {std::pair(PipelineKind::kGPipe, 1), std::pair(PipelineKind::k1F1B, 1),
                                         std::pair(PipelineKind::kInterleaved, 2), std::pair(PipelineKind::kZbH1, 1)}) {
    SCOPED_TRACE(pipeline_name(schedule));
    for (const bool overlaps : {true, false}) {
      for (const std::int32_t zero : {0, 1}) {
        StepRequest request = staged_request(8, 2, 4, schedule, chunks);
        request.parallel.data = 2;
        request.parallel.zero = zero;
        request.parallel.overlap_gradient_reduce = overlaps;
        request.parallel.overlap_weight_gather = overlaps;
        request.training.global_batch = 8;
        request.parallel.bucket = Bytes(400);
        const BuiltStep built = build_step(request, split_templates());
        EXPECT_TRUE(find_cycle(built.graph).empty());
        EXPECT_FALSE(run_step(built).deadlock.has_value());
        const std::vector<OpId> reductions = ops_of(built.graph, zero == 0 ? "gradient all-reduce" : "gradient reduce-scatter");
        // Overlapped a bucket for each of 8 layers and the embedding, else one for each chunk.
        EXPECT_EQ(reductions.size(), overlaps ? 9u : 2u * static_cast<std::size_t>(chunks));
        const auto views = views_of(built.graph, reductions);
        EXPECT_EQ(views.size(), 9u);
        if (overlaps) {
          for (const OpId op : reductions) EXPECT_EQ(built.graph.op(op).micro_batch, 3);
        }
        EXPECT_EQ(count_ops(built.graph, "weight all-gather"), zero == 0 ? 0 : 9);
      }
    }
  }
}

// Under a zero-bubble schedule gradients are complete when their weight pass has run, not when the step's passes are over: a layer's
// reduction waits for its own weight gradient.
TEST(GradientBuckets, AreReducedBesideTheWeightPassOfAZeroBubbleSchedule) {
  StepRequest request = staged_request(8, 2, 4, PipelineKind::kZbH1);
  request.parallel.data = 2;
  request.training.global_batch = 8;
  request.parallel.overlap_gradient_reduce = true;
  request.parallel.bucket = Bytes(400);
  const BuiltStep built = build_step(request, split_templates());
  for (const OpId op : ops_of(built.graph, "gradient all-reduce", DeviceId{1})) {
    const std::int32_t layer = storage_of(built.graph, built.graph.reads(op).front().storage).layer;
    EXPECT_THAT(waits_of(built.graph, op), ElementsAre("backward L" + std::to_string(layer) + " fc1 weight gradient mb3"));
  }
}

// Of a real layer some gradients are made in the input-gradient pass (they are joint with it): their buckets are complete by the time of
// the weight pass and must not keep the others waiting until its end.
TEST(GradientBuckets, OverlapTheWeightPassOfRealLayers) {
  for (const std::int64_t bucket : {std::int64_t{40'000'000}, std::int64_t{1}}) {
    StepRequest request = gpt2(2, 0, Bytes(bucket));
    request.parallel.pipeline = 2;
    request.parallel.schedule = PipelineKind::kZbH1;
    request.training.global_batch = 8;
    const BuiltStep built = build_step(request);
    const std::vector<OpRun> runs = runs_by_op(built.graph, run_step(built));
    for (const std::int32_t device : {0, 1}) {
      TimePoint backward_end{};
      for (const OpId op : compute_ops(built.graph, DeviceId{device})) {
        if (built.graph.op(op).phase != built.phase_labels[1]) continue;
        backward_end = std::max(backward_end, runs[static_cast<std::size_t>(op.index)].end);
      }
      const std::vector<OpId> reductions = ops_of(built.graph, "gradient all-reduce", DeviceId{device});
      const auto early = std::count_if(reductions.begin(), reductions.end(),
                                       [&](OpId op) { return runs[static_cast<std::size_t>(op.index)].start < backward_end; });
      EXPECT_GT(2 * early, static_cast<std::int64_t>(reductions.size())) << "bucket " << bucket << " stage " << device;
    }
  }
}

// 4 ranks: ceil(10 / 4) = 3 parameters of the embedding, 25 of each layer.
TEST(ShardedOptimizer, EachRankUpdatesItsShare) {
  const BuiltStep built = build_step(replicated(2, 4, 1), small_templates());
  const OpGraph& graph = built.graph;
  EXPECT_EQ(bytes_of_role(graph, Role::kWeights), 210 * 2);
  EXPECT_EQ(bytes_of_role(graph, Role::kGradients), 210 * 4);
  EXPECT_EQ(bytes_of_role(graph, Role::kOptimizerState), (3 + 2 * 25) * 12);
  EXPECT_EQ(built.parameters_per_device, 210);
  EXPECT_EQ(kernel_of(graph, op_named(graph, "optimizer L0 AdamW update")),
            (MemoryBound{.read = Bytes(25 * 16), .written = Bytes(25 * 14)}));
  EXPECT_EQ(kernel_of(graph, ops_of(graph, "AdamW update").front()), (MemoryBound{.read = Bytes(3 * 16), .written = Bytes(3 * 14)}));
  EXPECT_EQ(kernel_of(graph, ops_of(graph, "gradient norm").front()).read.value, 53 * 4);
  EXPECT_EQ(kernel_of(graph, ops_of(graph, "gradient clear").front()).written.value, 210 * 4);  // the buffer is whole
  EXPECT_EQ(collective_of(graph, ops_of(graph, "gradient norm all-reduce").front()).ranks, 4);
  const Collective& sum = collective_of(graph, ops_of(graph, "gradient reduce-scatter").front());
  EXPECT_EQ(sum, (Collective{CollectiveKind::kReduceScatter, Bytes(210 * 4), 4, 1}));
  EXPECT_EQ(count_ops(graph, "gradient all-reduce"), 0);
}

TEST(ShardedOptimizer, WeightsAreGatheredBehindTheUpdate) {
  StepRequest request = replicated(2, 4, 1);
  request.parallel.overlap_weight_gather = false;
  const BuiltStep built = build_step(request, small_templates());
  const OpGraph& graph = built.graph;
  const std::vector<OpRun> runs = runs_by_op(graph, run_step(built));
  const std::vector<OpId> gathers = ops_of(graph, "weight all-gather");
  ASSERT_EQ(gathers.size(), 3u);
  std::vector<std::int64_t> messages;
  for (const OpId op : gathers) {
    messages.push_back(collective_of(graph, op).message.value);
    EXPECT_EQ(graph.op(op).phase, built.phase_labels[3]);
    EXPECT_GE(runs[static_cast<std::size_t>(op.index)].start,
              runs[static_cast<std::size_t>(ops_of(graph, "AdamW update").back().index)].end);
  }
  EXPECT_THAT(messages, ElementsAre(20, 200, 200));
}

// The weights that the step before updated: units wait for theirs in the first micro-batch only, gathers run beside the units before.
TEST(ShardedOptimizer, WeightsMayBeGatheredBesideTheFirstForwardPass) {
  StepRequest request = replicated(2, 4, 1, 2);
  request.parallel.overlap_weight_gather = true;
  const BuiltStep built = build_step(request, small_templates());
  const OpGraph& graph = built.graph;
  const std::vector<OpId> gathers = ops_of(graph, "weight all-gather");
  ASSERT_EQ(gathers.size(), 3u);
  std::vector<std::string> phases;
  for (const OpId op : gathers) phases.emplace_back(graph.label(graph.op(op).phase));
  EXPECT_THAT(phases, Each("forward"));
  const auto gathers_before = [&](std::string_view name) {
    std::vector<OpId> found;
    for (const Edge& edge : graph.predecessors(op_named(graph, name))) found.push_back(edge.from);
    return found;
  };
  EXPECT_THAT(gathers_before("forward embedding mb0"), ElementsAre(gathers[0]));
  EXPECT_THAT(gathers_before("forward L0 fc1 mb0"), ElementsAre(gathers[1]));
  EXPECT_THAT(gathers_before("forward L1 fc1 mb0"), ElementsAre(gathers[2]));
  EXPECT_THAT(gathers_before("forward L0 fc1 mb1"), ElementsAre());
  EXPECT_THAT(gathers_before("forward L1 act mb0"), ElementsAre());
  const std::vector<OpRun> runs = runs_by_op(graph, run_step(built));
  const OpId first = op_named(graph, "forward embedding mb0");
  EXPECT_EQ(runs[static_cast<std::size_t>(gathers[1].index)].start, runs[static_cast<std::size_t>(first.index)].start);  // beside it
}

TEST(ShardedOptimizer, OneRankShardsNothing) {
  StepRequest request = replicated(2, 1, 1);
  const BuiltStep built = build_step(request, small_templates());
  EXPECT_EQ(bytes_of_role(built.graph, Role::kOptimizerState), 210 * 12);
  for (const char* kind : {"weight all-gather", "gradient reduce-scatter", "gradient all-reduce", "gradient norm all-reduce"}) {
    EXPECT_EQ(count_ops(built.graph, kind), 0) << kind;
  }
}

}  // namespace
}  // namespace stepsim
