// How the work of one attention kernel is stated: windows by the blocks that they touch, packed documents, kernels by name, 8 bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/core_attention.h"
#include "sim/input_error.h"
#include "tests/unit/models/mixture_case.h"

namespace stepsim {
namespace {

using testing::ElementsAre;

Attention attention_of(const LayerTemplate& layer) { return std::get<Attention>(op_named(layer.forward, "attention")->work); }

double pairs(const Attention& work) {
  const double all = static_cast<double>(work.batch) * static_cast<double>(work.queries) * static_cast<double>(work.keys);
  return work.causal ? all / 2 : all;
}

// 8,192 tokens are 64 blocks of 128. A window of 128 touches its own block and the one before: 2 x 64 - 1 = 127 blocks of 128 x 128.
TEST(AttentionKernel, WindowsRunWholeBlocks) {
  const TemplateCase llama = llama3_8b();
  const Attention narrow = attention_of(layer_of_kind(llama, {.window = 128}));
  EXPECT_DOUBLE_EQ(pairs(narrow), 127.0 * 128 * 128);
  EXPECT_EQ(narrow.keys, 256);
  EXPECT_FALSE(narrow.causal);
  EXPECT_DOUBLE_EQ(pairs(attention_of(layer_of_kind(llama, {.window = 1}))), 64.0 * 128 * 128);     // the diagonal
  EXPECT_DOUBLE_EQ(pairs(attention_of(layer_of_kind(llama, {.window = 129}))), 127.0 * 128 * 128);  // 128 keys before the first query's own
  EXPECT_DOUBLE_EQ(pairs(attention_of(layer_of_kind(llama, {.window = 130}))), (3.0 * 64 - 3) * 128 * 128);
}

// All but the first blocks of keys are within reach: as good as none.
TEST(AttentionKernel, WindowsThatLeaveOutNoBlockAreNone) {
  const TemplateCase llama = llama3_8b();
  const Attention whole = attention_of(llama.layer());
  EXPECT_EQ(attention_of(layer_of_kind(llama, {.window = 7938})), whole);  // 1 + ceil(7,937 / 128) = 64 of 64
  EXPECT_NE(attention_of(layer_of_kind(llama, {.window = 7937})), whole);  // 63: not the last query's first
  EXPECT_DOUBLE_EQ(pairs(attention_of(layer_of_kind(llama, {.window = 7937}))), (64.0 * 65 / 2 - 1) * 128 * 128);
}

// A window of 128 on both sides: 64 keys each, so one block of either neighbour: 3 x 128 keys for each query.
TEST(AttentionKernel, WindowsOnBothSides) {
  TemplateCase bert = llama3_8b();
  bert.model.causal = false;
  const Attention work = attention_of(layer_of_kind(bert, {.window = 128}));
  EXPECT_EQ(work.keys, 384);
  EXPECT_EQ(work.queries, 8192);
}

TEST(AttentionKernel, RanksShareAWindowsBlocks) {
  TemplateCase llama = llama3_8b();
  const double whole = pairs(attention_of(layer_of_kind(llama, {.window = 128})));
  llama.parallel.context = 4;
  EXPECT_DOUBLE_EQ(pairs(attention_of(layer_of_kind(llama, {.window = 128}))), whole / 4);
}

// 1,024 + 3,072 + 4,096 = 8,192 tokens; squares 27,262,976, of which causal half. T^2 / squares = 2.46: two documents of 4,096 queries and
// 3,328 keys.
TEST(PackedSequences, CountSquaresOfLengths) {
  TemplateCase llama = llama3_8b();
  llama.training.packed = {1024, 3072, 4096};
  const Attention work = attention_of(llama.layer());
  EXPECT_DOUBLE_EQ(pairs(work), 27262976.0 / 2);
  EXPECT_EQ(work.batch, 2);
  EXPECT_EQ(work.queries, 4096);
  EXPECT_EQ(work.keys, 3328);
  EXPECT_TRUE(work.causal);
  // Equal lengths are as many sequences.
  llama.training.packed = {2048, 2048, 2048, 2048};
  EXPECT_EQ(attention_of(llama.layer()).batch, 4);
  EXPECT_EQ(attention_of(llama.layer()).keys, 2048);
  llama.training.packed = {8192};
  EXPECT_EQ(attention_of(llama.layer()), attention_of(llama3_8b().layer()));
}

// Lengths that divide nothing: keys to half of one.
TEST(PackedSequences, AreRoundedByHalfAKey) {
  TemplateCase llama = llama3_8b();
  llama.training.packed = {1, 777, 2500, 4914};
  const double squares = 1 + 777.0 * 777 + 2500.0 * 2500 + 4914.0 * 4914;
  const Attention work = attention_of(llama.layer());
  EXPECT_NEAR(pairs(work), squares / 2, 0.5 * static_cast<double>(work.batch * work.queries) / 2);
}

// A ring of 4 has a quarter of each document's tokens a rank, half of whose keys from the second step on.
TEST(PackedSequences, InARing) {
  TemplateCase llama = llama3_8b();
  llama.training.packed = {4096, 4096};
  llama.parallel.context = 4;
  llama.parallel.context_exchange = ContextExchange::kRing;
  double sum = 0;
  for (const TemplateOp& op : llama.layer().forward) {
    if (const auto* const work = std::get_if<Attention>(&op.work)) sum += pairs(*work);
  }
  EXPECT_DOUBLE_EQ(sum, 2.0 * 4096 * 4096 / 2 / 4);
}

// Only the second document exceeds the window: 8 blocks alone against 1 + 1 = 2 of 56.
TEST(PackedSequences, WithAWindow) {
  TemplateCase llama = llama3_8b();
  llama.training.packed = {128, 8064};
  const Attention work = attention_of(layer_of_kind(llama, {.window = 128}));
  EXPECT_NEAR(pairs(work), 128.0 * 128 / 2 + (63 * 2 - 1) * 128.0 * 128, 128);
  EXPECT_EQ(work.keys, 256);
}

TEST(PackedSequences, UnfusedAttentionComputesAllPairs) {
  TemplateCase llama = llama3_8b();
  llama.training.attention = AttentionKind::kUnfused;
  const double flops = flops_of(llama.layer().forward);
  llama.training.packed = {1024, 7168};
  EXPECT_DOUBLE_EQ(flops_of(llama.layer().forward), flops);
}

// Begins of three documents and their end, int32; a position a token, int64. A kernel that knows them needs no mask.
TEST(PackedSequences, BatchTensors) {
  TemplateCase llama = llama3_8b();
  llama.framework.creates_attention_mask = true;
  llama.training.packed = {1024, 3072, 4096};
  const LayerTemplate layer = llama.layer();
  EXPECT_EQ(bytes_of(layer, "document begins"), 4 * 4);
  EXPECT_EQ(bytes_of(layer, "position ids"), 8192 * 8);
  EXPECT_EQ(slot_named(layer, "attention mask"), kNoSlot);
  llama.training.attention = AttentionKind::kUnfused;
  EXPECT_NE(slot_named(llama.layer(), "attention mask"), kNoSlot);
}

// Codes of Attention::kernel.
TEST(AttentionKernel, IsTheFrameworks) {
  TemplateCase llama = llama3_8b();
  const auto code = [&llama](std::int32_t version) {
    llama.framework.flash_version = version;
    return static_cast<int>(attention_of(llama.layer()).kernel);
  };
  EXPECT_EQ(code(1), 4);
  EXPECT_EQ(code(2), 0);
  EXPECT_EQ(code(3), 1);
  EXPECT_EQ(code(4), 5);
  llama.training.attention = AttentionKind::kFused;
  EXPECT_EQ(code(2), 2);
}

TemplateCase low_attention_case(ScalingRecipe scaling) {
  TemplateCase llama = llama3_8b();
  llama.training.precision = Precision::kFp8;
  llama.training.scaling = scaling;
  llama.training.attention = AttentionKind::kFused;
  llama.training.low_precision_attention = true;
  return llama;
}

std::int64_t traffic_of(const std::vector<TemplateOp>& ops, const std::string& name) {
  const TemplateOp* const op = op_named(ops, name);
  return op == nullptr ? -1 : memory_traffic(op->work).value;
}

// Query 8,192 x 4,096, key and value 8,192 x 1,024 values each: 48 Mi values. Current scaling reads them twice and writes a byte:
// 2 + 2 + 1 B a value. Of the output gradient 32 Mi.
TEST(LowPrecisionAttention, CastsOperandsAndSavesThem) {
  const LayerTemplate layer = low_attention_case(ScalingRecipe::kCurrent).layer();
  EXPECT_EQ(traffic_of(layer.forward, "attention operands cast"), 5 * 48LL * (1 << 20));
  EXPECT_EQ(traffic_of(layer.backward, "attention output gradient cast"), 5 * 32LL * (1 << 20));
  EXPECT_EQ(std::get<MemoryBound>(op_named(layer.forward, "attention operands cast")->work).kernel, MemoryKernel::kQuantize);
  EXPECT_EQ(attention_of(layer).dtype, DType::kFp8);
  EXPECT_EQ(std::get<Attention>(op_named(layer.backward, "attention backward")->work).dtype, DType::kFp8);
  EXPECT_TRUE(is_saved(layer, "query, 8 bits"));
  EXPECT_FALSE(is_saved(layer, "query"));
  EXPECT_EQ(bytes_of(layer, "query, 8 bits"), 8192 * 4096);
  EXPECT_TRUE(is_saved(layer, "attention output"));  // 16 bits
  TemplateCase wide = low_attention_case(ScalingRecipe::kCurrent);
  wide.training.low_precision_attention = false;
  EXPECT_EQ(saved_bytes(wide.layer()).value - saved_bytes(layer).value, 48LL * (1 << 20));  // a byte a value less
}

// With scales from history nothing is read twice, and the kernel writes 8 bits both ways.
TEST(LowPrecisionAttention, DelayedScalingWritesEightBits) {
  const LayerTemplate layer = low_attention_case(ScalingRecipe::kDelayed).layer();
  EXPECT_EQ(traffic_of(layer.forward, "attention operands cast"), 3 * 48LL * (1 << 20));
  EXPECT_EQ(traffic_of(layer.forward, "attention output copy"), 3 * 32LL * (1 << 20));
  EXPECT_EQ(traffic_of(layer.backward, "attention gradients copy"), 3 * 48LL * (1 << 20));
  EXPECT_TRUE(is_saved(layer, "attention kernel output"));
  EXPECT_EQ(bytes_of(layer, "attention kernel output"), 8192 * 4096);
}

TEST(LowPrecisionAttention, SendsEightBitsRoundTheRing) {
  TemplateCase llama = low_attention_case(ScalingRecipe::kCurrent);
  llama.parallel.context = 4;
  llama.parallel.context_exchange = ContextExchange::kRing;
  EXPECT_EQ(collectives(llama.layer().forward, Group::kContext).front(), "key and value exchange: send 4194304 B, 4 ranks, stride 1");
}

// cuDNN's backward pass in 8 bits ignores the window: tests/validation/cudnn_attention.csv.
TEST(LowPrecisionAttention, BackwardHasNoWindow) {
  const LayerTemplate layer = layer_of_kind(low_attention_case(ScalingRecipe::kCurrent), {.window = 128});
  EXPECT_EQ(attention_of(layer).keys, 256);
  EXPECT_EQ(std::get<Attention>(op_named(layer.backward, "attention backward")->work).keys, 8192);
}

std::string refusal(const TemplateCase& of) {
  try {
    of.layer();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(LowPrecisionAttention, NeedsItsKernelAndPrecision) {
  TemplateCase llama = low_attention_case(ScalingRecipe::kCurrent);
  llama.training.attention = AttentionKind::kFlash;
  EXPECT_EQ(refusal(llama), "--fp8-attention: found --attention flash, wanted fused: no other kernel trains in 8 bits");
  llama.training.attention = AttentionKind::kFused;
  llama.training.precision = Precision::kBf16;
  EXPECT_EQ(refusal(llama), "--fp8-attention: found a --precision of 16 bits or more, wanted fp8, mxfp8 or nvfp4");
}

}  // namespace
}  // namespace stepsim
