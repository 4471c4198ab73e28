// Offload beside recomputation: what a re-run reads is back in time, what it makes beside is no second copy of what is on the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <variant>

#include "models/offload_presets.h"
#include "tests/unit/models/small_step.h"

namespace stepsim {
namespace {

OffloadSchedule on_demand() {
  OffloadSchedule schedule;
  schedule.copy_out = CopyOutPlace::kLayerEnd;
  schedule.release = ReleasePlace::kEvent;
  schedule.lookahead = 0;
  return schedule;
}

struct StepRun {
  BuiltStep built;
  StepResult result;
  std::vector<OpRun> runs;
  const OpRun& run(OpId op) const { return runs[static_cast<std::size_t>(op.index)]; }
};

StepRun run_of(const StepRequest& request, const StepTemplates& templates) {
  StepRun run{build_step(request, templates), {}, {}};
  run.result = run_step(run.built);
  EXPECT_FALSE(run.result.deadlock.has_value());
  run.runs = runs_by_op(run.built.graph, run.result);
  return run;
}

// Of a layer, in a phase.
OpId op_of(const BuiltStep& built, const std::string& kind, std::int32_t layer, Phase phase) {
  for (const OpId op : ops_of(built.graph, kind)) {
    if (built.graph.op(op).layer == layer && built.graph.op(op).phase == built.phase_labels[static_cast<std::size_t>(phase)]) return op;
  }
  return {};
}

// DeepSpeed's cpu_checkpointing: each layer runs again from its input, which comes back for that. Embedding 0..1, layers 1..10,
// loss 10..12; every copy and op takes 1 us.
TEST(OffloadRecompute, AReRunWaitsForTheInputThatComesBack) {
  const OffloadPreset& preset = *offload_preset("deepspeed");
  StepRequest request = small_request(3);
  request.framework.host_issue = false;
  request.placement.granularity = preset.recompute;
  request.placement.offload = preset.offload;
  request.placement.offload.schedule.copy_in_waits_for_compute = true;  // as if the host were never ahead
  const StepRun run = run_of(request, small_templates());
  const OpGraph& graph = run.built.graph;
  ASSERT_EQ(ops_of(graph, "copy out input").size(), 2u);  // the last layer's stays
  for (const std::int32_t layer : {1, 0}) {
    const OpId back = op_of(run.built, "copy in input", layer, Phase::kBackward), again = op_of(run.built, "fc1", layer, Phase::kRecompute);
    ASSERT_TRUE(back.valid());
    ASSERT_TRUE(again.valid());
    EXPECT_EQ(run.run(again).start, run.run(back).end);
    EXPECT_EQ(graph.reads(again)[0].storage, graph.writes(back)[0].storage);
    // fc1 backward reads the same storage, the last to do so.
    const OpId backward = op_of(run.built, "fc1 backward", layer, Phase::kBackward);
    EXPECT_EQ(life_of(graph, run.result, graph.writes(back)[0].storage), (Life{graph.op_name(back), graph.op_name(backward)}));
  }
  // Compute: embedding, 3 layers x 3, loss both ways, 3 layers x (3 again + 3 back); two copies back are waited for.
  EXPECT_EQ(run.run(op_of(run.built, "fc1 backward", 0, Phase::kBackward)).end, TimePoint(0) + Duration(1'000'000) * (1 + 9 + 2 + 18 + 2));
}

// fc1 makes its output and statistics. The output runs again, the statistics are on the host: the re-run makes fresh ones for nobody, and
// backward reads what comes back. The copy back was taken for a second one of something that is there: a check failed.
TEST(OffloadRecompute, AReRunMakesNoSecondCopyOfWhatIsOnTheHost) {
  StepTemplates templates = small_templates();
  LayerTemplate& layer = templates.kinds.front();
  layer.slots.push_back(small_slot("statistics", SlotKind::kForward, 6));  // 10
  layer.forward[0].writes.push_back(10);
  layer.backward[2].reads.push_back(10);
  for (const std::int32_t slices : {1, 3}) {
    StepRequest request = small_request(2);
    request.placement.rows = {{0, -1, "fc1 output", PlacementAction::kRecompute, 0, -1, 1, 1},
                              {0, -1, "statistics", PlacementAction::kOffload, 0, -1, slices, slices}};
    request.placement.offload.schedule = on_demand();
    const StepRun run = run_of(request, templates);
    const OpGraph& graph = run.built.graph;
    EXPECT_EQ(ops_of(graph, "copy in statistics").size(), 2u * static_cast<std::size_t>(slices));
    for (const std::int32_t of : {0, 1}) {
      const OpId back = op_of(run.built, "copy in statistics", of, Phase::kBackward);
      const OpId reader = op_of(run.built, "fc1 backward", of, Phase::kBackward), again = op_of(run.built, "fc1", of, Phase::kRecompute);
      const auto reads = [&](StorageId storage) {
        return std::any_of(graph.reads(reader).begin(), graph.reads(reader).end(),
                           [&](const Tensor& each) { return each.storage == storage; });
      };
      EXPECT_LT(run.run(again).start, run.run(back).start);
      EXPECT_TRUE(reads(graph.writes(back)[0].storage));
      EXPECT_FALSE(reads(graph.writes(again)[1].storage));
      EXPECT_LE(run.run(back).end, run.run(reader).start);
    }
  }
}

// Copies out and back of the same policy with other recomputation are of what that keeps.
TEST(OffloadRecompute, WhatRunsAgainIsNotMoved) {
  StepRequest request = small_request(2);
  request.placement.granularity = RecomputeGranularity::kSelective;
  request.placement.modules = {"act"};
  request.placement.offload.selection.names = {"*"};
  request.placement.offload.schedule = on_demand();
  const StepRun run = run_of(request, small_templates());
  EXPECT_EQ(count_ops(run.built.graph, "copy out act output"), 0);
  EXPECT_EQ(count_ops(run.built.graph, "copy out fc1 output"), 2);
  EXPECT_EQ(count_ops(run.built.graph, "copy out input"), 2);
  const OpId back = op_of(run.built, "copy in fc1 output", 0, Phase::kBackward), again = op_of(run.built, "act", 0, Phase::kRecompute);
  EXPECT_LE(run.run(back).end, run.run(again).start);
  for (const SavedTensor& tensor : run.built.saved) {
    if (tensor.layer != 0) continue;
    EXPECT_EQ(tensor.placement, tensor.name == "act output" ? "recompute" : "offload") << tensor.name;
  }
}

// A host copy lives until backward of its layer is over: it was let go of after the first visit to the layer, its re-run.
TEST(OffloadRecompute, HostCopiesOutliveTheReRunOfTheirLayer) {
  StepRequest request = small_request(2);
  request.placement.granularity = RecomputeGranularity::kFull;
  request.placement.num_layers = 2;  // layers 0 and 1 run again together, from the input of layer 0
  request.placement.offload.selection.names = {"input"};
  request.placement.offload.schedule = on_demand();
  request.placement.offload.schedule.host_lifetime = HostLifetime::kBackwardEnd;
  const StepRun run = run_of(request, small_templates());
  std::int64_t seen = 0;
  for (const StorageId id : storages_of(run.built.graph, "input")) {
    if (storage_of(run.built.graph, id).space != MemorySpace::kHost) continue;
    ++seen;
    EXPECT_EQ(life_of(run.built.graph, run.result, id), (Life{"forward L0 copy out input", "backward L0 fc1 backward"}));
  }
  EXPECT_EQ(seen, 1);
}

// What nobody lets go of is used where it is. Nobody waits for its copy either: the memory is free when both are done.
TEST(OffloadRecompute, StorageUsedInPlaceOutlivesItsCopy) {
  StepRequest request = small_request(1);
  request.placement.offload.selection.names = {"act output"};
  request.placement.offload.schedule = on_demand();
  request.placement.offload.schedule.release = ReleasePlace::kTensor;
  request.placement.offload.schedule.in_place = true;
  const BuiltStep built = build_step(request, small_templates());
  EXPECT_EQ(count_ops(built.graph, "copy out act output"), 1);
  EXPECT_EQ(count_ops(built.graph, "copy in act output"), 0);
  for (const StorageId id : storages_of(built.graph, "act output")) {
    const Storage& storage = storage_of(built.graph, id);
    EXPECT_EQ(storage.deferred_free, storage.space == MemorySpace::kDevice);
  }
}

// ---- sharded weights

// Compute waits for a copy out before it copies gathered weights for the next layer, not only before that layer's first kernel.
TEST(OffloadSharded, SynchronousCopiesHoldUpTheCopiesOfWeights) {
  StepRequest request = small_request(2);
  request.parallel.data = 2;
  request.parallel.zero = 3;
  request.training.global_batch = 2;
  request.training.gradient_dtype = DType::kBf16;
  request.framework.host_issue = false;
  request.placement.offload.selection.names = {"act output"};
  request.placement.offload.schedule = on_demand();
  request.placement.offload.schedule.synchronous = true;
  const StepRun run = run_of(request, small_templates(2));
  const OpId copy = op_of(run.built, "copy out act output", 0, Phase::kForward);
  ASSERT_TRUE(copy.valid());
  std::int64_t later = 0;
  for (const OpId op : compute_ops(run.built.graph, DeviceId{0})) {
    if (op.index < copy.index) continue;
    ++later;
    EXPECT_GE(run.run(op).start, run.run(copy).end) << run.built.graph.op_name(op);
  }
  EXPECT_GT(later, 6);
}

// What the last op of a unit lets go of is held by an op that compute has passed, not by a copy to the host that stands behind it.
TEST(OffloadSharded, GatheredWeightsAreNotHeldByCopies) {
  StepRequest request = small_request(3);
  request.parallel.data = 2;
  request.parallel.zero = 3;
  request.training.global_batch = 2;
  request.training.gradient_dtype = DType::kBf16;
  request.placement.offload.selection.names = {"*"};
  request.placement.offload.schedule = on_demand();
  const BuiltStep built = build_step(request, small_templates(2));
  const StepResult result = run_step(built);
  const std::vector<StorageId> weights = storages_of(built.graph, "unsharded weights");
  EXPECT_GT(weights.size(), 4u);
  for (const StorageId id : weights) EXPECT_THAT(life_of(built.graph, result, id).dead, testing::Not(testing::HasSubstr(" copy ")));
}

}  // namespace
}  // namespace stepsim
