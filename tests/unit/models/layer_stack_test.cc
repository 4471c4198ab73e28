// Layers of several kinds in one stage: plans, placements and graphs, counted by hand.
#include "models/layer_stack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/flops.h"
#include "models/graph_limit.h"
#include "models/placement_rows.h"
#include "models/slot_liveness.h"
#include "sim/input_error.h"
#include "tests/unit/models/plan_text.h"
#include "tests/unit/models/two_kinds.h"

namespace stepsim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Layers 0 and 2 small, 1 and 3 with experts.
const StepTemplates& alternating() {
  static const StepTemplates templates = two_kinds({0, 1, 0, 1});
  return templates;
}

LayerStack four_layers() { return layer_stack(alternating(), 4); }

PlacementPlan plan_of(const PlacementPolicy& policy, const LayerStack& stack = four_layers()) {
  const PlacementPlan plan = make_plan(stack, policy, {});
  EXPECT_EQ(plan_error(plan, stack), "");
  return plan;
}

PlacementPolicy selective(std::vector<std::string> modules) {
  PlacementPolicy policy;
  policy.granularity = RecomputeGranularity::kSelective;
  policy.modules = std::move(modules);
  return policy;
}

PlacementPolicy row(std::int64_t first, std::int64_t last, const std::string& name, PlacementAction action = PlacementAction::kRecompute) {
  PlacementPolicy policy;
  policy.rows = {{.first_layer = first, .last_layer = last, .module_or_slot = name, .action = action}};
  return policy;
}

PlacementPolicy offload(const std::string& name) {
  PlacementPolicy policy;
  policy.offload.selection.names = {name};
  policy.offload.schedule = {
      .copy_out = CopyOutPlace::kLayerEnd, .release = ReleasePlace::kEvent, .in_flight = {}, .lookahead = 0, .asynchronous_limit = {}};
  return policy;
}

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

std::string refusal(const PlacementPolicy& policy, const LayerStack& stack = four_layers()) {
  return refusal([&] { check_policy(policy, stack, AttentionKind::kUnfused); });
}

std::int64_t left_behind(const StepResult& result) {
  std::int64_t bytes = 0;
  for (const MemoryEvent& event : result.memory) bytes += event.bytes.value;
  return bytes;
}

TEST(LayerStack, PartsKeepTheKindsOfTheirLayers) {
  const LayerStack stack = four_layers();
  EXPECT_EQ(stack.kinds(), 2);
  EXPECT_EQ(stack.layer(3).slots.size(), 10u);
  EXPECT_THAT(stack.layers_of_kinds(), ElementsAre(2, 2));
  EXPECT_THAT(stack.slot_begins(), ElementsAre(0, 10, 20, 30, 40));
  const LayerStack part = stack.part(1, 3);
  EXPECT_EQ(part.layers(), 3);
  EXPECT_EQ(part.kind_of(0), 1);
  EXPECT_EQ(&part.layer(1), &stack.layer(2));
  EXPECT_EQ(part.part(1, 2).kind_of(0), 0);
  EXPECT_EQ(part.part(1, 1).whole().layers(), 4);
  EXPECT_THROW(part.part(1, 3), std::logic_error);
}

