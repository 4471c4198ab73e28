// Collectives of sequence parallelism beside products: which ops a layer has then, what they wait for, what that is worth.
#include "models/tensor_overlap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/models/small_step.h"
#include "tests/unit/models/template_case.h"

namespace stepsim {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;

TemplateCase llama(TensorOverlap overlap, std::int32_t tensor = 4) {
  TemplateCase each = llama3_70b();
  each.parallel = {.tensor = tensor, .sequence_parallel = true, .tensor_overlap = overlap};
  return each;
}

// Products, collectives and casts of a direction: "name (rows)", "name |bytes|" with * beside compute.
std::vector<std::string> ops_of_linears(const std::vector<TemplateOp>& ops) {
  std::vector<std::string> lines;
  for (const TemplateOp& op : ops) {
    const std::string beside = op.stream == OpStream::kTensor ? " *" : "";
    if (const auto* product = std::get_if<Gemm>(&op.work)) lines.push_back(op.name + " (" + std::to_string(product->m) + ")");
    if (const auto* work = std::get_if<Collective>(&op.work))
      lines.push_back(op.name + " |" + std::to_string(work->message.value) + "|" + beside);
  }
  return lines;
}

// 8,192 tokens of 8,192 channels in 16 bits: 2^27 bytes = 134,217,728. A fourth of the rows: 2,048.
TEST(TensorOverlap, ForwardGathersBesideTheirProductsAndScattersBehindThePieces) {
  EXPECT_THAT(
      ops_of_linears(llama(TensorOverlap::kRing).layer().forward),
      ElementsAre("norm 1 output all-gather |134217728| *", "qkv, pieces as they arrive (6144)", "qkv, last piece (2048)",
                  "attention projection, first piece (2048)", "attention projection output reduce-scatter |100663296| *",
                  "attention projection, further pieces (6144)", "attention projection output reduce-scatter, last piece |33554432| *",
                  "norm 2 output all-gather |134217728| *", "gate and up, pieces as they arrive (6144)", "gate and up, last piece (2048)",
                  "down, first piece (2048)", "mlp output reduce-scatter |100663296| *", "down, further pieces (6144)",
                  "mlp output reduce-scatter, last piece |33554432| *"));
  EXPECT_THAT(ops_of_linears(llama(TensorOverlap::kNone).layer().forward),
              ElementsAre("norm 1 output all-gather |134217728|", "qkv (8192)", "attention projection (8192)",
                          "attention projection output reduce-scatter |134217728|", "norm 2 output all-gather |134217728|",
                          "gate and up (8192)", "down (8192)", "mlp output reduce-scatter |134217728|"));
}

// Rows of weight gradients are outputs of the linear: 8,192 of down and the projection, 2 x 28,672 / 4 of gate and up, 10,240 / 4 of qkv.
TEST(TensorOverlap, BackwardGathersBesideTheirProductsAndScattersInBulk) {
  TemplateCase each = llama(TensorOverlap::kRing);
  each.framework.backward_all_reduce_overlaps_weight_gradient = false;
  EXPECT_THAT(ops_of_linears(each.layer().backward),
              ElementsAre("mlp output gradient all-gather |134217728| *", "down input gradient, pieces as they arrive (6144)",
                          "down input gradient, last piece (2048)", "down weight gradient (8192)", "norm 2 output all-gather |134217728| *",
                          "gate and up input gradient (8192)", "gate and up gradient reduce-scatter |134217728| *",
                          "gate and up weight gradient (14336)", "attention projection output gradient all-gather |134217728| *",
                          "attention projection input gradient, pieces as they arrive (6144)",
                          "attention projection input gradient, last piece (2048)", "attention projection weight gradient (8192)",
                          "norm 1 output all-gather |134217728| *", "qkv input gradient (8192)",
                          "qkv gradient reduce-scatter |134217728| *", "qkv weight gradient (2560)"));
}

TEST(TensorOverlap, WhatWaitsForWhat) {
  const LayerTemplate layer = llama(TensorOverlap::kRing).layer();
  const auto place = [&](const std::string& name) {
    const std::vector<std::string> names = op_names(layer.forward);
    return static_cast<std::int32_t>(std::find(names.begin(), names.end(), name) - names.begin());
  };
  const SlotIndex local = slot_named(layer, "norm 1 output"), whole = slot_named(layer, "norm 1 output, gathered");
  const TemplateOp &first = *op_named(layer.forward, "qkv, pieces as they arrive"), &last = *op_named(layer.forward, "qkv, last piece");
  EXPECT_THAT(first.reads, Contains(local));
  EXPECT_THAT(first.reads, Not(Contains(whole)));  // so it waits for no gather
  EXPECT_THAT(first.holds, ElementsAre(whole));
  EXPECT_EQ(last.reads.front(), whole);
  EXPECT_EQ(last.updates, first.writes);
  EXPECT_THAT(op_named(layer.forward, "norm 1 output all-gather")->after, ElementsAre(place("norm 1")));

  const SlotIndex partial = slot_named(layer, "mlp output, scattered");
  const TemplateOp &head = *op_named(layer.forward, "mlp output reduce-scatter"),
                   &tail = *op_named(layer.forward, "mlp output reduce-scatter, last piece");
  EXPECT_THAT(head.after, ElementsAre(place("down, first piece")));
  EXPECT_THAT(head.reads, IsEmpty());  // or the further pieces would wait until it is over
  EXPECT_THAT(head.writes, ElementsAre(partial));
  EXPECT_THAT(tail.updates, ElementsAre(partial));
  EXPECT_EQ(tail.reads, op_named(layer.forward, "down, first piece")->writes);
}

TEST(TensorOverlap, DoesTheSameWorkAndSavesTheSame) {
  const LayerTemplate plain = llama(TensorOverlap::kNone).layer(), ring = llama(TensorOverlap::kRing).layer();
  EXPECT_EQ(flops_of(ring.forward), flops_of(plain.forward));
  EXPECT_EQ(flops_of(ring.backward), flops_of(plain.backward));
  EXPECT_EQ(saved_slots(ring), saved_slots(plain));
  EXPECT_EQ(module_table(ring), module_table(plain));
}

TEST(TensorOverlap, NeedsSequenceParallelismAndALayer) {
  TemplateCase each = llama(TensorOverlap::kRing), none = llama(TensorOverlap::kNone);
  EXPECT_EQ(op_names(each.head().forward), op_names(none.head().forward));
  EXPECT_EQ(op_names(each.head().backward), op_names(none.head().backward));
  each.parallel.sequence_parallel = none.parallel.sequence_parallel = false;
  EXPECT_EQ(op_names(each.layer().forward), op_names(none.layer().forward));
  EXPECT_EQ(op_names(each.layer().backward), op_names(none.layer().backward));
}

// LoRA adds its branch to a product before the sum over the group, and its factors read 16 bits.
TEST(TensorOverlap, SumsOfABranchAreScatteredBehind) {
  TemplateCase each = llama(TensorOverlap::kRing);
  each.training.trainable = {.kind = TrainableMask::Kind::kLora, .rank = 16, .targets = {"down"}};
  const std::vector<std::string> ops = ops_of_linears(each.layer().forward);
  EXPECT_THAT(ops, Contains("mlp output reduce-scatter |134217728|"));
  EXPECT_THAT(ops, Contains("attention projection, first piece (2048)"));
}

// Transformer Engine casts an output's gradient before it gathers it. MXFP8: a byte and a 32nd for scales a value, by rows and by columns;
// the second gather waits behind the first. Current scaling: a byte; a Hopper transposes the whole, a Blackwell needs none.
TEST(TensorOverlap, GradientsBelow16BitsAreGatheredSo) {
  const std::int64_t values = 8192LL * 8192;
  for (const TensorOverlap overlap : {TensorOverlap::kNone, TensorOverlap::kRing}) {
    TemplateCase each = llama(overlap);
    const std::string star = overlap == TensorOverlap::kRing ? " *" : "";
    each.training.precision = Precision::kMxFp8;
    const std::string mx = std::to_string(values + values / 32);
    const LayerTemplate layer = each.layer();
    std::vector<std::string> ops = ops_of_linears(layer.backward);
    EXPECT_EQ(ops[0], "mlp output gradient all-gather |" + mx + "|" + star);
    EXPECT_EQ(ops[1], "mlp output gradient all-gather by columns |" + mx + "|" + star);
    const TemplateOp& cast = *op_named(layer.backward, "mlp output gradient cast");
    // A fourth of the tokens: reads 2 bytes a value, writes both copies.
    EXPECT_EQ(std::get<MemoryBound>(cast.work).read.value, values / 4 * 2);
    EXPECT_EQ(std::get<MemoryBound>(cast.work).written.value, 2 * (values + values / 32) / 4);
    EXPECT_EQ(op_named(layer.backward, "down weight gradient")->reads.front(),
              slot_named(layer, "mlp output gradient, gathered by columns"));

    each.training.precision = Precision::kFp8;
    each.training.scaling = ScalingRecipe::kCurrent;
    each.training.fp8_reads_one_layout = true;
    const LayerTemplate hopper = each.layer();
    ops = ops_of_linears(hopper.backward);
    EXPECT_EQ(ops[0], "mlp output gradient all-gather |" + std::to_string(values) + "|" + star);
    EXPECT_THAT(ops[1], testing::StartsWith("down input gradient"));
    const TemplateOp* const transpose = op_named(hopper.backward, "mlp output gradient, gathered transpose");
    ASSERT_NE(transpose, nullptr);
    EXPECT_EQ(std::get<MemoryBound>(transpose->work), (MemoryBound{Bytes(values), Bytes(values), MemoryKernel::kQuantize}));
    each.training.fp8_reads_one_layout = false;
    EXPECT_EQ(op_named(each.layer().backward, "mlp output gradient, gathered transpose"), nullptr);
  }
}

// A product takes 1 ms for 2,048 rows, a collective 1 ms for 33,554,432 bytes, the rest nothing.
class RowCost : public CostModel {
 public:
  explicit RowCost(std::int64_t collective_us) : collective_us_(collective_us) {}
  Cost cost(const OpWork& work, DeviceId, TransferSide) const override {
    std::int64_t us = 0;
    if (const auto* product = std::get_if<Gemm>(&work)) us = product->transpose_b ? 0 : product->m * 1000 / 2048;
    if (const auto* collective = std::get_if<Collective>(&work)) us = collective->message.value * collective_us_ / 33554432;
    return {.fixed = Duration(us * 1'000'000), .alone = {}, .issue = {}, .loads = {}};
  }

