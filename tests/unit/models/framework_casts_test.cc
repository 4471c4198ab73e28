// Kernels that a framework runs beside those that a layer needs: casts around norms and the output, norms run again, InternEvo's metrics,
// DTensor's copies of token shards. Bytes by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/training_metrics.h"
#include "tests/unit/models/template_case.h"

namespace stepsim {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;

std::int64_t traffic(const TemplateOp& op) { return memory_traffic(op.work).value; }

std::vector<std::string> names_with(const std::vector<TemplateOp>& ops, const std::string& part) {
  std::vector<std::string> names;
  for (const TemplateOp& op : ops) {
    if (op.name.find(part) != std::string::npos) names.push_back(op.name);
  }
  return names;
}

constexpr std::int64_t kHidden = 8192LL * 4096;  // values of a hidden state of Llama-3 8B
constexpr std::int64_t kRow = 4096, kStatistics = 8192;

TEST(NormCasts, ReadAndMakeFp32) {
  TemplateCase llama = llama3_8b();
  const std::int64_t saved = saved_bytes(llama.layer()).value;
  llama.framework.casts_norm_input = true;
  const LayerTemplate layer = llama.layer();
  EXPECT_THAT(names_with(layer.forward, "norm 1"), ElementsAre("norm 1 input cast", "norm 1"));
  EXPECT_EQ(traffic(*op_named(layer.forward, "norm 1 input cast")), 6 * kHidden);
  EXPECT_EQ(traffic(*op_named(layer.forward, "norm 1")), (4 + 2) * kHidden + 2 * kRow + 4 * kStatistics);
  // Backward: the gradient in 16 bits and the input in 32 read, the input's gradient in 32 written.
  EXPECT_EQ(traffic(*op_named(layer.backward, "norm 1 backward")), (2 + 4 + 4) * kHidden + 2 * kRow + 4 * kStatistics);
  EXPECT_EQ(traffic(*op_named(layer.backward, "norm 1 input gradient cast")), 6 * kHidden);
  // Both norms save an fp32 input; the layer's input and the sum behind attention are then read by no backward op.
  EXPECT_EQ(saved_bytes(layer).value, saved + 2 * (4 - 2) * kHidden);
  llama.training.precision = Precision::kFp32;
  EXPECT_THAT(names_with(llama.layer().forward, "cast"), IsEmpty());
}

TEST(NormCasts, NormsThatRunAgainSaveNoCopy) {
  TemplateCase llama = llama3_8b();
  const std::int64_t saved = saved_bytes(llama.layer()).value;
  llama.framework.casts_norm_input = llama.framework.reruns_norms = true;
  const LayerTemplate layer = llama.layer();
  EXPECT_EQ(saved_bytes(layer).value, saved);
  EXPECT_THAT(names_with(layer.backward, "norm 2"), ElementsAre("norm 2 input cast again", "norm 2 again", "norm 2 backward",
                                                                "norm 2 weight gradient", "norm 2 input gradient cast"));
  EXPECT_EQ(traffic(*op_named(layer.backward, "norm 2 again")), (4 + 2) * kHidden + 2 * kRow);
  EXPECT_THAT(names_with(llama.head().backward, "again"), IsEmpty());  // the final norm is no layer's
}

constexpr std::int64_t kLogits = 8192LL * 128256, kTokens = 8192;

TEST(OutputCast, LossesReadAndMakeFp32) {
  TemplateCase llama = llama3_8b();
  llama.training.loss = LossKind::kFused;
  llama.framework.fused_loss_keeps_logits = llama.framework.casts_output = true;
  const LayerTemplate head = llama.head();
  EXPECT_EQ(traffic(*op_named(head.forward, "logits to fp32")), 6 * kLogits);
  // In place of the fp32 logits: reads and writes 4, and a cast of 4 + 2. Beside them labels of 8 bytes and statistics of 4.
  EXPECT_EQ(traffic(*op_named(head.backward, "cross entropy backward")), 8 * kLogits + 12 * kTokens);
  EXPECT_EQ(traffic(*op_named(head.backward, "output gradient cast")), 6 * kLogits);
  EXPECT_THAT(op_named(head.backward, "head input gradient")->reads, Contains(slot_named(head, "output gradient")));
}

// InternEvo metrics.py: cross entropy 4; two maxima and a place 12; differences 4 + 4; exponentials in place 8 and sums 4: 36 B a logit.
TEST(AccuracyMetrics, ThirtySixBytesALogit) {
  TemplateCase llama = llama3_8b();
  llama.training.loss = LossKind::kFused;
  llama.framework.fused_loss_keeps_logits = llama.framework.casts_output = llama.framework.measures_accuracy = true;
  const LayerTemplate head = llama.head();
  EXPECT_THAT(names_with(head.forward, "metric"),
              ElementsAre("metric cross entropy", "metric maxima", "metric shift", "metric perplexity"));
  std::int64_t bytes = 0;
  for (const TemplateOp& op : head.forward) bytes += op.name.starts_with("metric") ? traffic(op) : 0;
  EXPECT_NEAR(static_cast<double>(bytes) / kLogits, 36, 1e-3);
  EXPECT_FALSE(metrics_follow_backward(llama.context()));
}

TemplateCase dtensor(std::int64_t micro_batch) {
  TemplateCase llama = llama3_8b();
  llama.parallel = {.tensor = 8, .sequence_parallel = true};
  llama.training.micro_batch = llama.training.global_batch = micro_batch;
  llama.framework.sequence_parallel_gather_again = false;
  llama.framework.copies_token_shards = true;
  return llama;
}

TEST(TokenShards, AreCopiedIntoOrder) {
  const LayerTemplate layer = dtensor(2).layer();
  EXPECT_THAT(names_with(layer.forward, " in order"), ElementsAre("norm 1 output in order", "norm 2 output in order"));
  EXPECT_EQ(traffic(*op_named(layer.forward, "norm 1 output in order")), 2 * 2 * 2 * kHidden);  // two sequences, read and written
  EXPECT_EQ(names_with(layer.forward, " by ranks").size(), 2u);
  EXPECT_EQ(names_with(layer.backward, " in order").size(), 2u);
  EXPECT_EQ(names_with(layer.backward, " by ranks").size(), 2u);
  // The collective fills what the copy reads; the product reads the copy.
  const SlotIndex raw = slot_named(layer, "norm 1 output, gathered by ranks"), whole = slot_named(layer, "norm 1 output, gathered");
  EXPECT_THAT(op_named(layer.forward, "norm 1 output all-gather")->writes, ElementsAre(raw));
  EXPECT_THAT(op_named(layer.forward, "qkv")->reads, Contains(whole));
  TemplateCase megatron = dtensor(2);
  megatron.framework.copies_token_shards = false;
  EXPECT_EQ(saved_bytes(layer), saved_bytes(megatron.layer()));  // the copy is saved in place of what was gathered
  TemplateCase async = dtensor(2);
  async.parallel.tensor_overlap = TensorOverlap::kRing;
  EXPECT_THAT(names_with(async.layer().forward, " in order"), IsEmpty());
}

TEST(TokenShards, OfASingleSequenceAreAView) {
  TemplateCase llama = dtensor(1);
  llama.framework.views_single_sequence = true;
  EXPECT_THAT(names_with(llama.layer().forward, " in order"), IsEmpty());
  EXPECT_EQ(names_with(llama.layer().forward, " by ranks").size(), 2u);  // scattered ones are copied all the same
  llama.training.micro_batch = llama.training.global_batch = 2;
  EXPECT_EQ(names_with(llama.layer().forward, " in order").size(), 2u);
}

// torchao: an eighth of the tokens is cast, 8 bits are gathered in forward, and of both output gradients in backward.
TEST(TokenShards, AreGatheredInEightBits) {
  TemplateCase llama = dtensor(1);
  llama.training.precision = Precision::kFp8;
  llama.framework.saves_quantised_inputs = false;
  const LayerTemplate layer = llama.layer();
  for (const char* name : {"norm 1 output all-gather", "norm 2 output all-gather"}) {
    EXPECT_EQ(std::get<Collective>(op_named(layer.forward, name)->work).message.value, kHidden) << name;
  }
  for (const char* name : {"mlp output gradient all-gather", "attention projection output gradient all-gather"}) {
    EXPECT_EQ(std::get<Collective>(op_named(layer.backward, name)->work).message.value, kHidden) << name;
  }
  EXPECT_EQ(slot_at(layer, slot_named(layer, "norm 1 output, gathered")).dtype, DType::kFp8);
  EXPECT_THAT(names_with(layer.forward, "qkv"), ElementsAre("qkv"));  // reads what was gathered: no cast of the whole
  llama.training.precision = Precision::kBf16;
  EXPECT_EQ(std::get<Collective>(op_named(llama.layer().forward, "norm 1 output all-gather")->work).message.value, 2 * kHidden);
}

}  // namespace
}  // namespace stepsim
