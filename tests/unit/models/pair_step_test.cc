// A forward and a backward pass that run as one pair: exchanges of one beside compute of the other. Templates by hand, durations in
// picoseconds: a kernel takes as many as it reads bytes, a collective as many as its message has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <variant>

#include "tests/unit/models/small_step.h"

namespace stepsim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ByteCost : public CostModel {
 public:
  Cost cost(const OpWork& work, DeviceId, TransferSide) const override {
    Duration time{};
    if (const auto* kernel = std::get_if<MemoryBound>(&work)) time = Duration(kernel->read.value);
    if (const auto* collective = std::get_if<Collective>(&work)) time = Duration(collective->message.value);
    return {.fixed = time, .alone = {}, .issue = {}, .loads = {}};
  }
};

StepResult timed(const BuiltStep& built) { return simulate(built.graph, plain_machine(built.graph.device_count()), ByteCost()); }

struct Times {
  std::int64_t compute = 4, exchange = 4, weight = 0;  // weight 0: the experts' backward op makes weight gradients too
};

TemplateOp kernel(const std::string& name, std::int64_t time, std::vector<SlotIndex> reads, std::vector<SlotIndex> writes,
                  std::vector<SlotIndex> updates = {}) {
  TemplateOp op = small_op(name, std::move(reads), std::move(writes), std::move(updates));
  op.work = MemoryBound{.read = Bytes(time)};
  return op;
}

TemplateOp exchange(const std::string& name, std::int64_t time, SlotIndex from, SlotIndex to) {
  TemplateOp op = small_op(name, {from}, {to});
  op.work = Collective{.kind = CollectiveKind::kAllToAll, .message = Bytes(time), .ranks = 2};
  op.group = Group::kExpert;
  op.stream = OpStream::kExpert;
  return op;
}

// attention, dispatch, experts, combine; kept for backward: 10 bytes of attention and what the experts received.
LayerTemplate mixture_layer(const Times& times) {
  LayerTemplate layer{.name = "layer", .slots = {}, .forward = {}, .backward = {}};
  const auto gradient = [](const char* name) { return small_slot(name, SlotKind::kGradient, 1); };
  layer.slots = {small_slot("input", SlotKind::kInput, 1),                      // 0
                 small_slot("kept", SlotKind::kForward, 10),                    // 1
                 small_slot("attended", SlotKind::kForward, 1),                 // 2
                 small_slot("dispatched", SlotKind::kForward, 1),               // 3
                 small_slot("expert output", SlotKind::kForward, 1),            // 4
                 small_slot("output", SlotKind::kForward, 1),                   // 5
                 small_slot("output gradient", SlotKind::kInput, 1),            // 6
                 gradient("combine gradient"),                                  // 7
                 gradient("expert gradient"),                                   // 8
                 gradient("dispatch gradient"),                                 // 9
                 gradient("input gradient"),                                    // 10
                 small_slot("weight", SlotKind::kWeight, 2),                    // 11
                 small_slot("weight gradient", SlotKind::kWeightGradient, 4)};  // 12
  layer.forward = {kernel("attention", times.compute, {0}, {1, 2}), exchange("dispatch", times.exchange, 2, 3),
                   kernel("experts", times.compute, {3, 11}, {4}), exchange("combine", times.exchange, 4, 5)};
  layer.backward = {exchange("combine backward", times.exchange, 6, 7), kernel("experts backward", times.compute, {7, 11}, {8})};
  if (times.weight > 0) {
    layer.backward.push_back(kernel("experts weight gradient", times.weight, {7, 3}, {}, {12}));
  } else {
    layer.backward.back().updates = {12};
  }
  layer.backward.push_back(exchange("dispatch backward", times.exchange, 8, 9));
  layer.backward.push_back(kernel("attention backward", times.compute, {9, 1}, {10}));
  layer.input = 0;
  layer.output = 5;
  layer.output_gradient = 6;
  layer.input_gradient = 10;
  layer.parameters = 1;
  return layer;
}

