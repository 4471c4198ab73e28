// What parameter_count() counts from dimensions is what the templates of one device add up to: two ways to one number.
#include <gtest/gtest.h>

#include "models/framework_preset.h"
#include "models/layer_template.h"
#include "models/training_recipe.h"

namespace stepsim {
namespace {

TrainingRecipe recipe_for(const ModelSpec& model) {
  TrainingRecipe training;
  training.sequence = 512;
  training.decoder_sequence = model.encoder_layers > 0 ? 128 : 0;
  return training;
}

void expect_agreement(ModelSpec model) {
  const FrameworkPreset framework = load_framework("megatron-core@2025");
  model.vocab = padded_vocab(model.vocab, framework.vocab_multiple, 1);  // the templates' rows
  const TrainingRecipe training = recipe_for(model);
  const ParallelLayout parallel = with_preset({}, training, framework);
  const TemplateContext context{model, training, parallel, framework};
  const ParameterCount count = parameter_count(model, training.sequence);
  const std::int64_t norm = model.hidden * (model.norm_bias ? 2 : 1);
  for (const LayerKind& kind : model.kinds()) {
    const LayerTemplate layer = transformer_layer(context, kind);
    const LayerParameters expected = layer_parameters(model, kind);
    const std::int64_t ends = kind.side == LayerSide::kFirstDecoder ? norm : 0;  // of the encoder
    EXPECT_EQ(layer.parameters, expected.all + ends) << model.name;
    EXPECT_EQ(layer.expert_parameters, expected.experts) << model.name;
  }
  EXPECT_EQ(embedding_layer(context).parameters, count.embedding + count.positions) << model.name;
  const std::int64_t encoder_norm = model.encoder_layers > 0 ? norm : 0;
  EXPECT_EQ(head_layer(context).parameters, count.final_norm - encoder_norm + count.head + count.multi_token) << model.name;
}

TEST(ParameterAgreement, OfEveryModelOfTheCatalog) {
  for (const std::string& name : model_names()) expect_agreement(load_model(name));
}

TEST(ParameterAgreement, OfMultiTokenPrediction) {
  ModelSpec model = load_model("deepseek-v3");
  model.layers = 4;
  model.multi_token_layers = 2;
  expect_agreement(model);
}

TEST(ParameterAgreement, OfParallelBlocksWithTwoNorms) {
  ModelSpec model = load_model("phi-1.5");
  expect_agreement(model);
  model.parallel_norms = true;  // GPT-NeoX
  expect_agreement(model);
}

// Every switch of a small model, one after another.
TEST(ParameterAgreement, OfEachSwitch) {
  const ModelSpec base = parse_model(
      "layers: 2 hidden: 64 heads: 4 kv_heads: 2 ffn_hidden: 128 vocab: 256 normalization: LAYER_NORM activation: GELU position: ROTARY "
      "linear_bias: true",
      "m");
  const auto with = [&](auto set) {
    ModelSpec model = base;
    set(model);
    ASSERT_FALSE(model_problem(model).has_value());
    expect_agreement(model);
  };
  with([](ModelSpec&) {});
  with([](ModelSpec& m) { m.qk_norm = true; });
  with([](ModelSpec& m) { m.post_norms = true; });
  with([](ModelSpec& m) { m.attention_sinks = true; });
  with([](ModelSpec& m) { m.tied_head = true; });
  with([](ModelSpec& m) { m.head_transform = m.tied_head = true; });
  with([](ModelSpec& m) { m.pooler = true; });
  with([](ModelSpec& m) { m.token_types = 2; });
  with([](ModelSpec& m) { m.experts = {.experts = 8, .top_k = 2, .ffn_hidden = 32, .router_bias = true, .expert_bias = true}; });
  with([](ModelSpec& m) {
    m.linear_bias = m.qkv_bias = false;
    m.experts = {.experts = 8, .top_k = 2, .ffn_hidden = 32, .shared_ffn = 64, .shared_gate = true};
    m.expert_layers = {0, 1};
  });
  with([](ModelSpec& m) {
    m.kv_heads = m.heads;
    m.latent = {.q_rank = 32, .kv_rank = 32, .nope_dim = 16, .rope_dim = 16, .value_dim = 16};
  });
  with([](ModelSpec& m) {
    m.kv_heads = m.heads;
    m.qk_norm = true;
    m.latent = {.q_rank = 0, .kv_rank = 32, .nope_dim = 16, .rope_dim = 16, .value_dim = 16};
  });
}

}  // namespace
}  // namespace stepsim
