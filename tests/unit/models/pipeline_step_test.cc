#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "sim/input_error.h"
#include "sim/metrics.h"
#include "tests/unit/models/small_step.h"

namespace stepsim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

constexpr std::int64_t kReceived = 8;  // bytes of the small layer's input, output and their gradients

bool is_weight_gradient(std::string_view kind) { return kind.find("weight gradient") != std::string_view::npos; }

// The passes that a device runs, as runs of compute ops of one phase and micro-batch: "F0 F1 B0 W0". W: the layers' weight gradients where
// they are ops of their own. The embedding's gradient may belong to either kind of backward pass and is left out.
std::string passes_of(const BuiltStep& built, std::int32_t device) {
  const OpGraph& graph = built.graph;
  std::string all, last;
  for (const OpId id : compute_ops(graph, DeviceId{device})) {
    const Op& op = graph.op(id);
    if (op.micro_batch < 0) continue;
    const std::string_view kind = graph.label(op.kind);
    if (kind == "embedding backward") continue;
    const bool put_off = is_weight_gradient(kind) || kind == "fc1 input gather";
    const std::string pass = (op.phase == built.phase_labels[0] ? "F" : put_off ? "W" : "B") + std::to_string(op.micro_batch);
    if (pass != last) all += (all.empty() ? "" : " ") + pass;
    last = pass;
  }
  return all;
}

// Kinds of the compute ops of one pass of a device.
std::vector<std::string> ops_of_pass(const BuiltStep& built, std::int32_t device, Phase phase, std::int32_t micro_batch) {
  std::vector<std::string> kinds;
  for (const OpId id : compute_ops(built.graph, DeviceId{device})) {
    const Op& op = built.graph.op(id);
    if (op.micro_batch != micro_batch || op.phase != built.phase_labels[static_cast<std::size_t>(phase)]) continue;
    kinds.emplace_back(built.graph.label(op.kind));
  }
  return kinds;
}

std::vector<std::string> op_names(const OpGraph& graph) {
  std::vector<std::string> names;
  for (std::int32_t op = 0; op < static_cast<std::int32_t>(graph.ops().size()); ++op) names.push_back(graph.op_name(OpId{op}));
  std::sort(names.begin(), names.end());
  return names;
}

std::int64_t resident_bytes(const OpGraph& graph, DeviceId device) {
  std::int64_t bytes = 0;
  for (const Storage& storage : graph.storages()) bytes += storage.live_at_end && storage.device == device ? storage.size.value : 0;
  return bytes;
}

std::int64_t bytes_at_end(const OpGraph& graph, const StepResult& result, DeviceId device) {
  std::int64_t bytes = 0;
  for (const MemoryEvent& event : result.memory) bytes += storage_of(graph, event.storage).device == device ? event.bytes.value : 0;
  return bytes;
}

Bytes peak_of_label(const BuiltStep& built, std::string_view role, std::int32_t device) {
  for (const Storage& storage : built.graph.storages()) {
    if (built.graph.label(storage.role) != role) continue;
    return peak_of_roles(built.graph, run_step(built), DeviceId{device}, std::span(&storage.role, 1));
  }
  return {};
}

// Kernels take 1 us, transfers and other collectives none.
class FreeTransfers : public CostModel {
 public:
  Cost cost(const OpWork& work, DeviceId, TransferSide) const override {
    const bool kernel = op_class(work) == OpClass::kCompute;
    return {.fixed = Duration(kernel ? 1'000'000 : 0), .alone = {}, .issue = {}, .loads = {}};
  }
};