// An embedding and a head that take no time.
StepTemplates mixture_templates(const Times& times) {
  StepTemplates templates = small_templates();
  templates.kinds = {mixture_layer(times)};
  for (LayerTemplate* end : {&templates.embedding, &templates.head}) {
    for (std::vector<TemplateOp>* ops : {&end->forward, &end->backward}) {
      for (TemplateOp& op : *ops) op.work = MemoryBound{};
    }
  }
  for (LayerTemplate* end : {&templates.embedding, &templates.head}) {
    for (Slot& slot : end->slots) {
      if (slot.size == Bytes(8)) slot.size = Bytes(1);
    }
  }
  return templates;
}

StepRequest paired_request(std::int64_t layers, std::int64_t micro_batches, bool overlap = true, bool delay = false) {
  StepRequest request = small_request(layers);
  request.training.global_batch = 2 * micro_batches;
  request.parallel.expert = 2;
  request.parallel.data = 2;  // who share the experts
  request.parallel.overlap_expert_exchange = overlap;
  request.parallel.delay_weight_gradients = delay;
  return request;
}

// Until the last backward op, before the optimizer.
std::int64_t passes_end(const BuiltStep& built) {
  const OpId last = ops_of(built.graph, "embedding backward").back();
  return runs_by_op(built.graph, timed(built))[static_cast<std::size_t>(last.index)].end.count();
}

// "F1 attention", "B0 experts backward": ops of the compute stream in their order, but those of no time.
std::vector<std::string> computed(const BuiltStep& built) {
  std::vector<std::string> names;
  for (const OpId id : compute_ops(built.graph, DeviceId{0})) {
    const Op& op = built.graph.op(id);
    if (op.layer < 0 || op.micro_batch < 0) continue;
    const bool forward = op.phase == built.phase_labels[static_cast<std::size_t>(Phase::kForward)];
    names.push_back((forward ? "F" : "B") + std::to_string(op.micro_batch) + " " + std::string(built.graph.label(op.kind)));
  }
  return names;
}

// model_chunk_schedule_plan.py run(): attention | experts backward | experts | attention backward, F1 beside B0.
TEST(PairedStep, LayersTakeTurns) {
  const BuiltStep built = build_step(paired_request(1, 2), mixture_templates({}));
  EXPECT_THAT(computed(built), ElementsAre("F0 attention", "F0 experts", "F1 attention", "B0 experts backward", "F1 experts",
                                           "B0 attention backward", "B1 experts backward", "B1 attention backward"));
  const OpGraph& graph = built.graph;
  std::vector<std::string> exchanges;
  for (std::int32_t stream = 0; stream < static_cast<std::int32_t>(graph.streams().size()); ++stream) {
    if (graph.label(graph.streams()[static_cast<std::size_t>(stream)].kind) != "ep communication") continue;
    for (const OpId op : graph.stream_order(StreamId{stream})) {
      exchanges.push_back(std::string(graph.label(graph.op(op).kind)) + " " + std::to_string(graph.op(op).micro_batch));
    }
  }
  EXPECT_THAT(exchanges, ElementsAre("dispatch 0", "combine 0", "combine backward 0", "dispatch 1", "dispatch backward 0", "combine 1",
                                     "combine backward 1", "dispatch backward 1"));
  // Each waits for its own pass alone.
  EXPECT_THAT(waits_of(graph, ops_of(graph, "dispatch")[1]), ElementsAre("forward L0 attention mb1"));
  EXPECT_THAT(waits_of(graph, ops_of(graph, "experts backward")[0]), ElementsAre("backward L0 combine backward mb0"));
  EXPECT_TRUE(find_cycle(graph).empty());
}

