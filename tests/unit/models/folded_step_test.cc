// Steps of models under ZB-V and DualPipe: who holds what, what is handed over, what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <variant>

#include "tests/unit/error_of.h"
#include "tests/unit/models/small_step.h"

namespace stepsim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

StepRequest folded_request(PipelineKind schedule, std::int64_t layers, std::int32_t stages, std::int64_t micro_batches) {
  StepRequest request = staged_request(layers, stages, micro_batches, schedule);
  request.parallel.point_to_point = PointToPoint::kOverlapped;
  return request;
}

// Names of the ops of layers, embedding and head with their layers and micro-batches.
std::vector<std::string> model_ops(const BuiltStep& built) {
  std::vector<std::string> names;
  for (std::int32_t device = 0; device < built.graph.device_count(); ++device) {
    for (const OpId op : compute_ops(built.graph, DeviceId{device})) {
      if (built.graph.op(op).micro_batch >= 0) names.push_back(built.graph.op_name(op));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

// 4 layers in 4 parts on 2 stages: parts 0 and 3 on stage 0, 1 and 2 on stage 1.
TEST(ZbVStep, StagesHoldTheFoldedModel) {
  const BuiltStep built = build_step(folded_request(PipelineKind::kZbV, 4, 2, 4), split_templates());
  EXPECT_EQ(built.graph.device_count(), 2);
  EXPECT_EQ(layers_on(built, 0, Phase::kForward), (std::set<std::int32_t>{0, 3}));
  EXPECT_EQ(layers_on(built, 1, Phase::kForward), (std::set<std::int32_t>{1, 2}));
  EXPECT_EQ(layers_on(built, 1, Phase::kBackward), (std::set<std::int32_t>{1, 2}));
  EXPECT_TRUE(built.stages.has_embedding(0));
  EXPECT_TRUE(built.stages.has_head(0));
  EXPECT_FALSE(built.stages.has_head(1));
  EXPECT_THAT(built.parameters_of_stage, ElementsAre(210, 200));  // embedding 10
  // Everything that one stage alone would run, once.
  EXPECT_EQ(model_ops(built), model_ops(build_step(folded_request(PipelineKind::k1F1B, 4, 1, 4), split_templates())));
  EXPECT_TRUE(find_cycle(built.graph).empty());
}

// Part 1 hands to part 2 within stage 1: no transfer, no copy. Down and up 0 -> 1, 1 -> 0 each way: 2 forward and 2 backward transfers a
// micro-batch.
TEST(ZbVStep, AChunkReadsWhatTheOtherOfItsStageMade) {
  for (const std::int32_t micro_batches : {2, 4}) {
    const BuiltStep built = build_step(folded_request(PipelineKind::kZbV, 4, 2, micro_batches), split_templates());
    const OpGraph& graph = built.graph;
    EXPECT_EQ(count_ops(graph, "send forward"), 2 * micro_batches);
    EXPECT_EQ(count_ops(graph, "send backward"), 2 * micro_batches);
    const OpId made = ops_of(graph, "fc2", DeviceId{1}).front();  // of layer 1
    const OpId read = [&] {
      for (const OpId op : ops_of(graph, "fc1", DeviceId{1})) {
        if (graph.op(op).layer == 2) return op;
      }
      return OpId{};
    }();
    ASSERT_TRUE(read.valid());
    ASSERT_EQ(graph.op(made).layer, 1);
    const StorageId handed = graph.writes(made)[0].storage;
    EXPECT_EQ(graph.reads(read)[0].storage, handed);
    // It is layer 2's saved input, and lives until that layer's weight gradient is made of it.
    EXPECT_EQ(graph.label(storage_of(graph, handed).name), "input");
    EXPECT_EQ(storage_of(graph, handed).layer, 2);
    const StepResult result = run_step(built);
    EXPECT_EQ(life_of(graph, result, handed), (Life{"forward L1 fc2 mb0", "backward L2 fc1 input gather mb0"}));
    // Listed where explain looks for it.
    const auto saved = std::find_if(built.saved.begin(), built.saved.end(),
                                    [](const SavedTensor& each) { return each.layer == 2 && each.name == "input"; });
    ASSERT_NE(saved, built.saved.end());
    EXPECT_THAT(saved->storages, ElementsAre(handed));
  }
}

// At most p micro-batches of a stage's layers, as 1F1B's first stage: 2 p chunks of one layer of 64 saved bytes (2401.10241: 1x memory),
// and a received input may be there one pass early.
TEST(ZbVStep, HoldsAsMuchAs1F1B) {
  const BuiltStep built = build_step(folded_request(PipelineKind::kZbV, 4, 2, 8), split_templates());
  for (const std::int32_t device : {0, 1}) {
    const std::int64_t most = saved_peak(built, device).value;
    EXPECT_GE(most, 3 * kSmallLayer);
    EXPECT_LE(most, 4 * kSmallLayer + 2 * kSmallCheckpoint);
  }
  std::int64_t rest = 0;
  const StepResult result = run_step(built);
  for (const MemoryEvent& event : result.memory) rest += event.bytes.value;
  std::int64_t residents = 0;
  for (const Storage& storage : built.graph.storages()) residents += storage.live_at_end ? storage.size.value : 0;
  EXPECT_EQ(rest, residents);
}

// Kernels take 1 us, all else nothing. 4 layers of fc1, act, fc2 | three input gradients | gather and two weight gradients: F = B = W = 3
// us a chunk without ends. Embedding (stage 0 alone) takes 1 and 1 in the pass of input gradients; the head 1 and 1: stage 0 is busy 8 (9 +
// 9 + 2 + 2) us.
class FreeTransfers : public CostModel {
 public:
  Cost cost(const OpWork& work, DeviceId, TransferSide) const override {
    const bool model = op_class(work) == OpClass::kCompute;
    return {.fixed = Duration(model ? 1'000'000 : 0), .alone = {}, .issue = {}, .loads = {}};
  }
};

TEST(ZbVStep, StageZeroIsNeverIdle) {
  const BuiltStep built = build_step(folded_request(PipelineKind::kZbV, 4, 2, 8), split_templates());
  const StepResult result = simulate(built.graph, plain_machine(2), FreeTransfers());
  const std::vector<OpRun> runs = runs_by_op(built.graph, result);
  Duration busy{}, end{};
  for (const OpId op : compute_ops(built.graph, DeviceId{0})) {
    if (built.graph.op(op).micro_batch < 0) continue;
    const OpRun& run = runs[static_cast<std::size_t>(op.index)];
    busy += run.end - run.start;
    end = std::max(end, run.end);
  }
  EXPECT_EQ(busy.count(), 8 * 22'000'000);
  // Stage 1, which has less to do, waits for it; stage 0 for the first micro-batch to come back at most.
  EXPECT_LE(end.count() - busy.count(), 6'000'000);
}

// Two stages, two parts of two layers; each stage holds both. Micro-batches 0 and 1 enter at stage 0, 2 and 3 at stage 1.
TEST(DualPipeStep, StagesHoldTwoPartsAndEachRunsBoth) {
  const BuiltStep built = build_step(folded_request(PipelineKind::kDualPipe, 4, 2, 4), split_templates());
  EXPECT_EQ(layers_on(built, 0, Phase::kForward), (std::set<std::int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(layers_on(built, 1, Phase::kForward), (std::set<std::int32_t>{0, 1, 2, 3}));
  EXPECT_THAT(built.parameters_of_stage, ElementsAre(410, 410));
  const OpGraph& graph = built.graph;
  for (const std::int32_t device : {0, 1}) {
    for (const OpId op : ops_of(graph, "fc1", DeviceId{device})) {
      const bool first_half = graph.op(op).micro_batch < 2, first_part = graph.op(op).layer < 2;
      EXPECT_EQ(first_half == first_part, device == 0) << graph.op_name(op);
    }
  }
  EXPECT_EQ(model_ops(built), model_ops(build_step(folded_request(PipelineKind::k1F1B, 4, 1, 4), split_templates())));
  EXPECT_TRUE(find_cycle(graph).empty());
  EXPECT_EQ(built.stages.parts.size(), 2u);
}

// Weights, gradients and state of a part live on two stages, which sum its gradients: a group of twice the data-parallel ranks.
TEST(DualPipeStep, BothHoldersOfAPartReduceItsGradients) {
  for (const std::int32_t data : {1, 4}) {
    StepRequest request = folded_request(PipelineKind::kDualPipe, 4, 4, 8);
    request.parallel.data = data;
    request.training.global_batch = 8 * data;
    request.parallel.overlap_gradient_reduce = false;
    const BuiltStep built = build_step(request, split_templates());
    std::int64_t reduced = 0;
    for (const Op& op : built.graph.ops()) {
      const auto* collective = std::get_if<Collective>(&built.graph.work(op.work));
      if (collective == nullptr || built.graph.bucket(op.kind) != static_cast<std::int32_t>(Group::kData)) continue;
      EXPECT_EQ(collective->ranks, 2 * data);
      reduced += collective->message.value;
    }
    EXPECT_EQ(reduced, 2 * (4 * 400 + 40));  // fp32 gradients of 4 layers and the table, by each of two holders
    // Transfers: the neighbouring stage is as far as without DualPipe.
    for (const OpId op : ops_of(built.graph, "send forward")) {
      EXPECT_EQ(std::get<Collective>(built.graph.work(built.graph.op(op).work)).stride, data);
    }
  }
  // ZeRO 1 shares the optimizer's state between them too: 12 bytes (fp32 weight, two moments) of 2 x 100 parameters a stage, halved.
  StepRequest request = folded_request(PipelineKind::kDualPipe, 4, 4, 8);
  const auto state = [&](std::int32_t zero) {
    request.parallel.zero = zero;
    const BuiltStep built = build_step(request, split_templates());
    std::int64_t bytes = 0;
    for (const StorageId id : storages_of(built.graph, "optimizer moments", DeviceId{1})) bytes += storage_of(built.graph, id).size.value;
    return bytes;
  };
  EXPECT_EQ(state(0), 2 * 100 * 8);
  EXPECT_EQ(state(1), 2 * 50 * 8);
}

// README: PP + 1 activations of one layer each (p layers in p parts).
TEST(DualPipeStep, HoldsOneMicroBatchMoreThan1F1B) {
  const BuiltStep built = build_step(folded_request(PipelineKind::kDualPipe, 4, 4, 12), split_templates());
  for (std::int32_t device = 0; device < 4; ++device) {
    const std::int64_t most = saved_peak(built, device).value;
    EXPECT_GE(most, 4 * kSmallLayer);
    EXPECT_LE(most, 5 * kSmallLayer + 2 * kSmallCheckpoint);
  }
}

// Of the backward passes only those with a weight pass leave the weight gradients out: stage 0 of 2 splits the last one of its nearer
// direction (dualpipe.py steps 6 to 8).
TEST(DualPipeStep, SplitsOnlyWhatTheScheduleSplits) {
  const BuiltStep built = build_step(folded_request(PipelineKind::kDualPipe, 2, 2, 4), split_templates());
  const auto kinds = [&](std::int32_t micro_batch) {
    std::vector<std::string> names;
    for (const OpId id : compute_ops(built.graph, DeviceId{0})) {
      const Op& op = built.graph.op(id);
      if (op.micro_batch == micro_batch && op.phase == built.phase_labels[static_cast<std::size_t>(Phase::kBackward)]) {
        names.emplace_back(built.graph.label(op.kind));
      }
    }
    return names;
  };
  EXPECT_THAT(kinds(0), ElementsAre("fc2 input gradient", "fc2 weight gradient", "act backward", "fc1 input gradient", "fc1 input gather",
                                    "fc1 weight gradient", "embedding backward"));
  EXPECT_THAT(kinds(1), ElementsAre("fc2 input gradient", "act backward", "fc1 input gradient", "embedding backward", "fc2 weight gradient",
                                    "fc1 input gather", "fc1 weight gradient"));
}

std::string problem(const StepRequest& request) {
  return error_of([&] { build_step(request, split_templates()); });
}

TEST(FoldedStep, WhatCannotBeIsRefused) {
  const auto request = [](PipelineKind kind, std::int32_t stages, std::int64_t micro_batches) {
    return folded_request(kind, 2 * stages, stages, micro_batches);
  };
  EXPECT_EQ(problem(request(PipelineKind::kZbV, 3, 1)), "");
  EXPECT_EQ(problem(request(PipelineKind::kZbV, 1, 4)), "--schedule: found zb-v with --pp 1, wanted --pp 2 or more");
  EXPECT_EQ(problem(request(PipelineKind::kDualPipe, 3, 8)),
            "--pp: found 3 with --schedule dualpipe, wanted an even number of stages, whose halves mirror one another");
  EXPECT_EQ(problem(request(PipelineKind::kDualPipe, 4, 6)),
            "--global-batch: found 6 micro-batches with --schedule dualpipe, wanted an even number of at least 8, two a stage");
  EXPECT_THAT(problem(request(PipelineKind::kDualPipe, 4, 9)), HasSubstr("--global-batch: found 9"));
  EXPECT_EQ(problem(folded_request(PipelineKind::kZbV, 6, 2, 4)),
            "--schedule: found zb-v with 3 layers in a stage, wanted a multiple of its two model chunks (or --pp-layout)");
  StepRequest three = request(PipelineKind::kZbV, 2, 4);
  three.parallel.virtual_stages = 3;
  EXPECT_THAT(problem(three), HasSubstr("--virtual-stages: found 3 with --schedule zb-v"));
  three.parallel.virtual_stages = 2;
  EXPECT_EQ(problem(three), "");
  StepRequest sharded = request(PipelineKind::kDualPipe, 2, 4);
  sharded.parallel.zero = 2;
  EXPECT_THAT(problem(sharded), HasSubstr("--zero: found 2 with --schedule dualpipe"));
  StepRequest tied = request(PipelineKind::kZbV, 2, 4);
  tied.model.tied_head = true;
  EXPECT_THAT(problem(tied), HasSubstr("--schedule: found zb-v with a tied head"));
}

// Layouts by string list the parts in the model's order.
TEST(FoldedStep, LayoutsOfUnevenParts) {
  StepRequest request = folded_request(PipelineKind::kZbV, 5, 2, 4);
  request.parallel.split.layout = "Ett|t|tt|L";
  const BuiltStep folded = build_step(request, split_templates());
  EXPECT_EQ(layers_on(folded, 0, Phase::kForward), (std::set<std::int32_t>{0, 1}));
  EXPECT_EQ(layers_on(folded, 1, Phase::kForward), (std::set<std::int32_t>{2, 3, 4}));
  request.parallel.schedule = PipelineKind::kDualPipe;
  request.parallel.split.layout = "Ett|tttL";
  EXPECT_THAT(build_step(request, split_templates()).parameters_of_stage, ElementsAre(510, 510));
  // A part without layers is handed over too.
  request.parallel.schedule = PipelineKind::kZbV;
  request.parallel.split.layout = "Ett||ttt|L";
  const BuiltStep empty = build_step(request, split_templates());
  EXPECT_EQ(layers_on(empty, 1, Phase::kForward), (std::set<std::int32_t>{2, 3, 4}));
  EXPECT_FALSE(run_step(empty).deadlock.has_value());
  EXPECT_TRUE(find_cycle(empty.graph).empty());
  request.parallel.split.layout = "Ett|ttt||L";
  const BuiltStep behind = build_step(request, split_templates());
  EXPECT_FALSE(run_step(behind).deadlock.has_value());
  EXPECT_EQ(count_ops(behind.graph, "send forward"), 2 * 4);
}

TEST(FoldedStep, EveryModeRuns) {
  for (const auto& [kind, stages] :
       {std::pair(PipelineKind::kZbV, 3), std::pair(PipelineKind::kZbV, 4), std::pair(PipelineKind::kDualPipe, 4)}) {
    for (const PointToPoint mode : {PointToPoint::kOverlapped, PointToPoint::kBatched, PointToPoint::kBlocking}) {
      StepRequest request = folded_request(kind, 24, stages, 10);
      request.parallel.point_to_point = mode;
      request.parallel.data = 2;
      request.training.global_batch = 20;
      request.parallel.zero = 1;
      const BuiltStep built = build_step(request, split_templates());
      const StepResult result = run_step(built);
      ASSERT_FALSE(result.deadlock.has_value());
      EXPECT_EQ(result.timeline.size(), built.graph.ops().size());
      EXPECT_EQ(fingerprint(result), fingerprint(run_step(build_step(request, split_templates()))));
    }
  }
}

}  // namespace
}  // namespace stepsim
