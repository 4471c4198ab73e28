// Products below 16 bits: which ops are, what their casts move, and what stays until backward.
#include "models/low_precision.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <variant>

#include "models/layer_template.h"

namespace stepsim {
namespace {

struct Case {
  ModelSpec model = load_model("llama3-8b");
  TrainingRecipe training{};
  ParallelLayout parallel{};
  FrameworkPreset framework = load_framework("megatron-core@2025");
  explicit Case(Precision precision = Precision::kFp8) {
    training.sequence = 1024;
    training.precision = precision;
  }
  TemplateContext context() const { return {model, training, parallel, framework}; }
  LayerTemplate layer() const { return transformer_layer(context()); }
};

std::int64_t products(const LayerTemplate& layer, DType dtype) {
  std::int64_t count = 0;
  for (const auto* ops : {&layer.forward, &layer.backward}) {
    for (const TemplateOp& op : *ops) {
      const Gemm* const gemm = std::get_if<Gemm>(&op.work);
      if (gemm != nullptr && gemm->dtype == dtype) ++count;
    }
  }
  return count;
}

const TemplateOp* op(const std::vector<TemplateOp>& ops, const std::string& name) {
  const auto found = std::find_if(ops.begin(), ops.end(), [&](const TemplateOp& each) { return each.name == name; });
  return found == ops.end() ? nullptr : &*found;
}

Bytes slot_size(const LayerTemplate& layer, const std::string& name) {
  const auto found = std::find_if(layer.slots.begin(), layer.slots.end(), [&](const Slot& slot) { return slot.name == name; });
  return found == layer.slots.end() ? Bytes(-1) : found->size;
}

// qkv, projection, gate and up, down: three products each. Head, attention and norms stay in 16 bits.
TEST(LowPrecision, LinearPartsOfLayersAlone) {
  const Case example;
  EXPECT_EQ(products(example.layer(), DType::kFp8), 12);
  EXPECT_EQ(products(example.layer(), DType::kBf16), 0);
  const LayerTemplate head = head_layer(example.context());
  EXPECT_EQ(products(head, DType::kFp8), 0);
  EXPECT_EQ(products(head, DType::kBf16), 3);
  EXPECT_EQ(products(Case(Precision::kMxFp8).layer(), DType::kMxFp8), 12);
  EXPECT_EQ(products(Case(Precision::kNvFp4).layer(), DType::kNvFp4), 12);
}

// The input of qkv, 1024 x 4096 values. Current scaling reads 2 + 2 B and writes 1 B an orientation (accuracy.md C.3): 6 with the
// transposed copy that Hopper needs, 5 without. Delayed scaling reads once. MXFP8 2 + 2 (1 + 1/32).
TEST(LowPrecision, BytesOfCasts) {
  constexpr std::int64_t kValues = 1024 * 4096;
  const auto bytes = [](const Case& example) {
    const LayerTemplate layer = example.layer();
    const TemplateOp* const cast = op(layer.forward, "norm 1 output of qkv cast");
    if (cast == nullptr) return Bytes(-1);
    EXPECT_EQ(std::get<MemoryBound>(cast->work).kernel, MemoryKernel::kQuantize);
    return memory_traffic(cast->work);
  };
  Case example;
  EXPECT_EQ(bytes(example), Bytes(6 * kValues));
  example.training.fp8_reads_one_layout = false;
  EXPECT_EQ(bytes(example), Bytes(5 * kValues));
  example.training.fp8_reads_one_layout = true;
  example.training.scaling = ScalingRecipe::kDelayed;
  EXPECT_EQ(bytes(example), Bytes(4 * kValues));
  EXPECT_EQ(bytes(Case(Precision::kMxFp8)), Bytes(4 * kValues + kValues / 16));
  example.training.fp8_reads_one_layout = false;
  EXPECT_EQ(bytes(example), Bytes(3 * kValues));
  // As measured (accuracy.md C.3): read twice, written twice 1/2 + 1/16, and 0.475 B more.
  EXPECT_NEAR(static_cast<double>(bytes(Case(Precision::kNvFp4)).value), 5.6 * kValues, 1);
  EXPECT_EQ(bytes(Case(Precision::kBf16)), Bytes(-1));
}

// Copies of weights over the micro-batches: by rows and by columns where the products want both; beside primary weights in 8 bits the
// columns alone.
TEST(LowPrecision, CachedWeights) {
  constexpr std::int64_t kMatrices = 25'165'824 + 16'777'216 + 117'440'512 + 58'720'256;
  Case example;
  EXPECT_EQ(example.layer().cached_weights, Bytes(2 * kMatrices));
  example.training.primary_weights_low = true;
  EXPECT_EQ(example.layer().cached_weights, Bytes(kMatrices));
  example.training.fp8_reads_one_layout = false;
  EXPECT_EQ(example.layer().cached_weights, Bytes(0));
  EXPECT_EQ(Case(Precision::kMxFp8).layer().cached_weights, Bytes(2 * (kMatrices + kMatrices / 32)));
  EXPECT_EQ(Case(Precision::kBf16).layer().cached_weights, Bytes(0));
  EXPECT_EQ(head_layer(example.context()).cached_weights, Bytes(0));
}

// Under sequence parallelism the part is cast, gathered in 8 bits, and its copy by columns stays: 1024 / 4 x 4096 B.
TEST(LowPrecision, GathersInEightBits) {
  Case example;
  example.parallel.tensor = 4;
  example.parallel.sequence_parallel = true;
  const LayerTemplate layer = example.layer();
  const TemplateOp* const gather = op(layer.forward, "norm 1 output all-gather");
  ASSERT_NE(gather, nullptr);
  EXPECT_EQ(std::get<Collective>(gather->work).message, Bytes(1024 * 4096));
  EXPECT_EQ(slot_size(layer, "norm 1 output, quantised by columns"), Bytes(256 * 4096));
}

// torchao keeps the 16-bit input and casts it once more for the weight gradient.
TEST(LowPrecision, SixteenBitInputsCanBeSaved) {
  Case example;
  const Bytes quantised = saved_bytes(example.layer());
  example.framework.saves_quantised_inputs = false;
  const LayerTemplate layer = example.layer();
  EXPECT_NE(op(layer.backward, "qkv input cast"), nullptr);
  EXPECT_EQ(slot_size(layer, "norm 1 output of qkv, quantised by columns"), Bytes(-1));
  // 1024 tokens: norms 2 x 4096, SwiGLU 14336 values in 2 B in place of 1; attention's output was saved in 2 B too and loses its copy.
  EXPECT_EQ(saved_bytes(layer) - quantised, Bytes(1024 * (2 * 4096 + 14336 - 4096)));
}

// A million values. Current scaling from 16 bits: 4 B read, 1 written; two copies on Hopper. In MXFP8 with primary weights by rows the copy
// by columns and both scales are to be made, from 16 bits; tensor-wide, from the primary copy.
TEST(LowPrecision, BytesOfTheWeightsCast) {
  constexpr std::int64_t kElements = 1024 * 1024;
  const auto moved = [](Precision precision, bool one_layout, bool primary) {
    TrainingRecipe training;
    training.precision = precision;
    training.fp8_reads_one_layout = one_layout;
    training.primary_weights_low = primary;
    const Bytes cached = cached_weight(training, 1024, 1024);
    const CastBytes bytes = weight_cast_bytes(training, cached);
    EXPECT_EQ(bytes.written, cached);
    return bytes.read;
  };
  EXPECT_EQ(moved(Precision::kFp8, false, false), Bytes(4 * kElements));
  EXPECT_EQ(moved(Precision::kFp8, true, false), Bytes(4 * kElements));
  EXPECT_EQ(moved(Precision::kFp8, true, true), Bytes(kElements));
  EXPECT_EQ(moved(Precision::kFp8, false, true), Bytes(0));  // nothing is cached
  EXPECT_EQ(moved(Precision::kMxFp8, false, false), Bytes(2 * kElements));
  EXPECT_EQ(moved(Precision::kMxFp8, false, true), Bytes(2 * kElements));
}

}  // namespace
}  // namespace stepsim