// One layer of a pair, c compute and e exchange, M = max(c, e), from its begin: combine backward 0..e beside attention 0..c; dispatch
// M..M+e beside experts backward M..M+c; dispatch backward 2M..2M+e beside experts 2M..2M+c; combine 3M..3M+e beside attention backward
// 3M..3M+c. 4 M, so nothing of 4 e is exposed up to e = c, and 4 (e - c) beyond. F0 and the last B run alone: 2 c + 2 e a layer.
TEST(PairedStep, ExchangesHideBehindComputeAsFarAsThereIsSome) {
  for (const auto& [compute, exchange] : {std::pair(4, 1), std::pair(4, 3), std::pair(4, 4), std::pair(4, 5), std::pair(3, 9)}) {
    for (const std::int64_t layers : {1, 2, 3}) {
      for (const std::int64_t micro_batches : {1, 2, 3, 5}) {
        const StepTemplates templates = mixture_templates({.compute = compute, .exchange = exchange});
        const std::int64_t alone = layers * (2 * compute + 2 * exchange), pair = layers * 4 * std::max(compute, exchange);
        EXPECT_EQ(passes_end(build_step(paired_request(layers, micro_batches), templates)), 2 * alone + (micro_batches - 1) * pair);
        EXPECT_EQ(passes_end(build_step(paired_request(layers, micro_batches, false), templates)), 2 * micro_batches * alone);
      }
    }
  }
}

// c 4, e 5, weight gradient w 3, M = 5. One layer of a pair: combine backward 0-5, attention 0-4, dispatch 5-10, experts backward 5-9.
// In its place w runs 9-12 and dispatch backward 12-17; experts 12-16; combine 17-22 beside attention backward 17-21: 22. Put off: dispatch
// backward 10-15 beside w 9-12, experts 12-16, combine 16-21 beside attention backward 16-20: 21. F0 18, B1 alone 5 + 4 + 3 + 5 + 4 = 21.
TEST(PairedStep, PutOffWeightGradientsFillTheExchange) {
  const StepTemplates templates = mixture_templates({.compute = 4, .exchange = 5, .weight = 3});
  const BuiltStep built = build_step(paired_request(1, 2, true, true), templates), kept = build_step(paired_request(1, 2), templates);
  EXPECT_EQ(passes_end(kept), 18 + 22 + 21);
  EXPECT_EQ(passes_end(built), 18 + 21 + 21);
  // Written behind the exchange, still before the forward pass's experts.
  const OpGraph& graph = built.graph;
  EXPECT_GT(ops_of(graph, "experts weight gradient")[0], ops_of(graph, "dispatch backward")[0]);
  EXPECT_LT(ops_of(graph, "experts weight gradient")[0], ops_of(graph, "experts")[1]);
  // A pass that runs alone stays as it is.
  EXPECT_LT(ops_of(graph, "experts weight gradient")[1], ops_of(graph, "dispatch backward")[1]);
  EXPECT_TRUE(find_cycle(graph).empty());
}

// The first op on compute that needs what an exchange brought is the weight gradient: put off, it leaves its wait to the next one.
TEST(PairedStep, WhatAPutOffOpWaitedForItsSuccessorWaitsFor) {
  StepTemplates templates = mixture_templates({.weight = 3});
  std::vector<TemplateOp>& backward = templates.kinds.front().backward;
  std::swap(backward[1], backward[2]);
  const BuiltStep built = build_step(paired_request(1, 2, true, true), templates);
  EXPECT_THAT(waits_of(built.graph, ops_of(built.graph, "experts backward")[0]), ElementsAre("backward L0 combine backward mb0"));
  EXPECT_GT(ops_of(built.graph, "experts weight gradient")[0], ops_of(built.graph, "dispatch backward")[0]);
}

// Gradients are reduced when they are made: the put-off op stands before the reduction that reads what it adds to.
TEST(PairedStep, GradientsAreMadeBeforeTheyAreReduced) {
  StepRequest request = paired_request(2, 4, true, true);
  request.parallel.overlap_gradient_reduce = true;
  request.parallel.bucket = Bytes(1);
  const BuiltStep built = build_step(request, mixture_templates({.weight = 3}));
  const OpGraph& graph = built.graph;
  EXPECT_TRUE(find_cycle(graph).empty());
  std::int64_t reductions = 0;
  for (std::int32_t op = 0; op < static_cast<std::int32_t>(graph.ops().size()); ++op) {
    const bool reduces = graph.bucket(graph.op(OpId{op}).kind) == static_cast<std::int32_t>(Group::kData);
    if (!reduces || graph.op(OpId{op}).phase != built.phase_labels[static_cast<std::size_t>(Phase::kBackward)]) continue;
    ++reductions;
    for (const OpId made : ops_of(graph, "experts weight gradient")) {
      EXPECT_TRUE(graph.writes(made)[0].storage != graph.writes(OpId{op})[0].storage || made.index < op);
    }
  }
  EXPECT_EQ(reductions, 3);  // two layers, the table
}

