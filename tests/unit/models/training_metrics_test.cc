// Bytes of the losses and of metrics over the logits, a logit and by hand; how long what they make lives.
#include "models/training_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/input_error.h"
#include "tests/unit/models/small_step.h"
#include "tests/unit/models/template_case.h"

namespace stepsim {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kLogits = 8192LL * 128256;

std::int64_t traffic(const TemplateOp& op) { return memory_traffic(op.work).value; }

// Of the named ops, a logit; bytes of tokens alone are below one in the thousands.
double bytes_a_logit(const std::vector<TemplateOp>& ops, const std::vector<std::string>& names) {
  std::int64_t bytes = 0;
  for (const TemplateOp& op : ops) {
    const bool counts = std::find(names.begin(), names.end(), op.name) != names.end();
    bytes += counts ? traffic(op) : 0;
  }
  return static_cast<double>(bytes) / kLogits;
}

const std::vector<std::string> kLossOps = {"logits to fp32",
                                           "logits maximum",
                                           "target mask",
                                           "softmax numerator",
                                           "softmax",
                                           "softmax statistics",
                                           "cross entropy",
                                           "negative log likelihood",
                                           "logits gradient cast",
                                           "negative log likelihood backward",
                                           "cross entropy backward"};

double loss_bytes(const TemplateCase& job) {
  const LayerTemplate head = job.head();
  return bytes_a_logit(head.forward, kLossOps) + bytes_a_logit(head.backward, kLossOps);
}

TEST(LossTraffic, BytesOfALogit) {
  TemplateCase llama = llama3_8b();
  constexpr double kTokens = 1e-3;  // of 128,256 logits a token
  llama.framework.loss_in_place = false;
  llama.framework.eager_loss = true;
  // Forward: cast 2 + 4, log-softmax 4 + 4. Backward: nll writes 4, log-softmax reads 4 + 4 and writes 4, cast 4 + 2.
  EXPECT_NEAR(loss_bytes(llama), 14 + 22, kTokens);
  llama.training.loss = LossKind::kFused;
  // Transformer Engine: statistics read 2; loss and gradient read 2 and write 2; the gradient is scaled in backward, 2 + 2.
  EXPECT_NEAR(loss_bytes(llama), 10, kTokens);
  llama.framework.fused_loss_keeps_logits = true;
  EXPECT_NEAR(loss_bytes(llama), 6,
              kTokens);  // flash-attn: forward reads 2, backward 2 + 2 in place (reference/fsdp/mpt.py head_f, head_b)
  llama.training.loss = LossKind::kChunked;
  llama.training.loss_chunks = 8;
  EXPECT_NEAR(loss_bytes(llama), 6, kTokens);  // statistics read 2; the gradient in place 2 + 2
}

TEST(LossTraffic, EagerOneSavesFourBytesALogit) {
  TemplateCase llama = llama3_8b();
  llama.framework.loss_in_place = false;
  llama.framework.eager_loss = true;
  const LayerTemplate head = llama.head();
  std::int64_t logits = 0;
  for (const SlotIndex slot : saved_slots(head)) logits += slot_at(head, slot).role == Role::kLogits ? slot_at(head, slot).size.value : 0;
  EXPECT_EQ(logits, 4 * kLogits);
  // Forward ends with 16-bit logits, their copy and the log-softmax at once: 10 B.
  const TemplateOp& softmax = *op_named(head.forward, "softmax");
  EXPECT_EQ(traffic(softmax), 8 * kLogits);
  EXPECT_THAT(softmax.holds, testing::ElementsAre(slot_named(head, "logits")));
  // Ranks that share the vocabulary go Megatron-LM's way: maximum, denominator and target's logit are reduced.
  llama.parallel.tensor = 8;
  EXPECT_NE(op_named(llama.head().forward, "softmax denominator all-reduce"), nullptr);
}

TEST(LossTraffic, VocabularyIsPaddedAndShared) {
  TemplateCase mpt = llama3_8b();
  mpt.model.vocab = 50368;
  mpt.framework.vocab_multiple = 1;
  EXPECT_EQ(slot_at(mpt.head(), slot_named(mpt.head(), "logits")).shape, (std::vector<std::int64_t>{8192, 50368}));
  mpt.framework.vocab_multiple = 128;
  mpt.parallel.tensor = 8;  // 50 x 1,024 rows, an eighth each
  EXPECT_EQ(slot_at(mpt.head(), slot_named(mpt.head(), "logits")).shape, (std::vector<std::int64_t>{8192, 6400}));
}

// --- Metrics.

TemplateCase measured() {
  TemplateCase mpt = llama3_8b();
  mpt.training.loss = LossKind::kFused;
  mpt.framework.fused_loss_keeps_logits = true;
  mpt.framework.metric_passes = 2;
  return mpt;
}

const std::vector<std::string> kMetricOps = {"metric logits to fp32", "metric log-softmax", "metric loss"};

// spec accuracy.md B.1: 2 x 14 B a logit, 6 of the cast and 8 of the log-softmax.
TEST(TrainingMetrics, FourteenBytesALogitEach) {
  const TemplateCase mpt = measured();
  const LayerTemplate embedding = mpt.embedding();
  EXPECT_THAT(bytes_a_logit(embedding.backward, kMetricOps), testing::DoubleNear(28, 1e-3));
  EXPECT_EQ(traffic(*op_named(embedding.backward, "metric logits to fp32")), 6 * kLogits);
  EXPECT_EQ(traffic(*op_named(embedding.backward, "metric log-softmax")), 8 * kLogits);
  EXPECT_EQ(bytes_a_logit(mpt.head().forward, kMetricOps), 0);
  EXPECT_EQ(embedding.backward.back().name, "metric loss");
  EXPECT_EQ(slot_at(embedding, slot_named(embedding, "logits")).kind, SlotKind::kShared);
  TemplateCase single = measured();
  single.training.precision = Precision::kFp32;  // no copy
  EXPECT_THAT(bytes_a_logit(single.embedding().backward, kMetricOps), testing::DoubleNear(16, 1e-3));
}

// Megatron-LM's batch, of which the embedding holds the labels, has them once.
TEST(TrainingMetrics, BesideABatchThatIsHeldWhole) {
  TemplateCase megatron = measured();
  megatron.framework.global_buffers = true;
  const LayerTemplate embedding = megatron.embedding();
  std::int64_t labels = 0;
  for (const Slot& slot : embedding.slots) labels += slot.name == "labels" ? 1 : 0;
  EXPECT_EQ(labels, 1);
  EXPECT_THAT(bytes_a_logit(embedding.backward, kMetricOps), testing::DoubleNear(28, 1e-3));
}

TEST(TrainingMetrics, FollowTheLossWhereTheEmbeddingIsElsewhere) {
  TemplateCase mpt = measured();
  mpt.parallel.pipeline = 2;
  EXPECT_EQ(bytes_a_logit(mpt.embedding().backward, kMetricOps), 0);
  const LayerTemplate head = mpt.head();
  EXPECT_THAT(bytes_a_logit(head.forward, kMetricOps), testing::DoubleNear(28, 1e-3));
  EXPECT_EQ(head.forward.back().name, "metric loss");
  TemplateCase none = measured();
  none.framework.metric_passes = 0;
  EXPECT_EQ(bytes_a_logit(none.head().forward, kMetricOps) + bytes_a_logit(none.embedding().backward, kMetricOps), 0);
  EXPECT_EQ(slot_named(none.embedding(), "logits"), kNoSlot);
}

TEST(TrainingMetrics, NeedAllLogits) {
  TemplateCase mpt = measured();
  mpt.training.loss = LossKind::kChunked;
  mpt.training.loss_chunks = 4;
  EXPECT_THAT([&] { mpt.head(); }, testing::ThrowsMessage<InputError>(HasSubstr("--loss: found chunked with core")));
}

// Logits live from the head's product to the last metric; two fp32 tensors of each metric at once, one metric behind the other.
TEST(TrainingMetrics, LiveBehindTheBackwardPass) {
  StepRequest request;
  request.model = load_model("gpt2-124m");
  request.training.sequence = 1024;
  request.training.loss = LossKind::kFused;
  request.framework.fused_loss_keeps_logits = true;
  request.framework.metric_passes = 2;
  request.training.global_batch = 2;
  const BuiltStep built = build_step(request);
  const OpGraph& graph = built.graph;
  const StepResult result = run_step(built);
  ASSERT_FALSE(result.deadlock.has_value());
  EXPECT_EQ(count_ops(graph, "metric log-softmax"), 4);  // two of each micro-batch
  const std::vector<StorageId> logits = storages_of(graph, "logits");
  ASSERT_EQ(logits.size(), 2u);
  EXPECT_EQ(life_of(graph, result, logits.front()), (Life{"forward head mb0", "backward metric loss mb0"}));
  EXPECT_EQ(graph.bucket(storage_of(graph, logits.front()).role), static_cast<std::int32_t>(Role::kLogits));
  const std::int64_t lg = 1024LL * 50304;  // padded to a multiple of 128
  EXPECT_EQ(storage_of(graph, logits.front()).size.value, 2 * lg);
  std::int64_t now = 0, most = 0;
  for (const MemoryEvent& event : result.memory) {
    if (!graph.label(storage_of(graph, event.storage).name).starts_with("metric")) continue;
    now += event.bytes.value;
    most = std::max(most, now);
  }
  EXPECT_EQ(most, 8 * lg);
  EXPECT_EQ(now, 0);
}

}  // namespace
}  // namespace stepsim
