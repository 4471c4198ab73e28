// What layers of one model differ in, and what today's dense layers have: windows, directions, rotary positions, post norms, sinks, norms
// of q and k; latent attention; sequences shared by context-parallel ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/core_attention.h"
#include "models/placement_plan.h"
#include "models/template_builder.h"
#include "tests/unit/models/mixture_case.h"

namespace stepsim {
namespace {

using testing::ElementsAre;

Attention attention_of(const LayerTemplate& layer) { return std::get<Attention>(op_named(layer.forward, "attention")->work); }

// 64 blocks of 128 queries, each of which touches 1 + ceil(999 / 128) = 9 blocks of keys, the first 8 fewer: 64 x 9 - 36.
TEST(LayerKinds, WindowCountsTheBlocksThatItTouches) {
  const TemplateCase llama = llama3_8b();  // 8,192 tokens, 32 heads of 128
  const LayerTemplate layer = layer_of_kind(llama, {.window = 1000});
  const double flops = arithmetic(op_named(layer.forward, "attention")->work).value;
  EXPECT_DOUBLE_EQ(flops, 4.0 * 32 * 128 * (540 * 128 * 128));
  EXPECT_FALSE(attention_of(layer).causal);
  EXPECT_EQ(saved_bytes(layer), saved_bytes(llama.layer()));
  // A window that nothing exceeds is none.
  EXPECT_EQ(attention_of(layer_of_kind(llama, {.window = 8192})), attention_of(llama.layer()));
}

TEST(LayerKinds, EncodersSeeBothWays) {
  TemplateCase bert = paper_case(12, 768, 12, 4);
  bert.training.attention = AttentionKind::kFlash;
  const double causal = arithmetic(op_named(bert.layer().forward, "attention")->work).value;
  bert.model.causal = false;
  EXPECT_DOUBLE_EQ(arithmetic(op_named(bert.layer().forward, "attention")->work).value, 2 * causal);
  bert.model.causal = true;
  EXPECT_DOUBLE_EQ(arithmetic(op_named(layer_of_kind(bert, {.side = LayerSide::kEncoder}).forward, "attention")->work).value, 2 * causal);
}

TEST(LayerKinds, LayersWithoutRotaryPositions) {
  const TemplateCase llama = llama3_8b();
  const LayerTemplate layer = layer_of_kind(llama, {.rotary = false});
  EXPECT_EQ(op_named(layer.forward, "rotary"), nullptr);
  EXPECT_NE(op_named(llama.layer().forward, "rotary"), nullptr);
  EXPECT_EQ(saved_bytes(layer), saved_bytes(llama.layer()));  // the joint tensor in place of its rotated parts
}

TEST(LayerKinds, PostNormsSaveWhatTheyNormalise) {
  TemplateCase gemma = llama3_8b();
  const std::int64_t without = saved_bytes(gemma.layer()).value;
  gemma.model.post_norms = true;
  const LayerTemplate layer = gemma.layer();
  EXPECT_EQ(saved_bytes(layer).value - without, 2 * (2 * 4096 + 4) * 8192LL);
  EXPECT_EQ(layer.parameters - llama3_8b().layer().parameters, 2 * 4096);
  EXPECT_TRUE(is_saved(layer, "attention projection output"));
  EXPECT_FALSE(is_saved(layer, "attention post norm output"));
}

TEST(LayerKinds, SinksAreAWeightOfHeads) {
  TemplateCase each = llama3_8b();
  each.model.attention_sinks = true;
  for (const AttentionKind attention : {AttentionKind::kFlash, AttentionKind::kUnfused}) {
    each.training.attention = attention;
    each.parallel.tensor = 4;
    const LayerTemplate layer = each.layer();
    EXPECT_EQ(slot_at(layer, slot_named(layer, "attention sinks")).shape, (std::vector<std::int64_t>{8}));
    int updates = 0;
    for (const TemplateOp& op : layer.backward) {
      updates += static_cast<int>(std::count(op.updates.begin(), op.updates.end(), slot_named(layer, "attention sinks gradient")));
    }
    EXPECT_EQ(updates, 1);
  }
}

// spec/megatron_memory.md 3.2: the joint tensor stays beside q, k and v: T (nq + 2 nkv) 2 B more, with or without rotary positions.
TEST(LayerKinds, NormsOfQueriesAndKeys) {
  TemplateCase gpt = gpt3_175b();
  gpt.training.attention = AttentionKind::kFlash;
  gpt.framework.transformer_engine = true;
  const std::int64_t without = saved_bytes(gpt.layer()).value, parameters = gpt.layer().parameters;
  gpt.model.qk_norm = true;
  EXPECT_EQ(saved_bytes(gpt.layer()).value - without, 2048LL * 3 * 12288 * 2);
  EXPECT_EQ(gpt.layer().parameters - parameters, 4 * 128);  // LayerNorm: weight and bias of head_dim, of q and of k
  gpt.model.normalization = Normalization::kRmsNorm;
  gpt.model.norm_bias = false;
  gpt.model.position = Position::kRotary;
  EXPECT_EQ(saved_bytes(gpt.layer()).value - without, 2048LL * 3 * 12288 * 2);
}

// q_rank 24, kv_rank 16, heads of 8 + 4 and 6; T = 8 tokens, hidden 16, two heads.
TemplateCase small_latent() {
  TemplateCase each = small_mixture();
  each.model.experts = {};
  each.model.qk_norm = true;
  each.model.latent = {.q_rank = 24, .kv_rank = 16, .nope_dim = 8, .rope_dim = 4, .value_dim = 6};
  return each;
}

TEST(LatentAttention, SavedByHand) {
  TemplateCase each = small_latent();
  const LayerTemplate layer = each.layer();
  // A token: x, y1, x2, y2 4 x 32; latents and their norms 2 x 48 + 2 x 32; q and k 2 x 48, v and o 2 x 24; log-sum-exp 8; 4 rstd 16;
  // dense MLP of 64: 6 x 64 = 384.
  EXPECT_EQ(saved_bytes(layer).value, 8 * (128 + 96 + 64 + 96 + 48 + 8 + 16 + 384));
  // Down and up: 16 x 24 + 24 x 24, 16 x 20 + 16 x 28; norms 24 and 16; projection 12 x 16; two norms of 16; MLP 3 x 16 x 64.
  EXPECT_EQ(layer.parameters, 384 + 576 + 320 + 448 + 40 + 192 + 32 + 3072);
  each.model.qk_norm = false;  // 2 (24 + 16) of norms' outputs and 2 rstd a token
  EXPECT_EQ((saved_bytes(layer) - saved_bytes(each.layer())).value, 8 * (80 + 8));
}

TEST(LatentAttention, DirectQueries) {
  TemplateCase each = small_latent();
  each.model.latent.q_rank = 0;
  const LayerTemplate layer = each.layer();
  EXPECT_EQ(slot_at(layer, slot_named(layer, "query weight")).shape, (std::vector<std::int64_t>{24, 16}));
  EXPECT_EQ(op_named(layer.forward, "query down"), nullptr);
  EXPECT_EQ((saved_bytes(small_latent().layer()) - saved_bytes(layer)).value, 8 * (2 * 48 + 4));
}

// Down products on this rank's tokens with whole weights, up products on all tokens with this rank's heads (T' of megatron_memory.md 3.2).
TEST(LatentAttention, TensorAndSequenceParallel) {
  TemplateCase each = small_latent();
  each.parallel = {.tensor = 2, .sequence_parallel = true};
  const LayerTemplate layer = each.layer();
  EXPECT_EQ(slot_at(layer, slot_named(layer, "query down weight")).shape, (std::vector<std::int64_t>{24, 16}));
  EXPECT_EQ(slot_at(layer, slot_named(layer, "query latent")).shape, (std::vector<std::int64_t>{4, 24}));
  EXPECT_EQ(slot_at(layer, slot_named(layer, "query up weight")).shape, (std::vector<std::int64_t>{12, 24}));
  EXPECT_EQ(slot_at(layer, slot_named(layer, "key")).shape, (std::vector<std::int64_t>{8, 1, 12}));
  EXPECT_EQ(slot_at(layer, slot_named(layer, "value")).shape, (std::vector<std::int64_t>{8, 1, 6}));
  const auto& down = std::get<Gemm>(op_named(layer.forward, "query down")->work);
  EXPECT_EQ(down.m, 4);
  const auto& up = std::get<Gemm>(op_named(layer.forward, "key-value up")->work);
  EXPECT_EQ(up.m, 8);
  EXPECT_EQ(up.n, 14);
  EXPECT_EQ(slot_at(layer, layer.input_gradient).shape, (std::vector<std::int64_t>{4, 16}));
  // The latents, 4 x 24 and 4 x 16 values, are gathered, and the rotary key.
  EXPECT_THAT(collectives(layer.forward, Group::kTensor),
              ElementsAre("query latent norm output all-gather: all-gather 384 B, 2 ranks, stride 1",
                          "rotary key all-gather: all-gather 64 B, 2 ranks, stride 1",
                          "key-value latent norm output all-gather: all-gather 256 B, 2 ranks, stride 1",
                          "attention projection output reduce-scatter: reduce-scatter 256 B, 2 ranks, stride 1",
                          "norm 2 output all-gather: all-gather 256 B, 2 ranks, stride 1",
                          "mlp output reduce-scatter: reduce-scatter 256 B, 2 ranks, stride 1"));
}

TEST(LatentAttention, FlopsOfUnequalWidths) {
  const LayerTemplate layer = small_latent().layer();
  // 2 heads, 8 x 8 pairs of which half: 2 x 64 x (12 + 6).
  EXPECT_DOUBLE_EQ(arithmetic(op_named(layer.forward, "attention")->work).value, 2 * 2 * 64 / 2 * (12 + 6));
}

TEST(LatentAttention, UpProjectionsAreMadeAgain) {
  const TemplateCase each = small_latent();
  const LayerTemplate layer = each.layer();
  PlacementPolicy policy;
  policy.granularity = RecomputeGranularity::kSelective;
  policy.modules = {"mla_up_proj"};
  const PlacementPlan plan = make_plan(layer, 3, policy, each.framework);
  EXPECT_EQ(plan_error(plan, layer, 3), "");
  std::vector<std::string> again;
  for (const PlanStep& step : plan.backward) {
    if (step.verb != PlanVerb::kForward || step.layer != 2) continue;
    for (std::int32_t op = step.first; op <= step.last; ++op) again.push_back(layer.forward[static_cast<std::size_t>(op)].name);
  }
  EXPECT_THAT(again, testing::IsSupersetOf({"query up", "key-value up", "rotary query", "key-value heads", "query latent norm"}));
  EXPECT_THAT(again, testing::Not(testing::Contains("query down")));
  EXPECT_THAT(again, testing::Not(testing::Contains("attention")));
}

// A quarter of the sequence a rank; keys and values, 2 x 8,192 x 8 x 128 values, are gathered in forward and in backward, their gradients
// scattered. What stays is this rank's.
TEST(ContextParallel, SharesTheSequence) {
  TemplateCase llama = llama3_8b();
  const std::int64_t whole = saved_bytes(llama.layer()).value;
  const double flops = flops_of(llama.layer().forward);
  llama.parallel.context = 4;
  const LayerTemplate layer = llama.layer();
  EXPECT_EQ(saved_bytes(layer).value, whole / 4);
  EXPECT_DOUBLE_EQ(flops_of(layer.forward), flops / 4);
  EXPECT_EQ(attention_of(layer).queries, 2048);
  EXPECT_EQ(attention_of(layer).keys, 8192);
  EXPECT_THAT(collectives(layer.forward, Group::kContext), ElementsAre("key all-gather: all-gather 16777216 B, 4 ranks, stride 1",
                                                                       "value all-gather: all-gather 16777216 B, 4 ranks, stride 1"));
  EXPECT_THAT(
      collectives(layer.backward, Group::kContext),
      ElementsAre("key all-gather: all-gather 16777216 B, 4 ranks, stride 1", "value all-gather: all-gather 16777216 B, 4 ranks, stride 1",
                  "key gradient reduce-scatter: reduce-scatter 16777216 B, 4 ranks, stride 1",
                  "value gradient reduce-scatter: reduce-scatter 16777216 B, 4 ranks, stride 1"));
  llama.parallel.tensor = 2;
  EXPECT_EQ(collectives(llama.layer().forward, Group::kContext).front(), "key all-gather: all-gather 8388608 B, 4 ranks, stride 2");
}

// spec/megatron_memory.md section 3: A = b (n / tp) (s / cp) s, the mask b (s / cp) s.
TEST(ContextParallel, ScoresAndMask) {
  TemplateCase gpt = megatron_22b();
  gpt.framework.creates_attention_mask = gpt.framework.mask_per_sequence = true;
  gpt.parallel = {.tensor = 8, .context = 2};
  const LayerTemplate layer = gpt.layer();
  EXPECT_EQ(bytes_of(layer, "attention softmax"), 2LL * 4 * (64 / 8) * 1024 * 2048);
  EXPECT_EQ(bytes_of(layer, "attention mask"), 4LL * 1024 * 2048);
  gpt.training.attention = AttentionKind::kFlash;
  EXPECT_EQ(bytes_of(gpt.layer(), "attention log-sum-exp"), -1);  // this accounting has none
  EXPECT_EQ(saved_bytes(gpt.layer()).value, (10 * 2048 * 4 * 6144 + 24 * 2048 * 4 * 6144 / 8) / 2);
}

// Local attention makes its scores in the global buffer, which is a resident of the step.
TEST(CoreAttention, ScoresInTheGlobalBuffer) {
  TemplateCase gpt = megatron_22b();
  const LayerTemplate before = gpt.layer();
  gpt.framework.global_buffers = true;
  const LayerTemplate layer = gpt.layer();
  EXPECT_EQ(slot_named(layer, "attention scores"), kNoSlot);
  EXPECT_EQ(op_names(layer.forward), op_names(before.forward));
  for (std::size_t i = 0; i < layer.forward.size(); ++i) EXPECT_EQ(layer.forward[i].work, before.forward[i].work);
  EXPECT_EQ(saved_bytes(layer), saved_bytes(before));
  gpt.framework.transformer_engine = true;
  EXPECT_NE(slot_named(gpt.layer(), "attention scores"), kNoSlot);
}

// Their padding masks hold a byte a token (spec/megatron_memory.md T13: nothing measurable).
TEST(CoreAttention, BidirectionalModelsHaveNoSquareMask) {
  TemplateCase bert = megatron_22b();
  bert.framework.creates_attention_mask = true;
  EXPECT_NE(slot_named(bert.layer(), "attention mask"), kNoSlot);
  bert.model.causal = false;
  EXPECT_EQ(slot_named(bert.layer(), "attention mask"), kNoSlot);
}

}  // namespace
}  // namespace stepsim
