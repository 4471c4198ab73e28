// Steps that offload, through build_step and the engine, against closed forms (spec/offload.md, section 5).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <variant>

#include "models/offload_presets.h"
#include "tests/unit/models/small_step.h"

namespace stepsim {
namespace {

// A layer with one saved tensor, its set: forward makes it from the input, backward reads nothing else. 1 Mi elements of a byte, so that no
// preset finds it too small.
constexpr std::int64_t kSet = 1 << 20;

// Rows of the given costs.
enum class Row : std::int32_t { kForward, kBackward, kHead, kNothing };
OpWork given(Row row) { return Given{.index = static_cast<std::int32_t>(row)}; }

StepTemplates uniform_stack() {
  StepTemplates templates = small_templates();
  LayerTemplate layer{.name = "layer", .slots = {}, .forward = {}, .backward = {}};
  layer.slots = {small_slot("input", SlotKind::kInput, 8), small_slot("set", SlotKind::kForward, kSet, "core_attn"),
                 small_slot("output", SlotKind::kForward, 8), small_slot("output gradient", SlotKind::kInput, 8),
                 small_slot("input gradient", SlotKind::kGradient, 8)};
  layer.forward = {small_op("attention", {0}, {1, 2}, {}, "core_attn")};
  layer.backward = {small_op("attention backward", {3, 1}, {4}, {}, "core_attn")};
  layer.input = 0;
  layer.output = 2;
  layer.output_gradient = 3;
  layer.input_gradient = 4;
  layer.forward.front().work = given(Row::kForward);
  layer.backward.front().work = given(Row::kBackward);
  templates.kinds.front() = layer;
  for (TemplateOp* op : {&templates.head.forward.front(), &templates.head.backward.front()}) op->work = given(Row::kHead);
  for (TemplateOp* op : {&templates.embedding.forward.front(), &templates.embedding.backward.front()}) op->work = given(Row::kNothing);
  return templates;
}

// Of a set and layer; the head is 2 x head, half forward and half backward. Nothing else takes time.
struct Times {
  std::int64_t forward = 0, backward = 0, head = 0, copy_out = 0, copy_in = 0, issue = 0;
};

class StackCost : public CostModel {
 public:
  explicit StackCost(const Times& times) : times_(times) {}
  Cost cost(const OpWork& work, DeviceId, TransferSide) const override {
    if (const auto* copy = std::get_if<Copy>(&work)) {
      return {.fixed = Duration(copy->direction == CopyDirection::kDeviceToHost ? times_.copy_out : times_.copy_in),
              .alone = {},
              .issue = {},
              .loads = {}};
    }
    const auto* row = std::get_if<Given>(&work);
    if (row == nullptr) return {};
    const std::int64_t durations[] = {times_.forward, times_.backward, times_.head, 0};
    const bool layer = row->index <= static_cast<std::int32_t>(Row::kBackward);
    return {.fixed = Duration(durations[row->index]), .alone = {}, .issue = Duration(layer ? times_.issue : 0), .loads = {}};
  }