// Two layers keep 10 bytes each. Alone: two at most. In a pair F1 has kept layer 0's before B0 has freed layer 1's, and F1's layer 1
// comes when B0's layer 0 is still there: three.
TEST(PairedStep, BothMicroBatchesAreInMemory) {
  const auto most = [](const StepRequest& request) {
    const BuiltStep built = build_step(request, mixture_templates({}));
    const StepResult result = timed(built);
    std::int64_t held = 0, peak = 0;
    for (const MemoryEvent& event : result.memory) {
      if (built.graph.label(storage_of(built.graph, event.storage).name) != "kept") continue;
      held += event.bytes.value;
      peak = std::max(peak, held);
    }
    EXPECT_EQ(held, 0);
    return peak;
  };
  EXPECT_EQ(most(paired_request(2, 3, false)), 20);
  EXPECT_EQ(most(paired_request(2, 3)), 30);
}

std::vector<std::string> all_ops(const OpGraph& graph) {
  std::vector<std::string> names;
  for (std::int32_t op = 0; op < static_cast<std::int32_t>(graph.ops().size()); ++op) names.push_back(graph.op_name(OpId{op}));
  std::sort(names.begin(), names.end());
  return names;
}

// The same ops as without pairs, each once, under every schedule that has them.
TEST(PairedStep, PairsChangeOrderOnly) {
  for (const auto& [schedule, stages, chunks] : {std::tuple(PipelineKind::k1F1B, 1, 1), std::tuple(PipelineKind::kInterleaved, 2, 2),
                                                 std::tuple(PipelineKind::kDualPipe, 2, 1), std::tuple(PipelineKind::kDualPipe, 4, 1)}) {
    for (const PointToPoint mode : {PointToPoint::kOverlapped, PointToPoint::kBatched, PointToPoint::kBlocking}) {
      StepRequest request = paired_request(4, 8, true, true);
      request.parallel.schedule = schedule;
      request.parallel.pipeline = stages;
      request.parallel.virtual_stages = chunks;
      request.parallel.point_to_point = mode;
      const StepTemplates templates = mixture_templates({.weight = 3});
      const BuiltStep paired = build_step(request, templates);
      request.parallel.overlap_expert_exchange = false;
      const BuiltStep apart = build_step(request, templates);
      EXPECT_EQ(all_ops(paired.graph), all_ops(apart.graph));
      EXPECT_TRUE(find_cycle(paired.graph).empty());
      const StepResult result = timed(paired);
      EXPECT_FALSE(result.deadlock.has_value());
      EXPECT_LT(result.end, timed(apart).end) << pipeline_name(schedule) << stages << point_to_point_name(mode);
      request.parallel.overlap_expert_exchange = true;
      EXPECT_EQ(fingerprint(result), fingerprint(timed(build_step(request, templates))));
    }
  }
}

TEST(PairedStep, AScheduleWithoutPairsSaysSo) {
  StepRequest request = paired_request(4, 8);
  request.parallel.schedule = PipelineKind::kZbH1;
  request.parallel.pipeline = 2;
  const std::vector<std::string> warnings = build_step(request, mixture_templates({.weight = 3})).warnings;
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("schedule zb-h1 runs no forward pass beside a backward pass"));
  request.parallel.schedule = PipelineKind::k1F1B;  // Megatron-LM: not without virtual stages
  const BuiltStep plain = build_step(request, mixture_templates({}));
  ASSERT_EQ(plain.warnings.size(), 1u);
  EXPECT_THAT(plain.warnings[0], HasSubstr("schedule 1f1b without --virtual-stages runs no"));
  request.parallel.overlap_expert_exchange = false;
  const BuiltStep off = build_step(request, mixture_templates({}));
  EXPECT_TRUE(off.warnings.empty());
  EXPECT_EQ(fingerprint(timed(plain)), fingerprint(timed(off)));
}

}  // namespace
}  // namespace stepsim
