#include "models/flops.h"

#include <gtest/gtest.h>

namespace stepsim {
namespace {

// 1 layer, hidden 8, 4 heads of 2, 2 key-value heads, ffn 32, vocabulary 100, gated, untied.
ModelSpec small_model() {
  return parse_model(
      "layers: 1 hidden: 8 heads: 4 kv_heads: 2 ffn_hidden: 32 vocab: 100 normalization: RMS_NORM activation: SWIGLU position: ROTARY",
      "m");
}

TEST(Flops, NamesAreRoundTrips) {
  EXPECT_EQ(all_conventions().size(), 8u);
  for (const FlopsConvention convention : all_conventions()) EXPECT_EQ(convention_from_name(convention_name(convention)), convention);
  EXPECT_EQ(convention_from_name("megatron"), std::nullopt);
  EXPECT_EQ(convention_name(FlopsConvention::kLlmFoundry), "llm-foundry");
}

TEST(Flops, DefaultConventionFollowsTheArchitecture) {
  EXPECT_EQ(default_convention(load_model("gpt3-175b")), FlopsConvention::kMegatronFull);
  EXPECT_EQ(default_convention(load_model("mpt-7b")), FlopsConvention::kMegatronFull);
  EXPECT_EQ(default_convention(load_model("llama3-8b")), FlopsConvention::kMegatronCausal);
  EXPECT_EQ(default_convention(load_model("palm-540b")), FlopsConvention::kMegatronCausal);  // LayerNorm with SwiGLU
}

TEST(Flops, OfOneTokenOfASmallModel) {
  // Matrices: q 64, k 32, v 32, o 64, three of 256: 960. Attention on 10 keys: 4 x 8 x 10 = 320. Head padded to 128: 2 x 8 x 128 = 2048.
  const FlopsPerToken full = flops_per_token(FlopsConvention::kMegatronFull, small_model(), 10, 128);
  EXPECT_EQ(full.layer_matrices, 1920);
  EXPECT_EQ(full.attention, 320);
  EXPECT_EQ(full.head, 2048);
  EXPECT_EQ(full.model, 3 * (1920 + 320 + 2048));
  EXPECT_EQ(flops_per_token(FlopsConvention::kMegatronCausal, small_model(), 10, 128).attention, 160);
  EXPECT_EQ(flops_per_token(FlopsConvention::kMaxText, small_model(), 10, 128).head, 1600);  // 100 rows, not padded
  // N = 960 + 16 (two norms) + 8 (final) + 2 x 800
  EXPECT_EQ(flops_per_token(FlopsConvention::k6N, small_model(), 10, 128).model, 6 * 2584);
  EXPECT_EQ(flops_per_token(FlopsConvention::kPalm, small_model(), 10, 128).model, 6 * 2584 + 3 * 320);
  EXPECT_EQ(flops_per_token(FlopsConvention::kTorchTitan, small_model(), 10, 128).model, 6 * 1784 + 3 * 320);
  EXPECT_EQ(flops_per_token(FlopsConvention::kLlmFoundry, small_model(), 10, 128).model, 6 * 1784 + 3 * 320);
  EXPECT_EQ(flops_per_token(FlopsConvention::k6NWithoutEmbedding, small_model(), 10, 128).model, 6 * 1784);
}

TEST(Flops, TiedHeadsPartTheConventions) {
  ModelSpec model = small_model();
  model.tied_head = true;  // N = 984 + 800
  EXPECT_EQ(flops_per_token(FlopsConvention::kMegatronFull, model, 10, 100).head, 1600);
  EXPECT_EQ(flops_per_token(FlopsConvention::kLlmFoundry, model, 10, 100).model, 6 * 1784 + 3 * 320);  // keeps the table: it is the head
  EXPECT_EQ(flops_per_token(FlopsConvention::kTorchTitan, model, 10, 100).model, 6 * 984 + 3 * 320);   // drops it: models/utils.py
}

TEST(Flops, StepCountsEveryTokenAndWhatRunsAgain) {
  TrainingRecipe training;
  training.sequence = 10;
  training.micro_batch = 1;
  training.global_batch = 6;
  const auto hardware = [&](FlopsConvention convention, const Rerun& rerun) {
    const StepFlops flops = step_flops(convention, small_model(), training, 128, rerun);
    return (flops.hardware.value - flops.model.value) / 60;  // per token
  };
  EXPECT_EQ(step_flops(FlopsConvention::kMegatronFull, small_model(), training, 128, {}).model.value, 60.0 * 12864);
  EXPECT_EQ(hardware(FlopsConvention::kMegatronFull, {}), 0);
  EXPECT_EQ(hardware(FlopsConvention::kMegatronFull, {.layer_matrices = 1, .attention = 1}), 1920 + 320);
  EXPECT_EQ(hardware(FlopsConvention::kMegatronFull, {.attention = 1}), 3 * 320);  // equation 8 counts it three times
  EXPECT_EQ(hardware(FlopsConvention::kMegatronCausal, {.attention = 1}), 160);
  EXPECT_EQ(hardware(FlopsConvention::kMegatronCausal, {.head = 0.5}), 1024);
  EXPECT_EQ(hardware(FlopsConvention::k6N, {.layer_matrices = 1, .attention = 1}), 2 * 976);
  EXPECT_EQ(hardware(FlopsConvention::kLlmFoundry, {.layer_matrices = 1, .attention = 1}), 2 * 1784 + 320);  // a third of the model FLOPs
}

// One dense layer and two of four experts, of which a token passes two. A dense layer of small_model(): 192 of attention, 768 of the MLP; a
// layer of experts: 192, router 8 x 4, two times 3 x 8 x 16.
ModelSpec small_experts() {
  return parse_model(
      "layers: 3 hidden: 8 heads: 4 kv_heads: 2 ffn_hidden: 32 vocab: 100 normalization: RMS_NORM activation: SWIGLU position: ROTARY "
      "experts { experts: 4 top_k: 2 ffn_hidden: 16 layers: \"[0,1,1]\" }",
      "m");
}

TEST(Flops, SumsOverLayersOfAllKinds) {
  const FlopsPerToken megatron = flops_per_token(FlopsConvention::kMegatronFull, small_experts(), 10, 100);
  EXPECT_EQ(megatron.layer_matrices, 2 * (960 + 2 * (192 + 768)));  // without the router
  EXPECT_EQ(megatron.attention, 3 * 320);
  const FlopsPerToken maxtext = flops_per_token(FlopsConvention::kMaxText, small_experts(), 10, 100);
  EXPECT_EQ(maxtext.layer_matrices, 2 * (960 + 2 * (192 + 768 + 32)));
  EXPECT_EQ(maxtext.attention, 3 * 160);
  // active: matrices, 2 norms of 8 in each layer and the final one, both tables
  EXPECT_EQ(flops_per_token(FlopsConvention::k6N, small_experts(), 10, 100).model, 6 * (960 + 2 * 992 + 7 * 8 + 1600));
  TrainingRecipe training;
  training.sequence = 10;
  const StepFlops flops =
      step_flops(FlopsConvention::kMegatronCausal, small_experts(), training, 100, {.layer_matrices = 3, .attention = 3});
  EXPECT_EQ((flops.hardware.value - flops.model.value) / 10, megatron.layer_matrices + megatron.attention / 2);  // all three once more
}

// A window of 4 limits the keys of 10 queries where products are added up; conventions with 12 L H Q T do not know it.
TEST(Flops, WindowsLimitKeys) {
  ModelSpec model = small_model();
  model.layers = 2;
  model.attention_window = 4;
  model.window_layers = {1, 0};
  EXPECT_EQ(flops_per_token(FlopsConvention::kMegatronFull, model, 10, 128).attention, 4 * 8 * 4 + 320);
  EXPECT_EQ(flops_per_token(FlopsConvention::kMaxText, model, 10, 128).attention, (4 * 8 * 4 + 320) / 2);  // MaxText's gemma2 halves both
  EXPECT_EQ(flops_per_token(FlopsConvention::kPalm, model, 10, 128).attention, 640);
  model.window_layers = {};
  EXPECT_EQ(flops_per_token(FlopsConvention::kMegatronFull, model, 3, 128).attention, 2 * 4 * 8 * 3);  // wider than the sequence
}

// BERT attends both ways: nothing to halve.
TEST(Flops, OnlyCausalAttentionIsHalved) {
  ModelSpec model = small_model();
  model.causal = false;
  EXPECT_EQ(flops_per_token(FlopsConvention::kMegatronCausal, model, 10, 128).attention, 320);
}

// One encoder and one decoder layer of GPT's shape, h = 8, 10 and 5 tokens: per encoder token. The encoder: 12h^2 = 768 and 4h x 10 keys.
// The decoder, half as many tokens: 14h^2 of its own, keys and values of the encoder's output 2h^2 for each encoder token, 4h x 5 of its
// own keys and 4h x 10 of the encoder's.
TEST(Flops, EncoderDecodersHaveTwoSequences) {
  const ModelSpec model = parse_model(
      "layers: 2 encoder_layers: 1 hidden: 8 heads: 4 ffn_hidden: 32 vocab: 100 max_positions: 16 normalization: LAYER_NORM "
      "activation: GELU position: LEARNED linear_bias: true tied_head: true",
      "m");
  const FlopsPerToken flops = flops_per_token(FlopsConvention::kMegatronFull, model, 10, 100, 5);
  EXPECT_EQ(flops.layer_matrices, 2 * 768 + 2 * (14 * 64 * 0.5 + 2 * 64));
  EXPECT_EQ(flops.attention, 32 * 10 + (32 * 5 + 32 * 10) * 0.5);
  EXPECT_EQ(flops.head, 2 * 800 * 0.5);
}

TemplateOp gemm(const std::string& module, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t batch = 1) {
  TemplateOp op;
  op.module = module;
  op.work = Gemm{.m = m, .n = n, .k = k, .batch = batch};
  return op;
}

// Matrices 2 x 4 x 8 x 8 = 512 and 2 x 4 x 8 x 24 = 1536; attention two batched products of 2 x 4 x 4 x 2 x 4 heads = 256 each.
LayerTemplate small_layer() {
  LayerTemplate layer;
  layer.forward = {gemm("", 4, 8, 8), gemm("core_attn", 4, 4, 2, 4), TemplateOp{}, gemm("core_attn", 4, 2, 4, 4), gemm("mlp", 4, 8, 24)};
  layer.forward[2].work = MemoryBound{Bytes(100), Bytes(100)};
  return layer;
}

PlanStep again(std::int32_t layer, std::int32_t first, std::int32_t last) {
  return {.verb = PlanVerb::kForward, .layer = layer, .first = first, .last = last, .again = true};
}

TEST(Flops, RerunOfPlanCountsOpsByTheirArithmetic) {
  PlacementPlan plan;
  plan.forward = {{.verb = PlanVerb::kForward, .layer = 0, .first = 0, .last = 4},
                  {.verb = PlanVerb::kForward, .layer = 1, .first = 0, .last = 4}};
  EXPECT_EQ(rerun_of_plan(plan, small_layer(), 2).layer_matrices, 0);
  plan.backward = {again(1, 1, 3), {.verb = PlanVerb::kBackward, .layer = 1}, again(0, 1, 3)};
  Rerun rerun = rerun_of_plan(plan, small_layer(), 2);  // selective: attention of both layers
  EXPECT_EQ(rerun.layer_matrices, 0);
  EXPECT_EQ(rerun.attention, 2);
  plan.backward = {again(1, 0, 4), again(0, 0, 4)};
  rerun = rerun_of_plan(plan, small_layer(), 2);  // full
  EXPECT_EQ(rerun.layer_matrices, 2);
  EXPECT_EQ(rerun.attention, 2);
  plan.backward = {again(1, 0, 1)};
  rerun = rerun_of_plan(plan, small_layer(), 2);  // the first matrix and half of the attention
  EXPECT_EQ(rerun.layer_matrices, 0.25);
  EXPECT_EQ(rerun.attention, 0.5);
}

TEST(Flops, RerunOfPlanKnowsFusedAttention) {
  LayerTemplate layer = small_layer();
  layer.forward[1].work = Attention{.batch = 1, .heads = 4, .kv_heads = 4, .queries = 4, .keys = 4, .head_dim = 2};
  layer.forward[1].module = "";
  layer.forward.erase(layer.forward.begin() + 2, layer.forward.begin() + 4);
  PlacementPlan plan;
  plan.backward = {again(0, 1, 1)};
  EXPECT_EQ(rerun_of_plan(plan, layer, 1).attention, 1);
  EXPECT_EQ(rerun_of_plan(plan, layer, 1).layer_matrices, 0);
  plan.backward = {again(0, 1, 3)};
  EXPECT_THROW(rerun_of_plan(plan, layer, 1), std::logic_error);  // three ops only
}

// Documents of 1,024, 3,072 and 4,096 tokens: Megatron-LM's attention by squares, 27,262,976 of 8,192^2; the others' formulas know one
// length.
TEST(Flops, PackedDocumentsBySquaresWhereTheConventionCountsThem) {
  const ModelSpec model = load_model("llama3-8b");
  const std::vector<std::int64_t> packed = {1024, 3072, 4096};
  const auto attention = [&](FlopsConvention convention, std::span<const std::int64_t> documents) {
    return flops_per_token(convention, model, 8192, 128256, 0, documents).attention;
  };
  for (const FlopsConvention convention : {FlopsConvention::kMegatronCausal, FlopsConvention::kMegatronFull}) {
    EXPECT_NEAR(attention(convention, packed) / attention(convention, {}), 27262976.0 / (8192.0 * 8192), 1e-12);
  }
  for (const FlopsConvention convention : {FlopsConvention::kMaxText, FlopsConvention::kPalm, FlopsConvention::kTorchTitan}) {
    EXPECT_DOUBLE_EQ(attention(convention, packed), attention(convention, {}));
  }
  TrainingRecipe training;
  training.sequence = 8192;
  const double whole = step_flops(FlopsConvention::kMegatronCausal, model, training, 128256, {}).model.value;
  training.packed = packed;
  EXPECT_LT(step_flops(FlopsConvention::kMegatronCausal, model, training, 128256, {}).model.value, whole);
}

}  // namespace
}  // namespace stepsim