// So many layers are refused by number, not by filling memory with their kinds.
TEST(LayerStack, OfOneKindItTakesNoMemoryForItsLayers) {
  const LayerTemplate layer = small_layer();
  const LayerStack stack(layer, 1'000'000'000'000);
  EXPECT_EQ(stack.kind_of(999'999'999'999), 0);
  EXPECT_EQ(least_graph_size(stack, 1).ops, 6'000'000'000'000);
}

TEST(LayerStack, AnOutputIsTheNextLayersInputWhateverItsKind) {
  SlotLiveness live(four_layers());
  EXPECT_TRUE(live.live(0, 0));
  EXPECT_FALSE(live.live(1, 0));
  live.make(0, 3);  // the small layer's output
  EXPECT_TRUE(live.live(1, 0));
  live.make(1, 2);  // the output of the layer with experts
  EXPECT_TRUE(live.live(2, 0));
  live.drop(2, 0);
  EXPECT_FALSE(live.live(1, 2));
  EXPECT_TRUE(live.lasting(1, 1));   // scores, which backward reads
  EXPECT_FALSE(live.lasting(1, 4));  // a gradient
  live.make(1, 1);
  live.end_run();
  EXPECT_TRUE(live.live(1, 1));
  EXPECT_FALSE(live.live(0, 1));
}

TEST(LayerStack, RowsReachOnlyTheLayersThatHaveTheTensor) {
  PlacementPlan plan = plan_of(row(0, -1, "scores"));
  EXPECT_EQ(steps_text(plan.forward), "F0:0-2, F1:0-1, drop 1.1, F2:0-2, F3:0-1, drop 3.1");
  EXPECT_EQ(steps_text(plan.backward), "R3:0-0, B3:0-1, B2:0-2, R1:0-0, B1:0-1, B0:0-2");
  plan = plan_of(row(2, 3, "fc1 output"));
  EXPECT_EQ(steps_text(plan.forward), "F0:0-2, F1:0-1, F2:0-2, drop 2.1, F3:0-1");
  // The small layer's output is the input of the layer with experts, which its second backward op reads.
  plan = plan_of(row(0, 0, "output"));
  EXPECT_EQ(steps_text(plan.forward), "F0:0-2, F1:0-1, drop 1.0, F2:0-2, F3:0-1");
  EXPECT_EQ(steps_text(plan.backward), "B3:0-1, B2:0-2, B1:0-0, R0:2-2, B1:1-1, B0:0-2");
}

// "output" of layer 1 and "input" of layer 2 are one storage: the later row has the last word.
TEST(LayerStack, TheLaterRowDecidesOverABorder) {
  PlacementPolicy policy = row(1, 1, "output");
  EXPECT_EQ(LastRows(four_layers(), policy.rows).row(2, 0), 0);
  policy.rows.push_back(row(2, 2, "input", PlacementAction::kKeep).rows.front());
  EXPECT_EQ(LastRows(four_layers(), policy.rows).row(2, 0), 1);
  std::swap(policy.rows[0], policy.rows[1]);
  EXPECT_EQ(LastRows(four_layers(), policy.rows).row(2, 0), 1);
  EXPECT_EQ(LastRows(four_layers(), policy.rows).row(1, 0), LastRows::kNone);
  EXPECT_EQ(LastRows(four_layers(), policy.rows).row(2, 3), LastRows::kNone);
}

TEST(LayerStack, SelectiveModulesFreeWhatEachKindHasOfThem) {
  PlacementPlan plan = plan_of(selective({"mlp"}));
  EXPECT_EQ(steps_text(plan.forward), "F0:0-2, drop 0.1, drop 0.2, F1:0-1, F2:0-2, drop 2.1, drop 2.2, F3:0-1");
  EXPECT_EQ(steps_text(plan.backward), "B3:0-1, R2:0-2, B2:0-2, B1:0-1, R0:0-2, B0:0-2");
  plan = plan_of(selective({"moe", "act"}));
  EXPECT_EQ(steps_text(plan.forward), "F0:0-2, drop 0.2, F1:0-1, drop 1.1, F2:0-2, drop 2.2, F3:0-1, drop 3.1");
  EXPECT_EQ(steps_text(plan.backward), "R3:0-1, B3:0-1, R2:1-1, B2:0-2, R1:0-1, B1:0-1, R0:1-1, B0:0-2");
  EXPECT_EQ(forward_runs(plan, four_layers()), 1.6);  // 10 ops once, and 2 + 1 + 2 + 1 again
}

TEST(LayerStack, SegmentsGoOverLayersOfBothKinds) {
  PlacementPolicy policy;
  policy.granularity = RecomputeGranularity::kFull;
  policy.segments = 2;
  const PlacementPlan plan = plan_of(policy);
  EXPECT_EQ(steps_text(plan.forward),
            "F0:0-2, drop 0.1, drop 0.2, F1:0-1, drop 1.1, drop 1.0, F2:0-2, drop 2.1, drop 2.2, F3:0-1, drop 3.1, drop 3.0");
  EXPECT_EQ(steps_text(plan.backward), "R2:0-2, R3:0-1, B3:0-1, B2:0-2, R0:0-2, R1:0-1, B1:0-1, B0:0-2");
  policy.segments = 0;
  policy.halving = true;
  // The right half from its stored input, then the left: layers 2, 0 and, for layer 1, layer 0 before it.
  EXPECT_EQ(steps_text(plan_of(policy).backward), "B3:0-1, R2:0-2, B2:0-2, R0:0-2, drop 0.1, drop 0.2, R1:0-1, B1:0-1, R0:0-2, B0:0-2");
}

TEST(LayerStack, ANameIsValidIfAnyKindHasIt) {
  EXPECT_EQ(refusal(row(0, -1, "scores")), "");
  EXPECT_EQ(refusal(selective({"mlp"})), "");
  EXPECT_EQ(refusal(offload("scores")), "");
  EXPECT_THAT(refusal(row(0, -1, "score")), HasSubstr("found \"score\", wanted \"*\", a module or a saved tensor of a layer"));
  EXPECT_THAT(refusal(row(0, -1, "score")), HasSubstr("scores"));
  EXPECT_THAT(refusal(offload("score")), HasSubstr("scores"));
  EXPECT_THAT(refusal(selective({"layernorm"})), HasSubstr("wanted some of mlp, act, moe"));
  EXPECT_THAT(refusal(row(3, 3, "output")), HasSubstr("of the last layer"));
  EXPECT_EQ(refusal(row(2, 2, "output")), "");
  EXPECT_THAT(check_policy(row(0, 0, "scores"), four_layers(), AttentionKind::kUnfused),
              ElementsAre("placement: no layer from 0 to 0 has \"scores\": its row has no effect"));
  EXPECT_THAT(check_policy(row(0, 1, "scores"), four_layers(), AttentionKind::kUnfused), ElementsAre());
}

TEST(LayerStack, OffloadTakesTheTensorWhereALayerHasIt) {
  PlacementPlan plan = plan_of(offload("scores"));
  EXPECT_EQ(steps_text(plan.forward), "F0:0-2, F1:0-1, out 1.1, event 1.1, F2:0-2, F3:0-1, out 3.1, event 3.1");
  EXPECT_EQ(steps_text(plan.backward), "in 3.1, B3:0-1, B2:0-2, in 1.1, B1:0-1, B0:0-2");
  EXPECT_EQ(moved_text(moved_tensors(make_plan(four_layers(), {}, {}), four_layers(), offload("input"), 0)), "0.0 1.0 2.0 3.0");
  // Of layers 0 and 2 fc1 output goes when the next layer runs; layer 3 is the last.
  PlacementPolicy next = offload("fc1 output");
  next.offload.schedule.copy_out = CopyOutPlace::kNextLayer;
  EXPECT_EQ(steps_text(plan_of(next).forward), "F0:0-2, out 0.1, event 0.1, F1:0-1, F2:0-2, out 2.1, event 2.1, F3:0-1");
}

// A layer's input is read last by op 2 of a small layer, op 1 of the other; by backward op 2 and op 1.
TEST(LayerStack, OffloadPlacesOfAnotherKindAreThoseOfItsOwnTensor) {
  PlacementPolicy policy = offload("input");
  policy.offload.schedule.copy_in = CopyInPlace::kSamePlace;
  policy.offload.schedule.lookahead = 1;
  EXPECT_EQ(steps_text(plan_of(policy, four_layers().part(0, 2)).backward), "in 1.0, B1:0-0, in 0.0, B1:1-1, B0:0-2");
  // The layer with experts has no fc1 output: its own begin stands for the place.
  policy.offload.selection.names = {"fc1 output"};
  EXPECT_EQ(steps_text(plan_of(policy, four_layers().part(2, 2)).backward), "in 0.1, B1:0-1, B0:0-2");
  policy.offload.schedule.copy_in = CopyInPlace::kModuleEnd;
  EXPECT_EQ(steps_text(plan_of(policy, four_layers().part(2, 2)).backward), "in 0.1, B1:0-1, B0:0-2");
  policy.offload.schedule.release = ReleasePlace::kSamePlace;
  policy.offload.schedule.release_distance = 1;
  EXPECT_EQ(steps_text(plan_of(policy, four_layers().part(2, 2)).forward), "F0:0-2, out 0.1, free 0.1, F1:0-1");
}

TEST(LayerStack, PlanErrorsNameTheTensorOfTheLayersKind) {
  PlacementPlan plan = make_plan(four_layers(), {}, {});
  plan.forward.insert(plan.forward.begin() + 2, PlanStep{PlanVerb::kDrop, 1, 1, 1, false});
  EXPECT_THAT(plan_error(plan, four_layers()), HasSubstr("layer 1 backward \"experts backward\" reads \"scores\""));
  plan = make_plan(four_layers(), {}, {});
  plan.backward.front().last = 2;
  EXPECT_THAT(plan_error(plan, four_layers()), HasSubstr("range 0 to 2 of 2"));
}

// Per layer: saved 64, 12; parameters 100, 50; forward and backward ops 6, 4. Embedding and head add 1 op each way, 10 parameters.
TEST(LayerStack, AGraphHasEachLayersOwnOpsAndBytes) {
  StepRequest request = small_request(4);
  const BuiltStep built = build_step(request, alternating());
  EXPECT_EQ(saved_peak(built).value, 2 * kSmallLayer + 2 * kExpertsLayer);
  EXPECT_EQ(built.parameters_per_device, 10 + 2 * 100 + 2 * 50);
  EXPECT_EQ(count_ops(built.graph, "router"), 2);
  EXPECT_EQ(count_ops(built.graph, "fc1"), 2);
  std::vector<std::int64_t> saved(6, 0);  // by layer, the embedding first
  for (const SavedTensor& tensor : built.saved) saved[static_cast<std::size_t>(tensor.layer) + 1] += tensor.bytes.value;
  EXPECT_THAT(saved, ElementsAre(0, 64, 12, 64, 12, 8));  // the head's input; the batch is nobody's
  std::vector<std::int64_t> weights;
  for (const StorageId id : storages_of(built.graph, "weights")) weights.push_back(storage_of(built.graph, id).size.value);
  EXPECT_THAT(weights, ElementsAre(20, 200, 100, 200, 100));
  EXPECT_EQ(left_behind(run_step(built)), 310 * 18);  // bf16 and fp32 weights, fp32 gradients, m and v
  const PlacementPlan plan = make_plan(four_layers(), {}, {});
  EXPECT_EQ(least_graph_size(four_layers(), 3).ops, 3 * 2 * (6 + 4));
  EXPECT_EQ(graph_size(four_layers(), plan, 3).ops, 3 * 2 * (6 + 4));
  EXPECT_EQ(graph_size(four_layers(), plan, 3).bytes, least_graph_size(four_layers(), 3).bytes);
}

// Layer 1 alone is run again: its storages die in forward and are made anew.
TEST(LayerStack, ReRunsOfOneKindMakeItsStoragesAgain) {
  StepRequest request = small_request(4);
  request.placement = row(0, -1, "scores");
  const BuiltStep built = build_step(request, alternating());
  EXPECT_EQ(count_ops(built.graph, "router", built.phase_labels[2]), 2);
  EXPECT_EQ(count_ops(built.graph, "experts", built.phase_labels[2]), 0);
  // Backward starts with both scores gone; the head's input is no layer's. One is made again beside 64 + 8 + 64 + 8.
  EXPECT_EQ(saved_peak(built).value, 2 * kSmallLayer + 2 * 8 + 4);
  for (const SavedTensor& tensor : built.saved) {
    if (tensor.name != "scores") continue;
    EXPECT_EQ(tensor.placement, "recompute");
    EXPECT_EQ(tensor.storages.size(), 2u);
  }
}

// Routed experts' parameters lie behind the others, in weights and gradients.
TEST(LayerStack, ExpertsLieBehindTheOthers) {
  const BuiltStep built = build_step(small_request(2), two_kinds({1, 1}));
  const OpId router = ops_of(built.graph, "router backward").front(), experts = ops_of(built.graph, "experts backward").front();
  const auto gradient = [&](OpId op) {
    for (const Tensor& tensor : built.graph.writes(op)) {
      if (storage_of(built.graph, tensor.storage).live_at_end) return tensor;
    }
    return Tensor{};
  };
  EXPECT_EQ(gradient(router).offset, Bytes(0));
  EXPECT_EQ(gradient(router).size, Bytes(120));
  EXPECT_EQ(gradient(experts).offset, Bytes(120));
  EXPECT_EQ(gradient(experts).storage, gradient(router).storage);
}

// Stages of a pipeline take their layers' own kinds: of 4 layers on 2 stages, kinds 0 0 | 1 1.
TEST(LayerStack, PipelineStagesHaveTheirOwnKinds) {
  const BuiltStep built = build_step(staged_request(4, 2, 2), two_kinds({0, 0, 1, 1}));
  EXPECT_EQ(ops_of(built.graph, "fc1", DeviceId{0}).size(), 4u);
  EXPECT_TRUE(ops_of(built.graph, "fc1", DeviceId{1}).empty());
  EXPECT_EQ(ops_of(built.graph, "router", DeviceId{1}).size(), 4u);
  EXPECT_THAT(built.parameters_of_stage, ElementsAre(10 + 2 * 100, 2 * 50));
  for (const SavedTensor& tensor : built.saved) {
    if (tensor.layer != 2 || tensor.name != "input") continue;
    EXPECT_EQ(tensor.op, "fc2");  // made by the layer before, of the other kind
  }
}

// Products of 4 and 12 FLOPs: 8 in the average of two layers, so a re-run of the second counts 1.5. A part counts by the same average.
TEST(LayerStack, ReRunsAreWeighedByTheLayersOwnWork) {
  StepTemplates templates = two_kinds({0, 1});
  templates.kinds[0].forward[0].work = Gemm{.m = 1, .n = 1, .k = 2};
  templates.kinds[1].forward[0].work = Gemm{.m = 1, .n = 1, .k = 6};
  const LayerStack stack = layer_stack(templates, 2);
  PlacementPolicy policy;
  policy.granularity = RecomputeGranularity::kFull;
  EXPECT_EQ(rerun_of_plan(make_plan(stack, policy, {}), stack).layer_matrices, 2);
  EXPECT_EQ(rerun_of_plan(make_plan(stack.part(1, 1), policy, {}), stack.part(1, 1)).layer_matrices, 1.5);
  EXPECT_EQ(rerun_of_plan(make_plan(stack.part(0, 1), policy, {}), stack.part(0, 1)).layer_matrices, 0.5);
}

// A layer's weight of the name of the embedding's is the embedding's: no parameters of its own, gradients added to the same place.
TEST(LayerStack, ALayerMayShareTheEmbeddingsTable) {
  StepTemplates templates = two_kinds({0, 1});
  LayerTemplate& experts = templates.kinds[1];
  experts.slots.push_back(small_slot("table", SlotKind::kWeight, 20));                   // 10
  experts.slots.push_back(small_slot("table gradient", SlotKind::kWeightGradient, 40));  // 11
  experts.forward[0].reads.push_back(10);
  experts.backward[1].updates.push_back(11);
  const BuiltStep built = build_step(small_request(2), templates);
  EXPECT_EQ(built.parameters_per_device, 10 + 100 + 50);
  const OpGraph& graph = built.graph;
  const StorageId table = storages_of(graph, "weights").front(), gradients = storages_of(graph, "main gradients").front();
  const auto touches = [](std::span<const Tensor> tensors, StorageId storage) {
    return std::any_of(tensors.begin(), tensors.end(), [&](const Tensor& tensor) { return tensor.storage == storage; });
  };
  EXPECT_TRUE(touches(graph.reads(ops_of(graph, "embedding").front()), table));
  EXPECT_TRUE(touches(graph.reads(ops_of(graph, "router").front()), table));
  EXPECT_TRUE(touches(graph.writes(ops_of(graph, "router backward").front()), gradients));
  EXPECT_TRUE(touches(graph.writes(ops_of(graph, "embedding backward").front()), gradients));
  // On another stage than the embedding it has a copy.
  EXPECT_THAT(build_step(staged_request(2, 2, 2), templates).parameters_of_stage, ElementsAre(10 + 100, 50 + 10));
}

TEST(SharedSlot, OneStorageForAllItsReaders) {
  StepRequest request = small_request(5);
  request.training.global_batch = 2;
  const BuiltStep built = build_step(request, encoder_decoder());
  const StepResult result = run_step(built);
  const std::vector<StorageId> outputs = storages_of(built.graph, "encoder output");
  ASSERT_EQ(outputs.size(), 2u);  // one a micro-batch
  EXPECT_EQ(life_of(built.graph, result, outputs[0]), (Life{"forward L2 encoder end mb0", "backward L2 first backward mb0"}));
  EXPECT_EQ(life_of(built.graph, result, outputs[1]), (Life{"forward L2 encoder end mb1", "backward L2 first backward mb1"}));
  for (const OpId op : ops_of(built.graph, "cross")) {
    const auto reads = built.graph.reads(op);
    const bool reads_it = std::any_of(reads.begin(), reads.end(), [&](const Tensor& tensor) {
      return tensor.storage == outputs[static_cast<std::size_t>(built.graph.op(op).micro_batch)];
    });
    EXPECT_TRUE(reads_it);
  }
  // Two small layers, the maker's input and what it makes, two readers' inputs.
  EXPECT_EQ(saved_peak(built).value, 2 * kSmallLayer + 8 + 24 + 2 * 8);
  EXPECT_EQ(
      std::count_if(built.saved.begin(), built.saved.end(), [](const SavedTensor& tensor) { return tensor.name == "encoder output"; }), 1);
  EXPECT_EQ(left_behind(result), (10 + 2 * 100 + 3 * 10) * 18);
}

// The last layer is the first to add to it: it only writes. The others add; the layer that made the output reads the sum.
TEST(SharedSlot, TheFirstToAddMakesTheGradient) {
  const BuiltStep built = build_step(small_request(5), encoder_decoder());
  const OpGraph& graph = built.graph;
  const std::vector<StorageId> gradients = storages_of(graph, "encoder output gradient");
  ASSERT_EQ(gradients.size(), 1u);
  EXPECT_EQ(life_of(graph, run_step(built), gradients[0]), (Life{"backward L4 cross backward", "backward L2 encoder end backward"}));
  EXPECT_EQ(graph.label(storage_of(graph, gradients[0]).role), "activation_gradients");
  const auto uses = [&](OpId op) {
    const auto has = [&](std::span<const Tensor> tensors) {
      return std::any_of(tensors.begin(), tensors.end(), [&](const Tensor& tensor) { return tensor.storage == gradients[0]; });
    };
    return std::string(has(graph.reads(op)) ? "r" : "") + (has(graph.writes(op)) ? "w" : "");
  };
  const std::vector<OpId> cross = ops_of(graph, "cross backward");
  EXPECT_EQ(graph.op(cross[0]).layer, 4);
  EXPECT_EQ(uses(cross[0]), "w");
  EXPECT_EQ(uses(cross[1]), "rw");
  EXPECT_EQ(uses(ops_of(graph, "first backward").front()), "rw");
  EXPECT_EQ(uses(ops_of(graph, "encoder end backward").front()), "r");
  EXPECT_TRUE(find_cycle(graph).empty());
}

TEST(SharedSlot, ItsMakerIsNotRunAgain) {
  const StepTemplates templates = encoder_decoder();
  const LayerStack stack = layer_stack(templates, 5);
  PlacementPolicy policy;
  policy.granularity = RecomputeGranularity::kFull;
  EXPECT_EQ(refusal(policy, stack),
            "--recompute: found full recompute of layer 2, which makes \"encoder output\" for other layers and cannot be run again, wanted "
            "--recompute selective, or --recompute-method block with at most 2 layers");
  policy.method = RecomputeMethod::kBlock;
  policy.num_layers = 3;
  EXPECT_THAT(refusal(policy, stack), HasSubstr("layer 2, which makes"));
  policy.num_layers = 2;
  EXPECT_EQ(refusal(policy, stack), "");
  EXPECT_EQ(steps_text(plan_of(policy, stack).backward), "B4:0-0, B3:0-0, B2:0-1, R1:0-2, B1:0-2, R0:0-2, B0:0-2");
  policy = {};
  policy.segments = 2;
  EXPECT_THAT(refusal(policy, stack), HasSubstr("--recompute-segments: found full recompute of layer 2"));
  // It is kept, whatever modules and rows say of what is around it.
  EXPECT_EQ(steps_text(plan_of(selective({"layernorm"}), stack).forward), "F0:0-2, F1:0-2, F2:0-1, F3:0-0, F4:0-0");
  EXPECT_THAT(refusal(row(2, 2, "encoder output"), stack), HasSubstr("which other layers read too and is always kept"));
  EXPECT_EQ(moved_text(moved_tensors(make_plan(stack, {}, {}), stack, offload("*"), 0)), "0.0 0.1 0.2 1.0 1.1 1.2 2.0 3.0 4.0");
}

TEST(SharedSlot, ItIsMadeBeforeItIsRead) {
  StepTemplates templates = encoder_decoder();
  templates.kind_of = {2, 1};
  const LayerStack reversed = layer_stack(templates, 2);
  EXPECT_THAT(plan_error(make_plan(reversed, {}, {}), reversed),
              HasSubstr("layer 0 \"cross\" reads \"encoder output\", which no layer has made"));
  templates.kinds[1].backward[0].updates = {7};
  templates.kind_of = {1};
  const LayerStack alone = layer_stack(templates, 1);
  EXPECT_THAT(plan_error(make_plan(alone, {}, {}), alone), HasSubstr("reads \"encoder output gradient\", which no layer has made"));
}

TEST(SharedSlot, PipelinesAreRefused) {
  EXPECT_THAT(refusal([] { build_step(staged_request(5, 5, 5), encoder_decoder()); }),
              HasSubstr("--pp: found 5, wanted 1: \"encoder output\" is read by layers of other stages"));
}

}  // namespace
}  // namespace stepsim