 private:
  Times times_;
};

StepRequest stack_request(std::int64_t layers, const OffloadPolicy& offload) {
  StepRequest request = small_request(layers);
  request.framework.host_issue = false;
  request.placement.offload = offload;
  return request;
}

struct StackRun {
  BuiltStep built;
  StepResult result;
  std::int64_t forward_end = 0, total = 0;  // of the last layer's forward, of layer 0's backward
};

StackRun run_stack(const StepRequest& request, const Times& times, LedgerRule device = LedgerRule::kDeviceOrder) {
  StackRun run{build_step(request, uniform_stack()), {}};
  const OpGraph& graph = run.built.graph;
  run.result = simulate(graph, plain_machine(graph.device_count()), StackCost(times), {.device = device});
  EXPECT_FALSE(run.result.deadlock.has_value());
  for (const OpRun& each : run.result.timeline) {
    if (graph.label(graph.op(each.op).kind) == "attention") run.forward_end = std::max(run.forward_end, each.end.count());
    if (graph.label(graph.op(each.op).kind) == "attention backward") run.total = std::max(run.total, each.end.count());
  }
  return run;
}

// The most sets in one memory at a time.
std::int64_t most_sets(const StackRun& run, MemorySpace space, std::int32_t device = 0) {
  std::int64_t live = 0, most = 0;
  for (const MemoryEvent& event : run.result.memory) {
    const Storage& storage = storage_of(run.built.graph, event.storage);
    if (storage.size != Bytes(kSet) || storage.space != space || storage.device != DeviceId{device}) continue;
    most = std::max(most, live += event.bytes.value / kSet);
  }
  return most;
}

OffloadPolicy preset(std::string_view name) { return offload_preset(name)->offload; }

// F5: K layers stay; T = max(L f, 2 f + (L-K) d) + h + max(L b, 2 b + (L-K) u), and K sets are resident. One copy stream makes no
// difference: all copies out are over when the last forward starts.
TEST(OffloadStep, TransformerEngineFollowsItsClosedForm) {
  std::int64_t exposed = 0, hidden = 0;
  for (const std::int64_t layers : {2, 3, 5, 8, 13}) {
    for (std::int64_t kept = 2; kept <= layers; ++kept) {
      for (const Times& each : {Times{10, 20, 3, 5, 5}, Times{10, 20, 0, 10, 20}, Times{10, 20, 7, 13, 4}, Times{10, 20, 7, 4, 31},
                                Times{3, 6, 0, 2, 2}, Times{1, 1, 1, 17, 19}, Times{10, 20, 3, 0, 0}}) {
        OffloadPolicy policy = preset("te");
        policy.selection.keep_last_layers = kept;
        const StackRun run = run_stack(stack_request(layers, policy), each);
        const std::int64_t moved = layers - kept, f = each.forward, b = each.backward;
        const std::int64_t forward = moved == 0 ? layers * f : std::max(layers * f, 2 * f + moved * each.copy_out);
        const std::int64_t backward = moved == 0 ? layers * b : std::max(layers * b, 2 * b + moved * each.copy_in);
        SCOPED_TRACE("L " + std::to_string(layers) + " K " + std::to_string(kept) + " d " + std::to_string(each.copy_out) + " u " +
                     std::to_string(each.copy_in));
        EXPECT_EQ(run.forward_end, forward);
        EXPECT_EQ(run.total, forward + 2 * each.head + backward);
        EXPECT_EQ(most_sets(run, MemorySpace::kDevice), kept);
        EXPECT_EQ(most_sets(run, MemorySpace::kHost), moved);
        ++(run.total > layers * (f + b) + 2 * each.head ? exposed : hidden);
      }
    }
  }
  EXPECT_GT(exposed, 20);
  EXPECT_GT(hidden, 20);
}

// "K = 1: no overlap": each of the L - 1 copies out stands between two forwards, each copy back before its backward.
TEST(OffloadStep, TransformerEngineWithOneLayerKeptHidesNothing) {
  OffloadPolicy policy = preset("te");
  const StackRun run = run_stack(stack_request(6, policy), {10, 20, 3, 5, 7});
  EXPECT_EQ(run.forward_end, 6 * 10 + 5 * 5);
  EXPECT_EQ(run.total, 6 * 10 + 5 * 5 + 6 + 6 * 20 + 5 * 7);
  EXPECT_EQ(most_sets(run, MemorySpace::kDevice), 1);
}

// engine.md, section 7: L = 32, f = 10, copies of 5, the host launches a layer in 1. Layer k is launched at k; when the last one claims, at
// 32, the copies of the first two layers are over (16, 26): 30 sets. Reloads are claimed later.
TEST(OffloadStep, RecordStreamWithoutALimitKeepsThirtySets) {
  OffloadPolicy policy = preset("megatron-fine-grained");
  policy.selection.keep_last_of_each_name = false;
  StepRequest request = stack_request(32, policy);
  request.framework.host_issue = true;
  const Times times{10, 20, 0, 5, 5, 1};
  StackRun run = run_stack(request, times, LedgerRule::kIssueOrder);
  const std::vector<LabelId> saved = {run.built.saved_roles.front()};
  ASSERT_EQ(run.built.graph.label(saved.front()), kSavedActivations);
  EXPECT_EQ(peak_of_roles(run.built.graph, run.result, DeviceId{0}, saved).value / kSet, 30);
  // In device order a set goes 5 after its forward: never more than the one that is made and the one that is copied.
  run = run_stack(request, times, LedgerRule::kDeviceOrder);
  EXPECT_EQ(peak_of_roles(run.built.graph, run.result, DeviceId{0}, saved).value / kSet, 2);
}

// Compute waits for the copy N before: N + 1 sets, whatever a copy takes and in whichever order memory is accounted (section 5, rule 4).
TEST(OffloadStep, LimitInFlightBoundsTheSets) {
  for (const std::int64_t limit : {0, 1, 2, 5}) {
    for (const LedgerRule rule : {LedgerRule::kDeviceOrder, LedgerRule::kIssueOrder}) {
      OffloadPolicy policy = preset("megatron-fine-grained");
      policy.selection.keep_last_of_each_name = false;
      policy.schedule.release = ReleasePlace::kWait;
      policy.schedule.in_flight = limit;
      StepRequest request = stack_request(12, policy);
      request.framework.host_issue = true;
      const StackRun run = run_stack(request, {10, 20, 1000, 37, 5, 1}, rule);
      const std::vector<LabelId> saved = {run.built.saved_roles.front()};
      EXPECT_EQ(peak_of_roles(run.built.graph, run.result, DeviceId{0}, saved).value / kSet, limit + 1) << limit;
      // The first launch, then F2 with M = N + 1 sets: 2 f + (L - M) d; for M = 1 F1's L f + (L - 1) d.
      EXPECT_EQ(run.forward_end, 1 + (limit == 0 ? 12 * 10 + 11 * 37 : 2 * 10 + (12 - limit - 1) * 37)) << limit;
    }
  }
}

// F1: each copy is waited for, both ways; the last one out too. The host waits as well, so launches are not ahead.
TEST(OffloadStep, SaveOnCpuAddsEveryCopyToTheStep) {
  for (const bool host : {false, true}) {
    OffloadPolicy policy = preset("save-on-cpu");
    StepRequest request = stack_request(4, policy);
    request.framework.host_issue = host;
    const StackRun run = run_stack(request, {10, 20, 3, 5, 7});
    EXPECT_EQ(run.total, 4 * (10 + 5) + 6 + 4 * (7 + 20));
    for (std::int32_t op = 0; op < static_cast<std::int32_t>(run.built.graph.ops().size()); ++op) {
      const auto* copy = std::get_if<Copy>(&run.built.graph.work(OpId{op}));
      EXPECT_FALSE(copy != nullptr && copy->pinned);
    }
    EXPECT_EQ(most_sets(run, MemorySpace::kDevice), 1);
    EXPECT_EQ(most_sets(run, MemorySpace::kHost), 4);
  }
}

// Megatron-LM reloads a group when backward of the group of the same name one layer behind is over. Layers of one group hide nothing.
TEST(OffloadStep, MegatronReloadsOneLayerAhead) {
  const OffloadPolicy policy = preset("megatron-fine-grained");  // one name: the last layer stays
  const StackRun run = run_stack(stack_request(5, policy), {10, 20, 3, 5, 7});
  const std::vector<OpId> back = ops_of(run.built.graph, "copy in set");
  const std::vector<OpRun> runs = runs_by_op(run.built.graph, run.result);
  ASSERT_EQ(back.size(), 4u);
  // The last group of the one name stays. Backward starts at 5 x 10 + 2 x 3 = 56.
  EXPECT_EQ(run.built.graph.op(back[0]).layer, 3);
  std::int64_t ends[4];
  for (std::size_t i = 0; i < 4; ++i) ends[i] = runs[static_cast<std::size_t>(back[i].index)].start.count();
  // B4 56..76; reload 3 at its end 76..83; B3 83..103; reload 2 103..110; B2 110..130; 130..137; B1 137..157; 157..164; B0 164..184.
  EXPECT_THAT(ends, testing::ElementsAre(76, 103, 130, 157));
  EXPECT_EQ(run.total, 184);
}

// The host gives the buffer back when the copy back starts, not before.
TEST(OffloadStep, APoolHasTheBufferBackWhenTheReloadStarts) {
  OffloadPolicy policy = preset("megatron-fine-grained");
  policy.selection.keep_last_of_each_name = false;
  const StackRun run = run_stack(stack_request(3, policy), {10, 20, 3, 5, 7});
  std::vector<std::int64_t> released, started;
  for (const MemoryEvent& event : run.result.memory) {
    if (storage_of(run.built.graph, event.storage).space == MemorySpace::kHost && event.bytes < Bytes(0))
      released.push_back(event.at.count());
  }
  const std::vector<OpRun> runs = runs_by_op(run.built.graph, run.result);
  for (const OpId op : ops_of(run.built.graph, "copy in set")) started.push_back(runs[static_cast<std::size_t>(op.index)].start.count());
  EXPECT_EQ(released, started);
  EXPECT_EQ(most_sets(run, MemorySpace::kHost), 3);
}

// torchtune's tensors that are still in the stash of five when backward comes are used where they are.
TEST(OffloadStep, TorchtuneReloadsOnlyWhatLeftTheStash) {
  const StackRun run = run_stack(stack_request(8, preset("torchtune")), {10, 20, 3, 5, 7});
  EXPECT_EQ(count_ops(run.built.graph, "copy out set"), 8);
  EXPECT_EQ(count_ops(run.built.graph, "copy in set"), 3);
  // Nothing but the host's launches holds a copy back up: with a host that costs no time it starts when the copies out are over, at 85. All
  // is hidden, and the five of the stash and the three are there at once.
  EXPECT_EQ(run.total, 8 * 10 + 6 + 8 * 20);
  EXPECT_EQ(most_sets(run, MemorySpace::kDevice), 8);
}

// torchtitan frees a tensor where the next layer makes its own, and reloads it where the layer above reads its own.
TEST(OffloadStep, TorchtitanDefersAndPrefetchesByOneLayer) {
  const StackRun run = run_stack(stack_request(6, preset("torchtitan")), {10, 20, 3, 5, 7});
  EXPECT_EQ(count_ops(run.built.graph, "copy in set"), 5);  // the last layer stays
  EXPECT_EQ(run.forward_end, 60);
  // Reload of layer 4 stands before backward of layer 5, runs beside it and so on: all hidden.
  EXPECT_EQ(run.total, 60 + 6 + 120);
  EXPECT_EQ(most_sets(run, MemorySpace::kDevice), 2);
}

// Sizes of host buffers.
TEST(OffloadStep, PowersOfTwoRoundHostBuffersUp) {
  StepTemplates templates = uniform_stack();
  templates.kinds.front().slots[1].size = Bytes(kSet + 1);
  OffloadPolicy policy = preset("torchtune");
  const BuiltStep built = build_step(stack_request(1, policy), templates);
  for (const StorageId id : storages_of(built.graph, "set")) {
    const Storage& storage = storage_of(built.graph, id);
    EXPECT_EQ(storage.size, Bytes(storage.space == MemorySpace::kHost ? 2 * kSet : kSet + 1));
  }
}

// ---- pipelines

struct HostCase {
  std::int32_t stages;
  std::int64_t micro_batches;
};

// Under 1F1B stage `rank` of p has min(p - rank, m) micro-batches in flight: each has a set a layer on the host until its backward.
TEST(OffloadPipeline, HostHoldsTheSetsOfMicroBatchesInFlight) {
  for (const HostCase& each : {HostCase{1, 3}, HostCase{2, 1}, HostCase{2, 4}, HostCase{4, 2}, HostCase{4, 6}}) {
    OffloadPolicy policy = preset("te");
    policy.selection.keep_last_layers = 0;
    policy.schedule.copy_out = CopyOutPlace::kLayerEnd;
    constexpr std::int64_t kLayersOfStage = 3;
    StepRequest request = staged_request(kLayersOfStage * each.stages, each.stages, each.micro_batches);
    request.framework.host_issue = false;
    request.placement.offload = policy;
    const StackRun run = run_stack(request, {10, 20, 3, 1, 1});
    for (std::int32_t rank = 0; rank < each.stages; ++rank) {
      const std::int64_t in_flight = std::min<std::int64_t>(each.stages - rank, each.micro_batches);
      EXPECT_EQ(most_sets(run, MemorySpace::kHost, rank), in_flight * kLayersOfStage) << rank << " of " << each.stages;
    }
  }
}

TEST(OffloadPipeline, RowsOfMicroBatchesMoveOnlyTheirs) {
  StepRequest request = staged_request(4, 2, 4);
  request.framework.host_issue = false;
  request.placement.rows = {{0, -1, "set", PlacementAction::kOffload, 1, 2, 1, 1}, {3, 3, "set", PlacementAction::kOffload, 3, -1, 1, 1}};
  const StackRun run = run_stack(request, {10, 20, 3, 1, 1});
  std::vector<std::pair<std::int32_t, std::int32_t>> moved;  // micro-batch, layer
  for (const OpId op : ops_of(run.built.graph, "copy out set")) {
    moved.emplace_back(run.built.graph.op(op).micro_batch, run.built.graph.op(op).layer);
  }
  std::sort(moved.begin(), moved.end());
  EXPECT_THAT(moved, testing::ElementsAre(std::pair(1, 0), std::pair(1, 1), std::pair(1, 2), std::pair(1, 3), std::pair(2, 0),
                                          std::pair(2, 1), std::pair(2, 2), std::pair(2, 3), std::pair(3, 3)));
  EXPECT_EQ(count_ops(run.built.graph, "copy in set"), 9);
}

// What a stage receives is one tensor of as many storages as it has slices: each of them goes by itself.
TEST(OffloadPipeline, SlicesOfAReceivedInputMoveToo) {
  StepTemplates templates = small_templates();
  StepRequest request = staged_request(2, 2, 2);
  request.placement.rows = {{0, -1, "input", PlacementAction::kOffload, 0, -1, 1, 2}};  // half of 8 bytes
  const BuiltStep built = build_step(request, templates);
  const StepResult result = run_step(built);
  EXPECT_FALSE(result.deadlock.has_value());
  std::int64_t bytes = 0;
  for (const OpId op : ops_of(built.graph, "copy in input")) bytes += std::get<Copy>(built.graph.work(op)).bytes.value;
  EXPECT_EQ(bytes, 4 * 4);  // 2 micro-batches x 2 layers
  for (const OpId op : ops_of(built.graph, "send forward")) {
    EXPECT_EQ(built.graph.writes(op).size(), 2u);
    EXPECT_EQ(std::get<Collective>(built.graph.work(op)).message, Bytes(8));
  }
}

}  // namespace
}  // namespace stepsim
