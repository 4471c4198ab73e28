// The two ends of models beyond a decoder with a plain head: token types, head transform and pooler (BERT), multi-token prediction,
// deferred weight gradients, the batch under context parallelism. Bytes and arithmetic by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "sim/input_error.h"
#include "tests/unit/models/template_case.h"

namespace stepsim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// --- BERT: Megatron-LM's bert_mcore cases, 24 layers, hidden 1024, 16 heads, 512 tokens, micro-batch 4, vocabulary 28996, unfused.

TemplateCase bert(std::int32_t tensor) {
  TemplateCase bert;
  bert.model.name = "bert";
  bert.model.layers = 24;
  bert.model.hidden = 1024;
  bert.model.heads = bert.model.kv_heads = 16;
  bert.model.head_dim = 64;
  bert.model.ffn_hidden = 4096;
  bert.model.vocab = 28996;
  bert.model.max_positions = 512;
  bert.model.dropout = 0.1;
  bert.model.causal = false;
  bert.model.token_types = 2;
  bert.model.head_transform = bert.model.pooler = true;
  bert.training.sequence = 512;
  bert.training.micro_batch = 4;
  bert.training.global_batch = 128;
  bert.training.attention = AttentionKind::kUnfused;
  bert.training.dropout = 0.1;
  bert.framework.name = "core";
  bert.framework.saves_norm_statistics = true;
  bert.parallel.tensor = tensor;
  return bert;
}
constexpr std::int64_t kBertState = 2LL * 512 * 4 * 1024;

TEST(Bert, EmbeddingAddsTokenTypes) {
  const LayerTemplate embedding = bert(1).embedding();
  EXPECT_THAT(op_names(embedding.forward), ElementsAre("embedding", "position embedding", "token type embedding", "embedding dropout"));
  EXPECT_THAT(op_names(embedding.backward), ElementsAre("embedding dropout backward", "token type embedding gradient",
                                                        "position embedding gradient", "embedding gradient"));
  EXPECT_EQ(embedding.parameters, (29056 + 512 + 2) * 1024);           // 28996 rows padded to a multiple of 128
  EXPECT_EQ(saved_bytes(embedding).value, kBertState / 2 + 8 * 2048);  // the mask and the token ids
}

TEST(Bert, HeadHasATransformABiasAndAPooler) {
  const LayerTemplate head = bert(1).head();
  // bert_lm_head.py: dense h^2 + h and a norm 2h; output bias V. pooler.py: h^2 + h, classifier 2h + 2. Final norm 2h.
  const std::int64_t h = 1024;
  EXPECT_EQ(head.parameters, 2 * (h * h + h) + 2 * h + 29056 + 2 * h + 2 + 2 * h);
  // Final norm: input and output; transform: product, activation, norm's output: 5 u. Two norms' statistics: 16 B a token. fp32 softmax,
  // 9 B a token of targets; pooled vectors (the pooler reads the final norm's output) and classes of 4 sequences.
  EXPECT_EQ(saved_bytes(head).value, 5 * kBertState + 16 * 2048 + 4LL * 2048 * 29056 + 9 * 2048 + 2 * 4 * 1024 + 2 * 4 * 2);
  // The bias is a kernel of its own: two logits for a moment, one at the loss.
  EXPECT_NE(op_named(head.forward, "head bias"), nullptr);
  EXPECT_EQ(slot_at(head, slot_named(head, "logits without bias")).role, Role::kLogits);
}

TEST(Bert, TransformAndPoolerAreReplicated) {
  const LayerTemplate whole = bert(1).head(), half = bert(2).head();
  // Only the output bias is divided: 29184 rows of two parts, a multiple of 256.
  EXPECT_EQ(half.parameters, whole.parameters - 29056 + 29184 / 2);
  TemplateCase sequence = bert(2);
  sequence.parallel.sequence_parallel = true;
  const LayerTemplate parts = sequence.head();
  EXPECT_EQ(slot_at(parts, slot_named(parts, "head transform product")).size.value, kBertState / 2);
  // The pooler gathers the hidden states and its product keeps them.
  EXPECT_THAT(saved_slots(parts), testing::Contains(slot_named(parts, "hidden states, gathered for the pooler")));
  EXPECT_EQ(slot_at(parts, parts.input_gradient).size.value, kBertState / 2);
}