TEST(PipelineStep, StagesRunTheirLayersInTheOrderOfTheSchedule) {
  const BuiltStep built = build_step(staged_request(2, 2, 4), small_templates());
  EXPECT_EQ(built.graph.device_count(), 2);
  // One warm-up pass on stage 0 of 2, none on stage 1.
  EXPECT_EQ(passes_of(built, 0), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(passes_of(built, 1), "F0 B0 F1 B1 F2 B2 F3 B3");
  EXPECT_THAT(ops_of_pass(built, 0, Phase::kForward, 2), ElementsAre("embedding", "fc1", "act", "fc2"));
  EXPECT_THAT(ops_of_pass(built, 0, Phase::kBackward, 2),
              ElementsAre("fc2 backward", "act backward", "fc1 backward", "embedding backward"));
  EXPECT_THAT(ops_of_pass(built, 1, Phase::kForward, 2), ElementsAre("fc1", "act", "fc2", "loss"));
  EXPECT_THAT(ops_of_pass(built, 1, Phase::kBackward, 2), ElementsAre("loss backward", "fc2 backward", "act backward", "fc1 backward"));
  EXPECT_EQ(layers_on(built, 0, Phase::kForward), std::set<std::int32_t>{0});
  EXPECT_EQ(layers_on(built, 1, Phase::kBackward), std::set<std::int32_t>{1});
  EXPECT_THAT(built.parameters_of_stage, ElementsAre(110, 100));
  EXPECT_EQ(built.parameters_per_device, 110);
}

// Both stages have four ops of 1 us each way, so T = (m + p - 1)(F + B) = 5 x 8 us until the last backward pass of stage 0.
TEST(PipelineStep, TakesTheTimeOfTheClosedForm) {
  for (const PipelineKind schedule : {PipelineKind::kGPipe, PipelineKind::k1F1B}) {
    for (const PointToPoint mode : {PointToPoint::kBlocking, PointToPoint::kBatched, PointToPoint::kOverlapped}) {
      StepRequest request = staged_request(2, 2, 4, schedule);
      request.parallel.point_to_point = mode;
      const BuiltStep built = build_step(request, small_templates());
      const StepResult result = simulate(built.graph, plain_machine(2), FreeTransfers());
      const std::vector<OpRun> runs = runs_by_op(built.graph, result);
      const OpId last = ops_of(built.graph, "embedding backward").back();
      EXPECT_EQ(runs[static_cast<std::size_t>(last.index)].end.count(), 40'000'000) << pipeline_name(schedule) << point_to_point_name(mode);
    }
  }
}

// In flight: min(p - s, m) micro-batches (spec/placement_and_memory.md section 4), each 64 bytes of its stage's one layer: what is received
// is that layer's saved input. Where receives are posted early the next one is there already.
TEST(PipelineStep, SavedActivationsAreThoseInFlight) {
  StepRequest request = staged_request(2, 2, 4);
  for (const PointToPoint mode : {PointToPoint::kBlocking, PointToPoint::kBatched}) {
    request.parallel.point_to_point = mode;
    const BuiltStep built = build_step(request, small_templates());
    EXPECT_EQ(saved_peak(built, 0).value, 2 * kSmallLayer);
    EXPECT_EQ(saved_peak(built, 1).value, kSmallLayer);
  }
  request.parallel.point_to_point = PointToPoint::kOverlapped;
  const BuiltStep built = build_step(request, small_templates());
  EXPECT_EQ(saved_peak(built, 0).value, 2 * kSmallLayer);
  EXPECT_EQ(saved_peak(built, 1).value, kSmallLayer + kReceived);  // posted when the forward pass before is launched
  request.parallel.schedule = PipelineKind::kGPipe;
  const BuiltStep gpipe = build_step(request, small_templates());
  EXPECT_EQ(saved_peak(gpipe, 0).value, 4 * kSmallLayer);
  EXPECT_EQ(saved_peak(gpipe, 1).value, 4 * kSmallLayer);
}

TEST(PipelineStep, WhatIsReceivedIsTheFirstLayersInput) {
  const BuiltStep built = build_step(staged_request(2, 2, 2), small_templates());
  const OpGraph& graph = built.graph;
  const StepResult result = run_step(built);
  const std::vector<OpId> sends = ops_of(graph, "send forward");
  ASSERT_EQ(sends.size(), 2u);
  const StorageId input = graph.writes(sends.front()).front().storage;
  EXPECT_EQ(device_of(graph, sends.front()), DeviceId{1});  // its first part receives
  EXPECT_EQ(device_of(graph, graph.parts(sends.front())[1]), DeviceId{0});
  EXPECT_EQ(graph.storage_name(input), "input L1 mb0");
  EXPECT_EQ(graph.label(storage_of(graph, input).role), kSavedActivations);
  EXPECT_EQ(storage_of(graph, input).device, DeviceId{1});
  EXPECT_EQ(storage_of(graph, input).size.value, kReceived);
  EXPECT_EQ(life_of(graph, result, input), (Life{"forward send forward mb0", "backward L1 fc1 backward mb0"}));
  const Collective& work = std::get<Collective>(graph.work(sends.front()));
  EXPECT_EQ(work.kind, CollectiveKind::kSendReceive);
  EXPECT_EQ(work.message.value, kReceived);
  EXPECT_EQ(work.ranks, 2);
}

TEST(PipelineStep, GradientsDieWithTheirLastReaderAndWhenTheyAreSent) {
  const BuiltStep built = build_step(staged_request(2, 2, 2), small_templates());
  const OpGraph& graph = built.graph;
  const StepResult result = run_step(built);
  const std::vector<OpId> sends = ops_of(graph, "send backward");
  ASSERT_EQ(sends.size(), 2u);
  const StorageId received = graph.writes(sends.front()).front().storage;
  EXPECT_EQ(storage_of(graph, received).device, DeviceId{0});
  EXPECT_EQ(graph.bucket(storage_of(graph, received).role), static_cast<std::int32_t>(Role::kActivationGradients));
  EXPECT_EQ(life_of(graph, result, received), (Life{"backward send backward mb0", "backward L0 fc2 backward mb0"}));
  const StorageId sent = graph.writes(ops_of(graph, "fc1 backward", DeviceId{1}).front()).back().storage;
  EXPECT_EQ(life_of(graph, result, sent), (Life{"backward L1 fc1 backward mb0", "backward sent mb0"}));
  EXPECT_EQ(graph.bucket(storage_of(graph, sent).role), static_cast<std::int32_t>(Role::kActivationGradients));
}

// Outside the layers on stage 0: the token ids (3 bytes), which the embedding's backward reads, of two micro-batches in flight, and one
// output (8) where it is freed when it is sent; two where it is kept until its backward pass returns.
TEST(PipelineStep, OutputsAreFreedWhenTheyAreSentOrWithTheirBackwardPass) {
  StepRequest request = staged_request(2, 2, 4);
  request.parallel.deallocate_outputs = true;
  const BuiltStep freed = build_step(request, small_templates());
  request.parallel.deallocate_outputs = false;
  const BuiltStep kept = build_step(request, small_templates());
  const auto life_of_output = [](const BuiltStep& built) {
    const StorageId output = built.graph.writes(ops_of(built.graph, "fc2", DeviceId{0}).front()).front().storage;
    EXPECT_EQ(built.graph.storage_name(output), "output L0 mb0");
    return life_of(built.graph, run_step(built), output);
  };
  EXPECT_EQ(life_of_output(freed), (Life{"forward L0 fc2 mb0", "forward sent mb0"}));
  EXPECT_EQ(life_of_output(kept), (Life{"forward L0 fc2 mb0", "backward embedding backward mb0"}));
  EXPECT_EQ(peak_of_label(freed, kOtherActivations, 0).value, kReceived + 2 * 3);
  EXPECT_EQ(peak_of_label(kept, kOtherActivations, 0).value, 2 * (kReceived + 3));
}

TEST(PipelineStep, StagesHoldTheirOwnResidents) {
  StepRequest request = staged_request(3, 2, 2);
  request.parallel.split.first_stage_layers = 2;
  request.workspaces.other = Bytes(1000);
  const BuiltStep built = build_step(request, small_templates());
  const StepResult result = run_step(built);
  // bf16: 18 bytes a parameter; the embedding has 10, a layer 100.
  EXPECT_EQ(resident_bytes(built.graph, DeviceId{0}), 210 * 18 + 1000);
  EXPECT_EQ(resident_bytes(built.graph, DeviceId{1}), 100 * 18 + 1000);
  for (const std::int32_t device : {0, 1}) {
    EXPECT_EQ(bytes_at_end(built.graph, result, DeviceId{device}), resident_bytes(built.graph, DeviceId{device}));
  }
  EXPECT_THAT(built.parameters_of_stage, ElementsAre(210, 100));
}

struct ScheduleCase {
  PipelineKind schedule;
  std::int32_t chunks;
  PointToPoint mode;
};

std::vector<ScheduleCase> schedule_cases() {
  std::vector<ScheduleCase> cases;
  for (const PointToPoint mode : {PointToPoint::kBlocking, PointToPoint::kBatched, PointToPoint::kOverlapped}) {
    for (const auto& [schedule, chunks] : {std::pair(PipelineKind::kGPipe, 1), std::pair(PipelineKind::k1F1B, 1),
                                           std::pair(PipelineKind::kInterleaved, 2), std::pair(PipelineKind::kZbH1, 1)}) {
      cases.push_back({schedule, chunks, mode});
    }
  }
  return cases;
}

// Once: every op of every layer and micro-batch. In order: a layer runs forward behind the layer before, backward behind the one behind.
void expect_all_layers_in_order(const BuiltStep& built, const StepResult& result, std::int32_t layers, std::int32_t micro_batches) {
  const OpGraph& graph = built.graph;
  std::map<std::tuple<std::int32_t, std::int32_t, std::string>, std::vector<OpRun>> runs;
  for (const OpRun& run : result.timeline) {
    const Op& op = graph.op(run.op);
    if (op.micro_batch >= 0) runs[{op.layer, op.micro_batch, std::string(graph.label(op.kind))}].push_back(run);
  }
  for (std::int32_t batch = 0; batch < micro_batches; ++batch) {
    for (std::int32_t layer = 0; layer < layers; ++layer) {
      for (const char* kind : {"fc1", "act", "fc2", "fc2 input gradient", "fc2 weight gradient", "act backward", "fc1 input gradient",
                               "fc1 input gather", "fc1 weight gradient"}) {
        ASSERT_EQ((runs[{layer, batch, kind}].size()), 1u) << kind << " of layer " << layer << " and micro-batch " << batch;
      }
      if (layer == 0) continue;
      EXPECT_GE((runs[{layer, batch, "fc1"}][0].start), (runs[{layer - 1, batch, "fc2"}][0].end));
      EXPECT_GE((runs[{layer - 1, batch, "fc2 input gradient"}][0].start), (runs[{layer, batch, "fc1 input gradient"}][0].end));
    }
    for (const char* kind : {"embedding", "loss", "loss backward", "embedding backward"}) {
      ASSERT_EQ((runs[{-1, batch, kind}].size()), 1u) << kind;
    }
    EXPECT_GE((runs[{layers - 1, batch, "fc2 input gradient"}][0].start), (runs[{-1, batch, "loss backward"}][0].end));
  }
}

TEST(PipelineStep, EverySchedulesStepRunsWhicheverWayItTransfers) {
  constexpr std::int32_t kStages = 4, kLayers = 8, kMicroBatches = 8;
  for (const ScheduleCase& each : schedule_cases()) {
    SCOPED_TRACE(std::string(pipeline_name(each.schedule)) + " " + std::string(point_to_point_name(each.mode)));
    StepRequest request = staged_request(kLayers, kStages, kMicroBatches, each.schedule, each.chunks);
    request.parallel.point_to_point = each.mode;
    for (const bool deallocates : {true, false}) {
      request.parallel.deallocate_outputs = deallocates;
      const BuiltStep built = build_step(request, split_templates());
      EXPECT_TRUE(find_cycle(built.graph).empty());
      const StepResult result = run_step(built);
      ASSERT_FALSE(result.deadlock.has_value());
      EXPECT_EQ(result.timeline.size(), built.graph.ops().size());
      expect_all_layers_in_order(built, result, kLayers, kMicroBatches);
      // All parts are on other stages than their neighbours: p v - 1 borders, crossed both ways by every micro-batch.
      EXPECT_EQ(count_ops(built.graph, "send forward"), kMicroBatches * (kStages * each.chunks - 1));
      EXPECT_EQ(count_ops(built.graph, "send backward"), kMicroBatches * (kStages * each.chunks - 1));
      EXPECT_EQ(time_partition(built.graph, result, built.phases).total().count(), result.end.count());
      for (std::int32_t device = 0; device < kStages; ++device) {
        EXPECT_EQ(bytes_at_end(built.graph, result, DeviceId{device}), resident_bytes(built.graph, DeviceId{device}));
      }
    }
  }
}

TEST(PipelineStep, TheHostWaitsForExchangesThatDoNotOverlap) {
  StepRequest request = staged_request(2, 2, 2);
  const auto hosts_wait = [&] {
    std::int64_t waits = 0;
    const BuiltStep built = build_step(request, small_templates());
    for (std::int32_t op = 0; op < static_cast<std::int32_t>(built.graph.ops().size()); ++op) {
      for (const OpId before : built.graph.issue_after(OpId{op})) {
        waits += built.graph.label(built.graph.op(before).kind).substr(0, 4) == "send" ? 1 : 0;
      }
    }
    return waits;
  };
  request.framework.waits_after_exchange = true;
  // Stage 0: F0 F1 B0 B1. Of its exchanges, that after F0 sends F0 (waited for by F1), that after F1 sends F1 and receives B0 (B0), that
  // after B0 receives B1 (B1): 4. Stage 1: F0 B0 F1 B1: receives F0 (F0), sends B0 and receives F1 (F1); B1's send is waited for by
  // nobody: 3.
  EXPECT_EQ(hosts_wait(), 7);
  request.framework.waits_after_exchange = false;
  EXPECT_EQ(hosts_wait(), 0);
  request.framework.waits_after_exchange = true;
  request.parallel.point_to_point = PointToPoint::kOverlapped;
  EXPECT_EQ(hosts_wait(), 0);
}

TEST(PipelineStep, InterleavedStagesHoldChunks) {
  StepRequest request = staged_request(4, 2, 2, PipelineKind::kInterleaved, 2);
  const BuiltStep built = build_step(request, small_templates());
  // Part = chunk x stages + stage: layers 0 and 2 on stage 0, 1 and 3 on stage 1.
  EXPECT_EQ(layers_on(built, 0, Phase::kForward), (std::set<std::int32_t>{0, 2}));
  EXPECT_EQ(layers_on(built, 1, Phase::kForward), (std::set<std::int32_t>{1, 3}));
  // One forward of micro-batch 0: the embedding and layer 0, layer 2 of the second chunk.
  EXPECT_THAT(ops_of_pass(built, 0, Phase::kForward, 0), ElementsAre("embedding", "fc1", "act", "fc2", "fc1", "act", "fc2"));
  EXPECT_THAT(ops_of_pass(built, 1, Phase::kForward, 0), ElementsAre("fc1", "act", "fc2", "fc1", "act", "fc2", "loss"));
  EXPECT_THAT(built.parameters_of_stage, ElementsAre(210, 200));
  // Rank 0 holds min(2 (p - 1) + (v - 1) p + 1, m v) = min(5, 4) chunk passes of one layer; rank 1 min(3, 4).
  request.parallel.point_to_point = PointToPoint::kBatched;
  const BuiltStep batched = build_step(request, small_templates());
  EXPECT_EQ(saved_peak(batched, 0).value, 4 * kSmallLayer);
  EXPECT_EQ(saved_peak(batched, 1).value, 3 * kSmallLayer);
}

// ZB-H1 with p 2, m 3 (spec/engine.md section 7): stage 0 runs F0 F1 B0 W0 F2 B1 W1 B2 W2, stage 1 puts each W off by one micro-batch.
TEST(PipelineStep, ZeroBubblePutsWeightGradientsIntoPassesOfTheirOwn) {
  StepRequest request = staged_request(2, 2, 3, PipelineKind::kZbH1);
  const BuiltStep built = build_step(request, split_templates());
  const OpGraph& graph = built.graph;
  EXPECT_EQ(passes_of(built, 0), "F0 F1 B0 W0 F2 B1 W1 B2 W2");
  EXPECT_EQ(passes_of(built, 1), "F0 B0 F1 B1 W0 F2 B2 W1 W2");
  EXPECT_THAT(ops_of_pass(built, 1, Phase::kBackward, 0),
              ElementsAre("loss backward", "fc2 input gradient", "act backward", "fc1 input gradient", "fc2 weight gradient",
                          "fc1 input gather", "fc1 weight gradient"));
  // What weight gradients read lives until then, the rest until its input gradient.
  const StepResult result = run_step(built);
  const auto death = [&](std::string_view name) { return life_of(graph, result, storages_of(graph, name, DeviceId{1}).front()).dead; };
  EXPECT_EQ(death("input"), "backward L1 fc1 input gather mb0");
  EXPECT_EQ(death("fc1 output"), "backward L1 act backward mb0");
  EXPECT_EQ(death("act output"), "backward L1 fc2 weight gradient mb0");
  EXPECT_EQ(death("fc1 gradient"), "backward L1 fc1 weight gradient mb0");
  EXPECT_EQ(death("act gradient"), "backward L1 act backward mb0");
  // Stage 0 holds two micro-batches of 64 bytes. Stage 1: F1 comes before W0, of which input and act output (24) wait: 24 + 64.
  EXPECT_EQ(saved_peak(built, 0).value, 2 * kSmallLayer);
  EXPECT_EQ(saved_peak(built, 1).value, kSmallLayer + 24);
}

TEST(PipelineStep, ZeroBubbleRunsTheOpsOf1F1B) {
  for (const bool recomputes : {false, true}) {
    StepRequest request = staged_request(4, 2, 3, PipelineKind::kZbH1);
    if (recomputes) request.placement.granularity = RecomputeGranularity::kFull;
    const BuiltStep zero_bubble = build_step(request, split_templates());
    request.parallel.schedule = PipelineKind::k1F1B;
    const BuiltStep usual = build_step(request, split_templates());
    EXPECT_EQ(op_names(zero_bubble.graph), op_names(usual.graph));
    EXPECT_FALSE(run_step(zero_bubble).deadlock.has_value());
  }
}

// A template whose weight gradients are made with the input gradients has nothing to put off but the embedding's.
TEST(PipelineStep, ZeroBubbleLeavesJointBackwardOpsWhereTheyAre) {
  const BuiltStep built = build_step(staged_request(2, 2, 3, PipelineKind::kZbH1), small_templates());
  EXPECT_EQ(passes_of(built, 1), "F0 B0 F1 B1 F2 B2");
  EXPECT_THAT(ops_of_pass(built, 1, Phase::kBackward, 0), ElementsAre("loss backward", "fc2 backward", "act backward", "fc1 backward"));
}

TEST(PipelineStep, RealModelsRunUnderEveryScheduleAndPolicy) {
  std::vector<PlacementPolicy> policies(4);
  policies[1].granularity = RecomputeGranularity::kFull;
  policies[2].granularity = RecomputeGranularity::kSelective;
  policies[3].halving = true;
  for (const ScheduleCase& each : schedule_cases()) {
    for (const char* framework : {"megatron-lm@2022-05", "megatron-core@2025", "torchtitan@2024-12"}) {
      for (const std::int32_t tensor : {1, 2}) {
        StepRequest request;
        request.model = load_model("gpt2-124m");
        request.framework = load_framework(framework);
        request.training.sequence = 1024;
        request.training.global_batch = 4;
        request.parallel = {.tensor = tensor, .pipeline = 2, .virtual_stages = each.chunks, .schedule = each.schedule};
        request.parallel.point_to_point = each.mode;
        for (std::size_t policy = 0; policy < policies.size(); ++policy) {
          SCOPED_TRACE(std::string(pipeline_name(each.schedule)) + " " + std::string(point_to_point_name(each.mode)) + " " + framework +
                       " tp " + std::to_string(tensor) + " policy " + std::to_string(policy));
          request.placement = policies[policy];
          const BuiltStep built = build_step(request);
          EXPECT_TRUE(find_cycle(built.graph).empty());
          const StepResult result = run_step(built);
          ASSERT_FALSE(result.deadlock.has_value());
          EXPECT_EQ(result.timeline.size(), built.graph.ops().size());
          EXPECT_EQ(time_partition(built.graph, result, built.phases).total().count(), result.end.count());
          for (const std::int32_t device : {0, 1}) {
            EXPECT_EQ(bytes_at_end(built.graph, result, DeviceId{device}), resident_bytes(built.graph, DeviceId{device}));
          }
        }
      }
    }
  }
}

TEST(PipelineStep, EmbeddingAndHeadMayHaveStagesOfTheirOwn) {
  for (const PipelineKind schedule : {PipelineKind::kGPipe, PipelineKind::k1F1B, PipelineKind::kZbH1}) {
    SCOPED_TRACE(pipeline_name(schedule));
    for (const bool deallocates : {true, false}) {
      StepRequest request = staged_request(4, 4, 3, schedule);
      request.parallel.split.layout = "E|t*2|t*2|L";
      request.parallel.deallocate_outputs = deallocates;
      const BuiltStep built = build_step(request, split_templates());
      EXPECT_THAT(built.parameters_of_stage, ElementsAre(10, 200, 200, 0));
      EXPECT_THAT(ops_of_pass(built, 0, Phase::kForward, 1), ElementsAre("embedding"));
      EXPECT_THAT(ops_of_pass(built, 0, Phase::kBackward, 1), ElementsAre("embedding backward"));
      EXPECT_THAT(ops_of_pass(built, 3, Phase::kForward, 1), ElementsAre("loss"));
      EXPECT_THAT(ops_of_pass(built, 3, Phase::kBackward, 1), ElementsAre("loss backward"));
      EXPECT_EQ(layers_on(built, 1, Phase::kForward), (std::set<std::int32_t>{0, 1}));
      EXPECT_EQ(layers_on(built, 2, Phase::kBackward), (std::set<std::int32_t>{2, 3}));
      EXPECT_TRUE(find_cycle(built.graph).empty());
      const StepResult result = run_step(built);
      ASSERT_FALSE(result.deadlock.has_value());
      expect_all_layers_in_order(built, result, 4, 3);
      EXPECT_EQ(count_ops(built.graph, "gradient norm all-reduce"), 1);
      // The embedding's output is layer 0's input on another stage; what the head alone reads is no layer's.
      EXPECT_EQ(saved_peak(built, 0).value, 0);
      EXPECT_EQ(saved_peak(built, 3).value, 0);
    }
  }
}

TEST(PipelineStep, LayersAreSplitAsOneSays) {
  StepRequest request = staged_request(6, 3, 3);
  request.parallel.split.layout = "Ettt|t|ttL";
  const BuiltStep built = build_step(request, small_templates());
  EXPECT_EQ(layers_on(built, 0, Phase::kForward), (std::set<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(layers_on(built, 1, Phase::kForward), (std::set<std::int32_t>{3}));
  EXPECT_EQ(layers_on(built, 2, Phase::kBackward), (std::set<std::int32_t>{4, 5}));
  request.parallel.split = {.layout = {}, .first_stage_layers = 1, .last_stage_layers = 2};
  const BuiltStep ends = build_step(request, small_templates());
  EXPECT_EQ(layers_on(ends, 0, Phase::kForward), (std::set<std::int32_t>{0}));
  EXPECT_EQ(layers_on(ends, 1, Phase::kBackward), (std::set<std::int32_t>{1, 2, 3}));
  EXPECT_EQ(layers_on(ends, 2, Phase::kForward), (std::set<std::int32_t>{4, 5}));
  for (const SavedTensor& tensor : ends.saved) {
    if (tensor.layer < 0 || tensor.layer > 5) continue;
    EXPECT_EQ(tensor.stage, tensor.layer == 0 ? 0 : tensor.layer < 4 ? 1 : 2) << tensor.layer;
  }
  EXPECT_EQ(ends.saved.size(), 6u * 3u + 1u);  // three of each layer and the head's input
}

// A received input is what the stage before made: explain names its op.
TEST(PipelineStep, SavedTensorsAreListedInTheOrderOfTheModel) {
  const BuiltStep built = build_step(staged_request(4, 2, 2, PipelineKind::kInterleaved, 2), small_templates());
  std::vector<std::string> inputs;
  std::int32_t last = -1;
  for (const SavedTensor& tensor : built.saved) {
    EXPECT_GE(tensor.layer, last);
    last = tensor.layer;
    EXPECT_EQ(tensor.placement, "keep");
    EXPECT_EQ(tensor.storages.size(), 1u);
    if (tensor.name == "input") inputs.push_back(std::to_string(tensor.stage) + " " + std::to_string(tensor.layer) + " " + tensor.op);
  }
  EXPECT_THAT(inputs, ElementsAre("0 0 embedding", "1 1 fc2", "0 2 fc2", "1 3 fc2", "1 4 fc2"));
}

TEST(PipelineStep, ChunksMayHoldNothing) {
  StepRequest request = staged_request(2, 3, 3);
  request.parallel.split.layout = "Et||tL";
  const BuiltStep built = build_step(request, small_templates());
  EXPECT_THAT(built.parameters_of_stage, ElementsAre(110, 0, 100));
  EXPECT_TRUE(find_cycle(built.graph).empty());
  EXPECT_FALSE(run_step(built).deadlock.has_value());
}

TEST(PipelineStep, ZeroBubbleKeepsTheOutputOfAnEmbeddingAlone) {
  StepRequest request = staged_request(3, 4, 3, PipelineKind::kZbH1);
  request.parallel.split.layout = "E|t*2|t|L";
  request.parallel.deallocate_outputs = false;
  const BuiltStep built = build_step(request, split_templates());
  const StorageId output = built.graph.writes(ops_of(built.graph, "embedding").front()).back().storage;
  EXPECT_EQ(life_of(built.graph, run_step(built), output).dead, "backward embedding backward mb0");
}

}  // namespace
}  // namespace stepsim