 private:
  std::int64_t collective_us_;
};

// Of the layer's forward pass, from its first norm on.
std::int64_t forward_us(TensorOverlap overlap, std::int64_t collective_us) {
  const TemplateCase each = llama(overlap);
  StepRequest request;
  request.model = each.model;
  request.model.layers = 1;
  request.training = each.training;
  request.parallel = each.parallel;
  request.framework = each.framework;
  const BuiltStep built = build_step(request);
  const StepResult result = simulate(built.graph, plain_machine(built.graph.device_count()), RowCost(collective_us));
  const std::vector<OpRun> runs = runs_by_op(built.graph, result);
  const auto run = [&](const char* name) { return runs[static_cast<std::size_t>(ops_of(built.graph, name).front().index)]; };
  return (run("mlp residual").end - run("norm 1").start).count() / 1'000'000;
}

// Four products of 4 ms each, four collectives of 4 c ms. Alone: 16 + 16 c. Overlapped: a gathered product ends with the longer of 4 and
// 4 c + 1, a scattered one with that of 4 + c and 1 + 4 c.
TEST(TensorOverlap, EndsWithTheLongerAndATail) {
  EXPECT_EQ(forward_us(TensorOverlap::kNone, 500), 16000 + 16 * 500);
  EXPECT_EQ(forward_us(TensorOverlap::kRing, 500), 2 * 4000 + 2 * (4000 + 500));             // collectives of 2 ms
  EXPECT_EQ(forward_us(TensorOverlap::kRing, 2000), 2 * (8000 + 1000) + 2 * (1000 + 8000));  // of 8 ms
}

}  // namespace
}  // namespace stepsim
