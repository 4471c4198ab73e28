// ZeRO 2 and 3 (FSDP): what is resident, when weights are gathered and gradients reduced, and how far the host runs ahead.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/models/small_step.h"

namespace stepsim {
namespace {

using testing::ElementsAre;

// Four layers on 4 ranks, 16-bit gradients: 3 of 10 parameters (padded to 12) of the embedding a rank, 25 of each layer; the head has none.
StepRequest sharded(std::int64_t micro_batches = 1, std::int32_t zero = 3) {
  StepRequest request = small_request(4);
  request.parallel.data = 4;
  request.parallel.zero = zero;
  request.training.global_batch = 4 * micro_batches;
  request.framework.gather_limit = 0;
  return request;
}

constexpr std::int64_t kShare = 3 + 4 * 25;

BuiltStep build(const StepRequest& request) { return build_step(request, small_templates(2)); }

const Collective& collective_of(const OpGraph& graph, OpId op) { return std::get<Collective>(graph.work(op)); }

std::int64_t resident_bytes(const OpGraph& graph, Role role) {
  std::int64_t bytes = 0;
  for (const Storage& storage : graph.storages()) {
    bytes += storage.live_at_end && graph.bucket(storage.role) == static_cast<std::int32_t>(role) ? storage.size.value : 0;
  }
  return bytes;
}

void expect_sound(const BuiltStep& built) {
  EXPECT_TRUE(find_cycle(built.graph).empty());
  const StepResult result = run_step(built);
  ASSERT_FALSE(result.deadlock.has_value());
  EXPECT_EQ(result.timeline.size(), built.graph.ops().size());
  std::int64_t at_end = 0, residents = 0;
  for (const MemoryEvent& event : result.memory) at_end += event.bytes.value;
  for (const Storage& storage : built.graph.storages()) residents += storage.live_at_end ? storage.size.value : 0;
  EXPECT_EQ(at_end, residents);
}

// Most bytes live at one time, and most storages of that name.
struct Most {
  std::int64_t bytes = 0, named = 0;
};
Most most_live(const BuiltStep& built, std::string_view name) {
  Most now, most;
  for (const MemoryEvent& event : run_step(built).memory) {
    now.bytes += event.bytes.value;
    if (built.graph.label(storage_of(built.graph, event.storage).name) == name) now.named += event.bytes.value > 0 ? 1 : -1;
    most = {std::max(most.bytes, now.bytes), std::max(most.named, now.named)};
  }
  return most;
}

// A head with 30 parameters of its own: 8 a rank, padded to 32. `chunked`: forward makes their gradient.
StepTemplates templates_with_head(bool chunked = false) {
  StepTemplates templates = small_templates(2);
  LayerTemplate& head = templates.head;
  head.slots.push_back(small_slot("head weight", SlotKind::kWeight, 60));                   // 4
  head.slots.push_back(small_slot("head weight gradient", SlotKind::kWeightGradient, 60));  // 5
  head.forward.front().reads.push_back(4);
  (chunked ? head.forward : head.backward).front().updates.push_back(5);
  head.parameters = 30;
  return templates;
}

// Launches of one pass: "G" for a gather, "C" for a copy-out, "R" for a reduce-scatter, a letter for the first kernel of each unit's run:
// E, 0 to 3, H.
std::string launches(const BuiltStep& built, Phase phase, std::int32_t micro_batch = 0) {
  std::string order;
  for (const OpId id : built.graph.issue_order(IssuerId{0})) {
    const Op& op = built.graph.op(id);
    if (op.phase != built.phase_labels[static_cast<std::size_t>(phase)] || op.micro_batch != micro_batch) continue;
    const std::string_view kind = built.graph.label(op.kind);
    if (kind == "weight all-gather") order += 'G';
    if (kind == "weight copy-out") order += 'C';
    if (kind == "gradient reduce-scatter") order += 'R';
    if (kind == "embedding" || kind == "embedding backward") order += 'E';
    if (kind == "loss" || kind == "loss backward") order += 'H';
    if (kind == "fc1" || kind == "fc2 backward") order += static_cast<char>('0' + op.layer);
  }
  return order;
}

TEST(ShardedWeights, RanksHoldTheirShare) {
  const BuiltStep built = build(sharded());
  // The fp32 shards are the weights; gradients are reduced to fp32; m and v.
  EXPECT_EQ(resident_bytes(built.graph, Role::kWeights), kShare * 4);
  EXPECT_EQ(resident_bytes(built.graph, Role::kGradients), kShare * 4);
  EXPECT_EQ(resident_bytes(built.graph, Role::kOptimizerState), kShare * 8);
  EXPECT_EQ(built.parameters_per_device, 410);  // of all ranks
  expect_sound(built);
}

// Templates of 2 bytes a weight are read as half as many fp32 parameters: 5 of the embedding and 50 of a layer, 2 and 13 a rank.
TEST(ShardedWeights, OfFp32AreTheWeightsThemselves) {
  StepRequest request = sharded();
  request.training.precision = Precision::kFp32;
  const BuiltStep built = build_step(request, small_templates(2));
  EXPECT_EQ(resident_bytes(built.graph, Role::kWeights), (2 + 4 * 13) * 4);
  EXPECT_EQ(storages_of(built.graph, "weights").size(), 5u);
  EXPECT_TRUE(storages_of(built.graph, "master weights").empty());
  expect_sound(built);
}

// Forward gathers the embedding and four layers; backward the layers again but the last, which stays gathered as the embedding does.
TEST(ShardedWeights, UnitsAreGatheredForEachPass) {
  for (const std::int64_t micro_batches : {1, 3}) {
    StepRequest request = sharded(micro_batches);
    const BuiltStep built = build(request);
    EXPECT_EQ(count_ops(built.graph, "weight all-gather", built.phase_labels[0]), 5 * micro_batches);
    EXPECT_EQ(count_ops(built.graph, "weight all-gather", built.phase_labels[1]), 3 * micro_batches);
    EXPECT_EQ(count_ops(built.graph, "weight all-gather", built.phase_labels[3]), 0);
    for (const char* kind : {"weight copy-out", "weight shard cast"}) EXPECT_EQ(count_ops(built.graph, kind), 8 * micro_batches) << kind;
    expect_sound(built);
    request.parallel.reshard_after_forward = false;
    const BuiltStep kept = build(request);
    EXPECT_EQ(count_ops(kept.graph, "weight all-gather"), 5 * micro_batches);
    expect_sound(kept);
  }
  const BuiltStep built = build(sharded());
  std::vector<std::int64_t> messages;
  for (const OpId op : ops_of(built.graph, "weight all-gather")) {
    messages.push_back(collective_of(built.graph, op).message.value);
    EXPECT_EQ(collective_of(built.graph, op).ranks, 4);
  }
  EXPECT_THAT(messages, ElementsAre(12 * 2, 200, 200, 200, 200, 200, 200, 200));  // padded to 12 parameters
}

TEST(ShardedWeights, AreThereWhileTheirUnitRuns) {
  const BuiltStep built = build(sharded());
  const StepResult result = run_step(built);
  const std::vector<StorageId> weights = storages_of(built.graph, "unsharded weights");
  ASSERT_EQ(weights.size(), 8u);
  const auto life = [&](std::size_t unit) { return life_of(built.graph, result, weights[unit]); };
  EXPECT_EQ(life(1), (Life{"forward L0 weight copy-out", "forward L0 fc2"}));
  EXPECT_EQ(life(3), (Life{"forward L2 weight copy-out", "forward L2 fc2"}));
  EXPECT_EQ(life(4), (Life{"forward L3 weight copy-out", "backward L3 fc1 backward"}));
  EXPECT_EQ(life(5), (Life{"backward L2 weight copy-out", "backward L2 fc1 backward"}));
  EXPECT_EQ(life(7), (Life{"backward L0 weight copy-out", "backward L0 fc1 backward"}));
  const Life buffer = life_of(built.graph, result, storages_of(built.graph, "gathered weights")[1]);
  // FSDP2 lets go of it when it is about to copy out of the next one, which has been gathered then.
  EXPECT_EQ(buffer, (Life{"forward L0 weight shard cast", "forward freed"}));
  // The kernels of a unit wait for the copy-out on their own stream, which waits for the gather.
  const std::vector<OpId> copies = ops_of(built.graph, "weight copy-out");
  EXPECT_THAT(waits_of(built.graph, copies[1]), ElementsAre("forward L0 weight all-gather"));
}

// The root's weights are not freed after forward, though its backward reads none: _runtime_utils.py _post_forward_reshard (FSDP1),
// _fsdp_state.py (FSDP2).
TEST(ShardedWeights, OfTheRootAreThereUntilItsBackwardPass) {
  for (const bool reshards : {true, false}) {
    StepRequest request = sharded();
    request.parallel.reshard_after_forward = reshards;
    const BuiltStep built = build(request);
    const StorageId table = storages_of(built.graph, "unsharded weights").front();
    EXPECT_EQ(life_of(built.graph, run_step(built), table), (Life{"forward weight copy-out", "backward embedding backward"}));
  }
}

// The order in which the host launches. Forward without prefetch: each unit's gather before its own kernels; backward with it (the
// default): the next unit's gather before a unit's kernels. The last layer and the embedding are there already.
TEST(ShardedWeights, ArePrefetchedInTheOrderOfLaunches) {
  StepRequest request = sharded();
  EXPECT_EQ(launches(build(request), Phase::kForward), "GCEGC0GC1GC2GC3H");
  EXPECT_EQ(launches(build(request), Phase::kBackward), "HG3RCG2RCG1RC0RER");
  request.parallel.prefetch_forward = true;
  EXPECT_EQ(launches(build(request), Phase::kForward), "GCGECG0CG1CG2C3H");
  request.parallel.prefetch_backward = false;
  EXPECT_EQ(launches(build(request), Phase::kBackward), "H3RGC2RGC1RGC0RER");
  request.framework.copies_out_of_gathers = false;
  EXPECT_EQ(launches(build(request), Phase::kForward), "GGEG0G1G23H");
  request.parallel.prefetch_forward = false;
  request.parallel.reshard_after_forward = false;
  EXPECT_EQ(launches(build(request), Phase::kBackward), "H3R2R1R0RER");
  request.framework.copies_out_of_gathers = true;
  EXPECT_EQ(launches(build(request), Phase::kBackward), "H3R2R1R0RER");
  request.parallel.zero = 2;
  EXPECT_EQ(launches(build(request), Phase::kForward), "E0123H");
}

// The host waits for the end of the unit that ran `limit` units before, in backward and in the micro-batches that follow too.
TEST(ShardedWeights, TheHostWaitsForTheUnitThatRanBeforeThem) {
  StepRequest request = sharded(2);
  request.parallel.gather_limit = 2;
  request.parallel.prefetch_backward = false;
  const BuiltStep built = build(request);
  std::vector<std::string> waits;
  for (const OpId cast : ops_of(built.graph, "weight shard cast")) {
    const std::span<const OpId> after = built.graph.issue_after(cast);
    ASSERT_LE(after.size(), 1u);
    waits.push_back(after.empty() ? "-" : built.graph.op_name(after.front()));
  }
  // Forward E 0 1 2 3 H, backward H 3 2 1 0 E; gathered in backward: 2, 1, 0.
  EXPECT_THAT(waits,
              ElementsAre("-", "-", "forward embedding mb0", "forward L0 fc2 mb0", "forward L1 fc2 mb0", "backward loss backward mb0",
                          "backward L3 fc1 backward mb0", "backward L2 fc1 backward mb0", "backward L0 fc1 backward mb0",
                          "backward embedding backward mb0", "forward embedding mb1", "forward L0 fc2 mb1", "forward L1 fc2 mb1",
                          "backward loss backward mb1", "backward L3 fc1 backward mb1", "backward L2 fc1 backward mb1"));
  request.parallel.gather_limit = 0;
  const BuiltStep unlimited = build(request);
  for (const OpId cast : ops_of(unlimited.graph, "weight shard cast")) EXPECT_TRUE(unlimited.graph.issue_after(cast).empty());
}

// pytorch #98354: without the limiter the host gathers everything ahead, and what is freed by event is not free while the host runs ahead
// of the device. 24 layers of 200 bytes: all gathers of both passes (the embedding's 24, 24 layers, 24 again) against three layers and the
// embedding. The gathers (2 us) hide behind the kernels (3 us) in either case.
TEST(ShardedWeights, TheLimiterKeepsDeferredFreesSmall) {
  StepRequest request = sharded();
  request.model.layers = 24;
  request.framework = load_framework("pytorch-fsdp@2023");
  const auto measured = [&](std::int32_t limit) {
    request.parallel.gather_limit = limit;
    const BuiltStep built = build(request);
    expect_sound(built);
    const StepResult result = run_step(built);
    const std::vector<StorageId> gathered = storages_of(built.graph, "unsharded weights");
    EXPECT_EQ(gathered.size(), 49u);  // the embedding, 24 layers forward, 24 in backward
    EXPECT_TRUE(storage_of(built.graph, gathered.front()).deferred_free);
    const LabelId role = storage_of(built.graph, gathered.front()).role;
    const Bytes peak = peak_of_roles(built.graph, result, DeviceId{0}, std::span(&role, 1));
    return std::pair(peak.value - resident_bytes(built.graph, Role::kWeights), result.end.count());
  };
  const auto [limited, limited_time] = measured(2);
  const auto [unlimited, unlimited_time] = measured(0);
  EXPECT_EQ(unlimited, 24 + 24 * 200 + 24 * 200);
  EXPECT_EQ(limited, 24 + 3 * 200);  // a prefetched gather is launched one run earlier: three in backward
  EXPECT_GE(limited_time, unlimited_time);
  EXPECT_LE(static_cast<double>(limited_time), 1.05 * static_cast<double>(unlimited_time));
}

TEST(ShardedGradients, AreBornAndFreedUnitByUnit) {
  for (const std::int32_t zero : {2, 3}) {
    const BuiltStep built = build(sharded(1, zero));
    const OpGraph& graph = built.graph;
    const StepResult result = run_step(built);
    const std::vector<StorageId> gradients = storages_of(graph, "unsharded gradients");
    ASSERT_EQ(gradients.size(), 5u);  // layers 3 to 0, the embedding
    EXPECT_EQ(storage_of(graph, gradients[0]).size.value, 200);
    EXPECT_EQ(storage_of(graph, gradients[4]).size.value, 20);
    EXPECT_EQ(life_of(graph, result, gradients[0]), (Life{"backward L3 fc2 backward", "backward L3 gradient copy-in"}));
    EXPECT_EQ(life_of(graph, result, gradients[4]), (Life{"backward embedding backward", "backward gradient copy-in"}));
    // Reduced in fp32, padded to 4 ranks. An input lives until the next one is about to be made.
    const std::vector<OpId> reductions = ops_of(graph, "gradient reduce-scatter");
    ASSERT_EQ(reductions.size(), 5u);
    EXPECT_EQ(collective_of(graph, reductions[0]), (Collective{CollectiveKind::kReduceScatter, Bytes(400), 4, 1}));
    EXPECT_EQ(collective_of(graph, reductions[4]).message.value, 48);
    EXPECT_THAT(waits_of(graph, reductions[0]), ElementsAre("backward L3 gradient copy-in"));
    const std::vector<StorageId> inputs = storages_of(graph, "reduce-scatter input");
    const std::vector<OpId> copies = ops_of(graph, "gradient copy-in");
    ASSERT_EQ(copies.size(), 5u);
    EXPECT_THAT(waits_of(graph, copies[1]), ElementsAre("backward L3 gradient reduce-scatter"));
    EXPECT_EQ(life_of(graph, result, inputs[0]), (Life{"backward L3 gradient copy-in", "backward L2 fc1 backward"}));
    EXPECT_EQ(life_of(graph, result, inputs[3]), (Life{"backward L0 gradient copy-in", "backward embedding backward"}));
    EXPECT_EQ(life_of(graph, result, inputs[4]), (Life{"backward gradient copy-in", "backward gradients reduced"}));
    EXPECT_EQ(count_ops(graph, "gradient shard add"), 0);  // one micro-batch
    // The optimizer waits for the last.
    const std::vector<OpRun> runs = runs_by_op(graph, result);
    EXPECT_GE(runs[static_cast<std::size_t>(ops_of(graph, "gradient norm").front().index)].start,
              runs[static_cast<std::size_t>(reductions[4].index)].end);
  }
}

// A bug: the buffer before was held by the next copy-in, which had claimed its own by then.
// Bytes at the activation's backward of layer 2, the first with a buffer before it: shards of weights, gradients and moments 16 x 103; the
// embedding's weights 12 x 2; token ids 3; the buffer of layer 3 400; layer 2's weights 200 and gradients 200; the gathered weights of
// layer 1 200; saved of layers 0 and 1 2 x 64; of layer 2 its input 8, fc1's output 40, their gradients 16 + 40. At the copy-in of layer 2:
// not the weights, the activations and the buffer before, but its own 400 and the input gradient 8.
TEST(ShardedGradients, OneReduceScatterInputLivesAtATime) {
  const std::int64_t usual = 16 * kShare + 24 + 3;
  const std::int64_t backward = usual + 400 + 200 + 200 + 200 + 2 * kSmallLayer + 8 + 40 + 16 + 40;
  EXPECT_EQ(most_live(build(sharded()), "reduce-scatter input").bytes, backward);
  EXPECT_EQ(backward, 2907);
  for (const std::int32_t zero : {2, 3}) {
    for (const std::int64_t micro_batches : {1, 3}) {
      for (const std::int32_t shard : {0, 2}) {
        StepRequest request = sharded(micro_batches, zero);
        request.parallel.shard = shard;
        EXPECT_EQ(most_live(build(request), "reduce-scatter input").named, 1);
      }
    }
  }
  StepRequest request = sharded();
  request.framework = load_framework("torchtitan@2024-12");
  EXPECT_EQ(most_live(build(request), "reduce-scatter input").named, 1);
}

// Compute goes on behind a backward pass when its gradients are reduced: FSDP1 and 2.
TEST(ShardedGradients, AreReducedBeforeTheNextMicroBatch) {
  for (const char* framework : {"torchtitan@2024-12", "pytorch-fsdp@2023"}) {
    StepRequest request = sharded(2);
    request.framework = load_framework(framework);
    const BuiltStep built = build(request);
    const std::vector<OpRun> runs = runs_by_op(built.graph, run_step(built));
    const std::vector<OpId> ends = ops_of(built.graph, "gradients reduced");
    const std::vector<OpId> adds = ops_of(built.graph, "gradient shard add");
    ASSERT_EQ(ends.size(), 2u);
    ASSERT_EQ(adds.size(), 10u);
    EXPECT_THAT(waits_of(built.graph, ends[0]), ElementsAre("backward gradient shard add mb0")) << framework;
    EXPECT_GE(runs[static_cast<std::size_t>(ops_of(built.graph, "embedding")[1].index)].start,
              runs[static_cast<std::size_t>(adds[4].index)].end);
  }
}

// One gather of embedding and head for the whole pass, one reduction behind it.
TEST(ShardedRoot, IsGatheredOnceAndReducedOnce) {
  for (const char* framework : {"torchtitan@2024-12", "pytorch-fsdp@2023"}) {
    SCOPED_TRACE(framework);
    StepRequest request = sharded();
    request.framework = load_framework(framework);
    const BuiltStep built = build_step(request, templates_with_head());
    const OpGraph& graph = built.graph;
    expect_sound(built);
    const bool copies = request.framework.copies_out_of_gathers;
    EXPECT_EQ(launches(built, Phase::kForward), copies ? "GCEGC0GC1GC2GC3H" : "GEG0G1G2G3H");
    EXPECT_EQ(count_ops(graph, "weight all-gather", built.phase_labels[0]), 5);
    EXPECT_EQ(count_ops(graph, "weight all-gather", built.phase_labels[1]), copies ? 3 : 4);  // FSDP1 frees the last layer
    const OpId gather = ops_of(graph, "weight all-gather").front();
    EXPECT_EQ(collective_of(graph, gather), (Collective{CollectiveKind::kAllGather, Bytes((12 + 32) * 2), 4, 1}));
    EXPECT_EQ(graph.writes(gather).size(), copies ? 1u : 2u);
    const StepResult result = run_step(built);
    const std::vector<StorageId> weights = storages_of(graph, "unsharded weights");
    const char* const born = copies ? "forward weight copy-out" : "forward weight shard cast";
    const auto dead = [&](const char* by) { return copies ? by : ""; };  // FSDP1 frees by event
    for (const auto& [unit, bytes] : {std::pair(0, 12 * 2), std::pair(1, 32 * 2)}) {
      const StorageId each = weights[static_cast<std::size_t>(unit)];
      EXPECT_EQ(storage_of(graph, each).size.value, bytes);
      EXPECT_EQ(life_of(graph, result, each), (Life{born, dead("backward embedding backward")}));
    }
    const std::vector<OpId> reductions = ops_of(graph, "gradient reduce-scatter");
    ASSERT_EQ(reductions.size(), 5u);
    EXPECT_EQ(collective_of(graph, reductions[4]), (Collective{CollectiveKind::kReduceScatter, Bytes((12 + 32) * 4), 4, 1}));
    EXPECT_EQ(graph.writes(reductions[4]).size(), 2u);
    EXPECT_EQ(graph.reads(ops_of(graph, "gradient copy-in")[4]).size(), 2u);
    const StorageId head = storages_of(graph, "unsharded gradients").front();
    EXPECT_EQ(storage_of(graph, head).size.value, 60);
    EXPECT_EQ(life_of(graph, result, head), (Life{"backward loss backward", dead("backward gradient copy-in")}));
  }
}

// What the head adds to the peak of OneReduceScatterInputLivesAtATime: shards 16 x 8, gathered weights 32 x 2, its gradient 60, which waits
// for the embedding's.
TEST(ShardedRoot, LivesWholeAtThePeak) {
  const Most most = most_live(build_step(sharded(), templates_with_head()), "reduce-scatter input");
  EXPECT_EQ(most.bytes, 2907 + 16 * 8 + 32 * 2 + 60);
  EXPECT_EQ(most.named, 1);
}

TEST(ShardedRoot, IsAddedToBothShards) {
  StepRequest request = sharded(3);
  request.parallel.shard = 2;
  const BuiltStep built = build_step(request, templates_with_head());
  expect_sound(built);
  EXPECT_EQ(count_ops(built.graph, "gradient reduce-scatter"), 3 * 5);
  const std::vector<OpId> adds = ops_of(built.graph, "gradient shard add"), sums = ops_of(built.graph, "gradient all-reduce over replicas");
  ASSERT_EQ(adds.size(), 15u);
  EXPECT_EQ(built.graph.writes(adds[4]).size(), 2u);
  ASSERT_EQ(sums.size(), 15u);
  EXPECT_EQ(collective_of(built.graph, sums[4]).message.value, (5 + 15) * 4);  // halves of 10 and 30 parameters
}

// torchtitan of 2025 wraps tok_embeddings and [norm, output] apart: the embedding is freed after forward and gathered again for its
// backward pass, the head stays.
TEST(ShardedRoot, MayBeWrappedInParts) {
  StepRequest request = sharded();
  request.framework.root_holds_ends = false;
  const BuiltStep built = build_step(request, templates_with_head());
  expect_sound(built);
  EXPECT_EQ(launches(built, Phase::kForward), "GCEGC0GC1GC2GC3GCH");
  EXPECT_EQ(launches(built, Phase::kBackward), "HRG3RCG2RCG1RCG0RCER");
  EXPECT_EQ(count_ops(built.graph, "gradient reduce-scatter"), 6);
}

// Chunked loss makes the head's gradient in its forward pass: claimed by the first chunk, reduced with the root.
TEST(ShardedGradients, OfChunkedLossAreMadeInForward) {
  for (const std::int32_t zero : {2, 3}) {
    const BuiltStep built = build_step(sharded(2, zero), templates_with_head(true));
    const OpGraph& graph = built.graph;
    expect_sound(built);
    const StorageId head = storages_of(graph, "unsharded gradients").front();
    EXPECT_EQ(storage_of(graph, head).size.value, 60);
    EXPECT_EQ(life_of(graph, run_step(built), head), (Life{"forward loss mb0", "backward gradient copy-in mb0"}));
    EXPECT_EQ(count_ops(graph, "gradient reduce-scatter"), 2 * (zero == 3 ? 5 : 6));
  }
}

TEST(ShardedGradients, OfEveryMicroBatchAreAddedToTheShard) {
  const BuiltStep built = build(sharded(3));
  EXPECT_EQ(count_ops(built.graph, "gradient reduce-scatter"), 15);
  EXPECT_EQ(count_ops(built.graph, "gradient shard add"), 15);
  EXPECT_EQ(storages_of(built.graph, "unsharded gradients").size(), 15u);
  expect_sound(built);
}

// no_sync: 2 bytes of each of 410 parameters live from the first backward pass to the last, where they are reduced.
TEST(ShardedGradients, MayAccumulateUnsharded) {
  StepRequest request = sharded(3);
  request.parallel.reduce_every_micro_batch = false;
  const BuiltStep built = build(request);
  const OpGraph& graph = built.graph;
  expect_sound(built);
  const std::vector<OpId> reductions = ops_of(graph, "gradient reduce-scatter");
  ASSERT_EQ(reductions.size(), 5u);
  for (const OpId op : reductions) EXPECT_EQ(graph.op(op).micro_batch, 2);
  EXPECT_EQ(count_ops(graph, "gradient shard add"), 0);
  const std::vector<StorageId> gradients = storages_of(graph, "unsharded gradients");
  ASSERT_EQ(gradients.size(), 5u);
  std::int64_t bytes = 0;
  for (const StorageId each : gradients) bytes += storage_of(graph, each).size.value;
  EXPECT_EQ(bytes, 410 * 2);
  const StepResult result = run_step(built);
  EXPECT_EQ(life_of(graph, result, gradients[0]), (Life{"backward embedding backward mb0", "backward gradient copy-in mb2"}));
  EXPECT_EQ(life_of(graph, result, gradients[4]), (Life{"backward L3 fc2 backward mb0", "backward L3 gradient copy-in mb2"}));
}

// Segments of two layers run forward again before either runs backward: each layer's gradients are reduced once, when it is done.
TEST(ShardedGradients, AreReducedOnceWhereLayersRunAgain) {
  StepRequest request = sharded();
  request.placement.segments = 2;
  request.parallel.prefetch_backward = false;
  const BuiltStep built = build(request);
  EXPECT_EQ(count_ops(built.graph, "gradient reduce-scatter"), 5);
  EXPECT_THAT(waits_of(built.graph, ops_of(built.graph, "gradient reduce-scatter").front()), ElementsAre("backward L3 gradient copy-in"));
  // Backward: 2 again, 3 (still there), 2; 0 again, 1, 0. What a run leaves is freed: 2, 2, 0, 1, 0 are gathered.
  std::vector<std::int32_t> again;
  for (const OpId op : ops_of(built.graph, "weight copy-out")) {
    if (built.graph.op(op).phase != built.phase_labels[1]) continue;
    const OpId next{op.index + 1};  // the first kernel of the run
    again.push_back(built.graph.op(next).layer);
  }
  EXPECT_THAT(again, ElementsAre(2, 2, 0, 1, 0));
  expect_sound(built);
}

// HSDP: 4 ranks as 2 replicas of a group of 2: half of everything a rank, and a sum over the 2 ranks that are 2 apart.
TEST(ShardedGradients, AreSummedOverReplicas) {
  StepRequest request = sharded(2);
  request.parallel.shard = 2;
  const BuiltStep built = build(request);
  const OpGraph& graph = built.graph;
  expect_sound(built);
  EXPECT_EQ(resident_bytes(graph, Role::kWeights), (5 + 4 * 50) * 4);
  EXPECT_EQ(collective_of(graph, ops_of(graph, "weight all-gather")[1]).ranks, 2);
  const std::vector<OpId> reductions = ops_of(graph, "gradient reduce-scatter"), sums = ops_of(graph, "gradient all-reduce over replicas");
  ASSERT_EQ(sums.size(), 10u);
  EXPECT_EQ(collective_of(graph, reductions[0]), (Collective{CollectiveKind::kReduceScatter, Bytes(400), 2, 1}));
  EXPECT_EQ(collective_of(graph, sums[0]), (Collective{CollectiveKind::kAllReduce, Bytes(50 * 4), 2, 2}));
  EXPECT_LT(reductions[0].index, sums[0].index);
  EXPECT_EQ(graph.op(sums[0]).stream, graph.op(reductions[0]).stream);
  EXPECT_EQ(collective_of(graph, ops_of(graph, "gradient norm all-reduce").front()).ranks, 2);
}

TEST(ShardedGradients, LeaveWholeWeightsThatAreGatheredBehindTheUpdate) {
  const BuiltStep built = build(sharded(2, 2));
  EXPECT_EQ(resident_bytes(built.graph, Role::kWeights), 410 * 2);
  EXPECT_EQ(resident_bytes(built.graph, Role::kGradients), kShare * 4);
  EXPECT_EQ(resident_bytes(built.graph, Role::kOptimizerState), kShare * 12);
  EXPECT_EQ(count_ops(built.graph, "weight all-gather", built.phase_labels[3]), 5);
  EXPECT_EQ(count_ops(built.graph, "weight all-gather"), 5);
  expect_sound(built);
}

// FSDP1 casts the flat gradient to reduce_dtype before the reduce-scatter (_runtime_utils.py, _post_backward_hook), whose message is then
// in that dtype; the preset reduces in fp32.
TEST(ShardedGradients, AreReducedInTheReduceDtype) {
  StepRequest request = sharded();
  for (const char* framework : {"torchtitan@2024-12", "pytorch-fsdp@2023"}) {
    request.framework = load_framework(framework);
    for (const auto& [dtype, bytes] : {std::pair(DType::kFp32, 4), std::pair(DType::kBf16, 2)}) {
      request.parallel.reduce_dtype = dtype;
      const BuiltStep built = build(request);
      const OpId first = ops_of(built.graph, "gradient reduce-scatter").front();
      EXPECT_EQ(collective_of(built.graph, first).message.value, 100 * bytes) << framework;
    }
  }
}

// FSDP1 hands the unsharded gradient to the reduction's stream with record_stream (_post_backward_hook).
TEST(ShardedGradients, AreFreedByEventWhereGathersAre) {
  StepRequest request = sharded();
  request.framework = load_framework("pytorch-fsdp@2023");
  const BuiltStep built = build(request);
  for (const StorageId each : storages_of(built.graph, "unsharded gradients")) EXPECT_TRUE(storage_of(built.graph, each).deferred_free);
  request.framework = load_framework("torchtitan@2024-12");
  const BuiltStep newer = build(request);
  for (const StorageId each : storages_of(newer.graph, "unsharded gradients")) EXPECT_FALSE(storage_of(newer.graph, each).deferred_free);
}

TEST(ShardedWeights, RealModelsRunUnderEveryPolicy) {
  std::vector<PlacementPolicy> policies(4);
  policies[1].granularity = RecomputeGranularity::kFull;
  policies[2].granularity = RecomputeGranularity::kSelective;
  policies[3].segments = 3;
  for (const char* framework : {"torchtitan@2024-12", "pytorch-fsdp@2023", "megatron-core@2025"}) {
    for (const char* model : {"gpt2-124m", "llama3.2-1b"}) {
      for (const std::int32_t tensor : {1, 2}) {
        for (const auto& [zero, shard] : {std::pair(2, 0), std::pair(3, 0), std::pair(3, 2)}) {
          for (const PlacementPolicy& policy : policies) {
            StepRequest request;
            request.model = load_model(model);
            request.framework = load_framework(framework);
            request.training.sequence = 256;
            request.training.global_batch = 8;
            request.parallel.tensor = tensor;
            request.parallel.data = 4;
            request.parallel.zero = zero;
            request.parallel.shard = shard;
            request.placement = policy;
            SCOPED_TRACE(std::string(framework) + " " + model + " tp " + std::to_string(tensor) + " zero " + std::to_string(zero));
            expect_sound(build_step(request));
          }
        }
      }
    }
  }
}

// GPT-2's head is tied: the embedding stays gathered for it and for its own backward, and its gradient begins with the head's.
TEST(ShardedWeights, TiedHeadsUseTheEmbeddingsGather) {
  StepRequest request;
  request.model = load_model("gpt2-124m");
  request.framework = load_framework("torchtitan@2024-12");
  request.training.sequence = 256;
  request.training.global_batch = 8;
  request.parallel.data = 4;
  request.parallel.zero = 3;
  const BuiltStep built = build_step(request);
  const OpGraph& graph = built.graph;
  // Forward the root (embedding and final norm) and 12 layers; backward the layers but the last. Two micro-batches.
  EXPECT_EQ(count_ops(graph, "weight all-gather", built.phase_labels[0]), 2 * 13);
  EXPECT_EQ(count_ops(graph, "weight all-gather", built.phase_labels[1]), 2 * 11);
  EXPECT_EQ(count_ops(graph, "gradient reduce-scatter"), 2 * 13);
  const StepResult result = run_step(built);
  const StorageId table = storages_of(graph, "unsharded weights").front();
  EXPECT_EQ(life_of(graph, result, table).dead.substr(0, 8), "backward");
  // (50,257 + 1,024) x 768 parameters, made in bf16: the largest of the unsharded gradients.
  StorageId gradient = storages_of(graph, "unsharded gradients").front();
  for (const StorageId each : storages_of(graph, "unsharded gradients")) {
    if (storage_of(graph, each).size > storage_of(graph, gradient).size) gradient = each;
  }
  EXPECT_EQ(storage_of(graph, gradient).size.value, (50'257 + 1'024) * 768 * 2);
  const Life life = life_of(graph, result, gradient);
  EXPECT_EQ(life.born, "backward head weight gradient mb0");
  EXPECT_EQ(life.dead, "backward gradient copy-in mb0");
  // The last but one reader is the embedding's own backward.
  EXPECT_GT(ops_of(graph, "gradient copy-in")[12].index, ops_of(graph, "embedding gradient").front().index);
}

TEST(ShardedGradients, OfChunkedLossOfRealModels) {
  for (const char* model : {"gpt2-124m", "llama3.2-1b"}) {
    for (const bool tied : {true, false}) {
      for (const std::int32_t zero : {2, 3}) {
        StepRequest request;
        request.model = load_model(model);
        request.model.tied_head = tied;
        request.framework = load_framework("torchtitan@2024-12");
        request.training.sequence = 256;
        request.training.global_batch = 8;
        request.training.loss = LossKind::kChunked;
        request.training.loss_chunks = 4;
        request.parallel.data = 4;
        request.parallel.zero = zero;
        SCOPED_TRACE(std::string(model) + (tied ? " tied" : "") + " zero " + std::to_string(zero));
        const BuiltStep built = build_step(request);
        expect_sound(built);
        // The gradient of the table (tied) or of the head.
        const StepResult result = run_step(built);
        const Life life{"forward head weight gradient mb0", "backward gradient copy-in mb0"};
        const std::vector<StorageId> all = storages_of(built.graph, "unsharded gradients");
        EXPECT_EQ(std::count_if(all.begin(), all.end(), [&](StorageId each) { return life_of(built.graph, result, each) == life; }), 1);
      }
    }
  }
}

}  // namespace
}  // namespace stepsim