// bert_mcore_tp2_pp2, golden_values_dev_dgx_a100.json (megatron_golden_memory.csv): mem_max_second 3,055,894,528, the last of two stages.
//   N = 12 * (12 h^2 / 2 + 7h / 2 + 6h) + 14592 h (a copy of the table) + 2 (h^2 + h) + 2h + 14592 + 2h + 2 + 2h = 92,676,354
//   bf16 weights, fp32 gradients, master weights and both moments: 18 N                        1,668,174,372
//   two cuBLAS workspaces of 32 MiB, Transformer Engine's of 4 MiB                                71,303,168
//   12 layers: 11 u + 5 B * 4 * 8 * 512^2 + 16 B a token = 88,113,152                          1,057,357,824
//   final norm's input and output, the transform's three tensors, 16 B a token                    21,004,288
//   logits and their fp32 copy: 3 * 2 * 2048 * 14592                                             179,306,496
//   receive buffer and output gradient: 2 u (spec megatron_memory.md 3.3)                          8,388,608
//   together                                                                                   3,005,534,756    -1.6 %
TEST(Bert, MeasuredPeakOfTheLastStage) {
  const TemplateCase run = bert(2);
  const LayerTemplate layer = run.layer(), head = run.head();
  const std::int64_t table = slot_at(head, slot_named(head, "word embedding weight")).size.value / 2;  // a copy on this stage
  const std::int64_t parameters = 12 * layer.parameters + head.parameters + table;
  const std::int64_t small = 9 * 2048 + 2 * 4 * 1024 + 2 * 4 * 2;  // targets, pooled vectors, classes
  const std::int64_t alive = 18 * parameters + 68 * 1'048'576 + 12 * saved_bytes(layer).value + saved_bytes(head).value - small +
                             slot_at(head, slot_named(head, "logits")).size.value + 2 * kBertState;
  EXPECT_EQ(saved_bytes(layer).value, 88'113'152);
  EXPECT_EQ(parameters, 92'676'354);
  EXPECT_EQ(alive, 3'005'534'756);
  EXPECT_LT(std::llabs(alive - 3'055'894'528), 3'055'894'528 / 20);
}

TEST(Bert, ChunkedLossIsRefused) {
  TemplateCase chunked = bert(1);
  chunked.training.loss = LossKind::kChunked;
  chunked.training.loss_chunks = 4;
  EXPECT_THAT([&] { chunked.head(); }, testing::ThrowsMessage<InputError>(HasSubstr("--loss: found chunked with bert")));
}

// --- Multi-token prediction.

TemplateCase predicting(std::int64_t layers) {
  TemplateCase llama = llama3_8b();
  llama.model.multi_token_layers = layers;
  return llama;
}
constexpr std::int64_t kLlamaState = 2LL * 8192 * 4096, kLlamaLogits = 2LL * 8192 * 128256;

TEST(MultiToken, LayerProjectionAndNorms) {
  const TemplateCase one = predicting(1), none = predicting(0);
  const std::int64_t h = 4096;
  // The table is the embedding's; three norms, a projection of 2h to h, the layer.
  EXPECT_EQ(one.head().parameters, none.head().parameters + one.layer().parameters + 2 * h * h + 3 * h);
  TemplateCase parallel = predicting(1), plain = predicting(0);
  parallel.parallel.tensor = plain.parallel.tensor = 8;
  EXPECT_EQ(parallel.head().parameters, plain.head().parameters + parallel.layer().parameters + 2 * h * h / 8 + 3 * h);
}

TEST(MultiToken, SavesALayerAndSixStates) {
  const std::int64_t layer = saved_bytes(predicting(0).layer()).value, statistics = 4LL * 8192;
  // Beside the layer with its input: the embedding 1, both norms' outputs side by side 2, the final norm's input 1 and output 1: 5 u (the
  // sixth of spec megatron_memory.md 3.2 is the embedding before its dropout, which Llama lacks). Three norms' statistics. Its own softmax,
  // and 9 B a token of targets.
  const std::int64_t added = layer + 5 * kLlamaState + 3 * statistics + 2 * kLlamaLogits + 9 * 8192;
  EXPECT_EQ(saved_bytes(predicting(1).head()).value, saved_bytes(predicting(0).head()).value + added);
  EXPECT_EQ(saved_bytes(predicting(2).head()).value, saved_bytes(predicting(0).head()).value + 2 * added);
}

TEST(MultiToken, LossesComeBehindAllLayersAndGoBackFirst) {
  const LayerTemplate head = predicting(2).head();
  const std::vector<std::string> forward = op_names(head.forward), backward = op_names(head.backward);
  const auto place = [](const std::vector<std::string>& names, const std::string& name) {
    const auto found = std::find(names.begin(), names.end(), name);
    EXPECT_NE(found, names.end()) << name;
    return found - names.begin();
  };
  EXPECT_LT(place(forward, "final norm"), place(forward, "multi-token 1 embedding"));
  EXPECT_LT(place(forward, "multi-token 1 final norm"), place(forward, "multi-token 2 embedding"));
  EXPECT_LT(place(forward, "multi-token 2 final norm"), place(forward, "multi-token 1 head"));
  EXPECT_LT(place(forward, "multi-token 1 softmax"), place(forward, "multi-token 2 head"));
  EXPECT_LT(place(forward, "multi-token 2 softmax"), place(forward, "head"));
  EXPECT_EQ(place(backward, "cross entropy backward"), 0);
  EXPECT_LT(place(backward, "head weight gradient"), place(backward, "multi-token 2 cross entropy backward"));
  EXPECT_LT(place(backward, "multi-token 2 head weight gradient"), place(backward, "multi-token 1 cross entropy backward"));
  EXPECT_LT(place(backward, "multi-token 1 head weight gradient"), place(backward, "multi-token 2 final norm backward"));
  EXPECT_LT(place(backward, "multi-token 2 embedding gradient"), place(backward, "multi-token 1 final norm backward"));
  EXPECT_EQ(backward.back(), "final norm weight gradient");
}

TEST(MultiToken, ArithmeticIsALayerAProjectionAndAHead) {
  for (const std::int32_t ranks : {1, 8}) {
    TemplateCase one = predicting(1), none = predicting(0);
    one.parallel.tensor = none.parallel.tensor = ranks;
    one.parallel.sequence_parallel = none.parallel.sequence_parallel = ranks > 1;
    const double tokens = 8192, h = 4096, v = ranks == 1 ? 128256 : 129024;  // padded to a multiple of 1024
    const double products = 2 * tokens * (2 * h * h + h * v) / ranks;
    EXPECT_EQ(flops_of(one.head().forward), flops_of(none.head().forward) + flops_of(one.layer().forward) + products);
    EXPECT_EQ(flops_of(one.head().backward), flops_of(none.head().backward) + flops_of(one.layer().backward) + 2 * products);
  }
}

TEST(MultiToken, TiedHeadHasOneTable) {
  TemplateCase tied = predicting(2);
  tied.model.tied_head = true;
  const LayerTemplate head = tied.head();
  EXPECT_EQ(std::count_if(head.slots.begin(), head.slots.end(),
                          [](const Slot& slot) {
                            return slot.shape == std::vector<std::int64_t>{128256, 4096};
                          }),
            2);  // it and its gradient
  const SlotIndex gradient = slot_named(head, "word embedding weight gradient");
  for (const char* op : {"multi-token 1 embedding gradient", "multi-token 2 embedding gradient", "multi-token 2 head weight gradient",
                         "head weight gradient"}) {
    EXPECT_THAT(op_named(head.backward, op)->updates, ElementsAre(gradient)) << op;
  }
}

// --- Deferred weight gradients.

std::vector<std::string> deferrable(const LayerTemplate& layer) {
  std::vector<std::string> names;
  for (const TemplateOp& op : layer.backward) {
    if (op.deferrable) names.push_back(op.name);
  }
  return names;
}

TEST(DeferredHead, OnlyItsWeightGradientAndWhatIsMadeForIt) {
  TemplateCase llama = llama3_8b();
  llama.parallel = {.tensor = 8, .sequence_parallel = true};
  EXPECT_TRUE(deferrable(llama.head()).empty());
  llama.training.deferred_head_gradients = 2;
  EXPECT_THAT(deferrable(llama.head()), ElementsAre("final norm output all-gather", "head weight gradient"));
  TemplateCase gpt = megatron_22b();  // tied
  gpt.training.deferred_head_gradients = 2;
  EXPECT_THAT(deferrable(gpt.head()), ElementsAre("head weight gradient"));
}

// --- Losses.

std::int64_t bytes_of(const LayerTemplate& layer, const std::vector<SlotIndex>& slots) {
  std::int64_t bytes = 0;
  for (const SlotIndex slot : slots) bytes += slot_at(layer, slot).role == Role::kLogits ? slot_at(layer, slot).size.value : 0;
  return bytes;
}

TEST(Losses, EagerOneHoldsTwelveBytesALogitInBackward) {
  TemplateCase llama = llama3_8b();
  llama.framework.loss_in_place = false;
  llama.framework.eager_loss = true;
  const LayerTemplate head = llama.head();
  // Saved log-softmax, the gradient that nll_loss makes, the one that log_softmax makes: fp32, twice Lg each.
  const TemplateOp& op = *op_named(head.backward, "cross entropy backward");
  EXPECT_EQ(bytes_of(head, op.reads) + bytes_of(head, op.writes), 12LL * 8192 * 128256);
  EXPECT_TRUE(op_named(head.backward, "logits gradient cast")->holds.empty());
}

TEST(Losses, FusedOneMayOverwriteItsLogits) {
  TemplateCase llama = llama3_8b();
  llama.training.loss = LossKind::kFused;
  EXPECT_EQ(saved_bytes(llama.head()).value, 2 * kLlamaState + 4 * 8192 + kLlamaLogits + 12 * 8192);
  llama.framework.fused_loss_keeps_logits = true;
  const LayerTemplate head = llama.head();
  EXPECT_EQ(saved_bytes(head).value, 2 * kLlamaState + 4 * 8192 + kLlamaLogits + 4 * 8192);  // logits and their log-sum-exp
  EXPECT_EQ(slot_named(head, "logits gradient"), kNoSlot);
  EXPECT_THAT(op_named(head.backward, "head weight gradient")->reads, testing::Contains(slot_named(head, "logits")));
}

// --- The batch.

TEST(ModelEnds, ContextParallelRanksHaveTheirTokens) {
  TemplateCase llama = llama3_8b();
  llama.parallel.context = 4;
  const LayerTemplate embedding = llama.embedding(), head = llama.head();
  EXPECT_EQ(slot_at(embedding, embedding.input).size.value, 8 * 8192 / 4);
  EXPECT_EQ(slot_at(embedding, embedding.output).size.value, kLlamaState / 4);
  EXPECT_EQ(slot_at(head, slot_named(head, "labels")).size.value, 8 * 8192 / 4);
  EXPECT_EQ(slot_at(head, slot_named(head, "logits")).size.value, kLlamaLogits / 4);
  // Weights are whole.
  EXPECT_EQ(head.parameters, llama3_8b().head().parameters);
}

TEST(ModelEnds, MegatronsLoaderPutsTwentyEightBytesATokenOnTheDevice) {
  TemplateCase llama = llama3_8b();
  llama.framework.global_buffers = true;
  for (const LayerTemplate& end : {llama.embedding(), llama.head()}) {
    std::int64_t batch = 0;
    for (const Slot& slot : end.slots) batch += slot.kind == SlotKind::kBatch ? slot.size.value : 0;
    EXPECT_EQ(batch, 28 * 8192) << end.name;
  }
}

}  // namespace
}  // namespace stepsim
