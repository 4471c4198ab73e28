// Hugging Face configs of mixtures of experts, with ordinary and latent attention.
#include <algorithm>
#include <array>

#include "models/huggingface_families.h"

namespace stepsim {

namespace {

constexpr std::int64_t kMostWidth = 1 << 24;  // of an expert

std::int64_t within(const ConfigFile& config, const std::string& key, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return value;
  config.fail(key, key + " " + std::to_string(value), "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
}

// The layers for which is_expert(layer) holds; empty if all do.
template <class IsExpert>
std::vector<std::uint8_t> expert_pattern(const ConfigFile& config, const ModelSpec& spec, const IsExpert& is_expert) {
  within(config, kModernKeys.layers, spec.layers, 1, kMostLayers);
  std::vector<std::uint8_t> pattern;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) pattern.push_back(is_expert(layer) ? 1 : 0);
  const bool all = std::find(pattern.begin(), pattern.end(), 0) == pattern.end();
  return all ? std::vector<std::uint8_t>{} : pattern;
}

ModelSpec mixtral(const ConfigFile& config) {
  ModelSpec spec = modern_spec(config, {.kv_heads = 8});
  spec.experts.experts = config.whole("num_local_experts");
  spec.experts.top_k = config.whole("num_experts_per_tok", 2);
  spec.experts.ffn_hidden = spec.ffn_hidden;
  read_window(config, 0, spec);
  read_window_layers(config, {}, spec);
  return checked(config, kModernKeys, spec);
}

// Every decoder_sparse_step-th layer but those of mlp_only_layers (Qwen2MoeDecoderLayer).
void read_sparse_layers(const ConfigFile& config, ModelSpec& spec) {
  const std::int64_t step = within(config, "decoder_sparse_step", config.whole("decoder_sparse_step", 1), 1, kMostLayers);
  const std::vector<std::int64_t> dense = config.whole_numbers("mlp_only_layers");
  for (const std::int64_t layer : dense) within(config, "mlp_only_layers", layer, 0, spec.layers - 1);
  spec.expert_layers = expert_pattern(config, spec, [&](std::int64_t layer) {
    return (layer + 1) % step == 0 && std::find(dense.begin(), dense.end(), layer) == dense.end();
  });
}

void read_qwen_experts(const ConfigFile& config, ModelSpec& spec) {
  spec.experts.experts = config.given("num_experts") ? config.whole("num_experts") : config.whole("num_local_experts");
  spec.experts.top_k = config.whole("num_experts_per_tok");
  spec.experts.ffn_hidden = config.whole("moe_intermediate_size");
  read_sparse_layers(config, spec);
}

// Every other layer before max_window_layers slides (Qwen2MoeConfig.__post_init__).
ModelSpec qwen2_moe(const ConfigFile& config) {
  ModelSpec spec = modern_spec(config, {.kv_heads = 16});
  spec.qkv_bias = config.flag("qkv_bias", true);
  read_qwen_experts(config, spec);
  spec.experts.shared_ffn = config.whole("shared_expert_intermediate_size");
  spec.experts.shared_gate = true;
  config.named("sliding_window");  // without effect unless it is switched on
  if (config.flag("use_sliding_window", false)) read_window(config, 4096, spec);
  const std::int64_t first_open = config.whole("max_window_layers", 28);
  std::vector<std::uint8_t> pattern;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) pattern.push_back(layer % 2 == 0 && layer < first_open ? 1 : 0);
  read_window_layers(config, pattern, spec);
  return checked(config, kModernKeys, spec);
}

ModelSpec qwen3_moe(const ConfigFile& config) {
  ModelSpec spec = modern_spec(config, {.kv_heads = 4});
  read_biases(config, spec);
  spec.qk_norm = true;
  read_qwen_experts(config, spec);
  config.named("sliding_window");
  config.named("max_window_layers");  // Qwen3MoeAttention: all layers or none
  if (config.flag("use_sliding_window", false)) read_window(config, 4096, spec);
  read_window_layers(config, {}, spec);
  return checked(config, kModernKeys, spec);
}

// Biases on everything, sinks, every other layer slides and the first does (GptOssConfig, modeling_gpt_oss.py).
ModelSpec gpt_oss(const ConfigFile& config) {
  ModelSpec spec = modern_spec(config, {.kv_heads = 8, .head_dim = 64});
  if (!config.flag("attention_bias", true)) config.refuse("attention_bias", "true: biases of the experts alone are not built");
  spec.linear_bias = spec.qkv_bias = spec.attention_sinks = true;
  spec.experts.experts = config.given("num_local_experts") ? config.whole("num_local_experts") : config.whole("num_experts");
  spec.experts.top_k = config.given("num_experts_per_tok") ? config.whole("num_experts_per_tok") : config.whole("experts_per_token", 4);
  spec.experts.ffn_hidden = spec.ffn_hidden;
  spec.experts.router_bias = spec.experts.expert_bias = true;
  config.named("experts_per_token");  // the same under an older name
  read_window(config, 128, spec);
  read_window_layers(config, {1, 0}, spec);
  return checked(config, kModernKeys, spec);
}

// The first first_k_dense_replace layers are dense, then every moe_layer_freq-th has experts (DeepseekV2DecoderLayer).
void read_deepseek_layers(const ConfigFile& config, std::int64_t dense, ModelSpec& spec) {
  const std::int64_t every = within(config, "moe_layer_freq", config.whole("moe_layer_freq", 1), 1, kMostLayers);
  const std::int64_t first = within(config, "first_k_dense_replace", config.whole("first_k_dense_replace", dense), 0, kMostLayers);
  spec.expert_layers = expert_pattern(config, spec, [&](std::int64_t layer) { return layer >= first && layer % every == 0; });
}

void read_deepseek_experts(const ConfigFile& config, ModelSpec& spec) {
  spec.experts.experts = config.whole("n_routed_experts");
  spec.experts.top_k = config.whole("num_experts_per_tok");
  spec.experts.ffn_hidden = within(config, "moe_intermediate_size", config.whole("moe_intermediate_size"), 1, kMostWidth);
  const std::int64_t shared = within(config, "n_shared_experts", config.whole("n_shared_experts", 0), 0, kMostWidth);
  spec.experts.shared_ffn = shared * spec.experts.ffn_hidden;
}

void read_expert_groups(const ConfigFile& config, std::int64_t groups, std::int64_t top_groups, ModelSpec& spec) {
  spec.experts.groups = config.whole("n_group", groups);
  spec.experts.top_groups = config.whole("topk_group", top_groups);
}

void read_score(const ConfigFile& config, const std::string& otherwise, ModelSpec& spec) {
  const std::string score = config.word("scoring_func", otherwise);
  if (score != "softmax" && score != "sigmoid") config.refuse("scoring_func", "softmax or sigmoid");
  spec.experts.score = score == "softmax" ? RouterScore::kSoftmax : RouterScore::kSigmoid;
}

// q_lora_rank null: queries come from the layer's input.
void read_latent(const ConfigFile& config, ModelSpec& spec) {
  if (!config.named("q_lora_rank")) config.fail("q_lora_rank", "no q_lora_rank", "a whole number or null");
  spec.latent = {.q_rank = config.whole("q_lora_rank", 0),
                 .kv_rank = config.whole("kv_lora_rank"),
                 .nope_dim = config.whole("qk_nope_head_dim"),
                 .rope_dim = config.whole("qk_rope_head_dim"),
                 .value_dim = config.whole("v_head_dim")};
  if (spec.latent.kv_rank == 0) config.refuse("kv_lora_rank", "a whole number from 1");
  if (config.flag("attention_bias", false)) config.refuse("attention_bias", "false: biases of the down products are not built");
  if (config.flag("mlp_bias", false)) config.refuse("mlp_bias", "false: biases beside shared experts are not built");
  spec.kv_heads = spec.heads;
  spec.head_dim = spec.latent.nope_dim;
  spec.qk_norm = true;
}

// head_dim is of the rotary part there, and num_key_value_heads not read.
ModelSpec latent_spec(const ConfigFile& config) {
  ModelSpec spec = common_spec(config, kModernKeys);
  spec.ffn_hidden = config.whole(kModernKeys.ffn_hidden);
  spec.normalization = Normalization::kRmsNorm;
  spec.activation = activation_named(config, "hidden_act", "silu", true);
  spec.position = Position::kRotary;
  spec.linear_bias = spec.qkv_bias = spec.norm_bias = false;
  spec.tied_head = config.flag("tie_word_embeddings", false);
  const std::int64_t kv_heads = config.whole(kModernKeys.kv_heads, spec.heads);
  if (kv_heads != spec.heads) config.refuse(kModernKeys.kv_heads, "as many as num_attention_heads: latent attention has one for each");
  config.named(kModernKeys.head_dim);
  read_latent(config, spec);
  return spec;
}

ModelSpec deepseek_v2(const ConfigFile& config) {
  ModelSpec spec = latent_spec(config);
  if (!config.given("n_routed_experts")) return checked(config, kModernKeys, spec);
  read_deepseek_experts(config, spec);
  const std::string method = config.word("topk_method", "greedy");
  if (method == "group_limited_greedy") read_expert_groups(config, 1, 1, spec);
  config.named("n_group");  // of group_limited_greedy alone
  config.named("topk_group");
  if (method != "greedy" && method != "group_limited_greedy") config.refuse("topk_method", "greedy or group_limited_greedy");
  read_score(config, "softmax", spec);
  read_deepseek_layers(config, 0, spec);
  return checked(config, kModernKeys, spec);
}

ModelSpec deepseek_v3(const ConfigFile& config) {
  ModelSpec spec = latent_spec(config);
  read_deepseek_experts(config, spec);
  const std::string method = config.word("topk_method", "noaux_tc");
  if (method != "noaux_tc") config.refuse("topk_method", "noaux_tc");
  spec.experts.balance_bias = true;
  read_expert_groups(config, 8, 4, spec);
  read_score(config, "sigmoid", spec);
  read_deepseek_layers(config, 3, spec);
  return checked(config, kModernKeys, spec);
}

constexpr std::array<HuggingfaceFamily, 7> kExpertFamilies = {{{"mixtral", mixtral},
                                                               {"qwen2_moe", qwen2_moe},
                                                               {"qwen3_moe", qwen3_moe},
                                                               {"gpt_oss", gpt_oss},
                                                               {"deepseek_v2", deepseek_v2},
                                                               {"deepseek_v3", deepseek_v3},
                                                               {"kimi_k2", deepseek_v3}}};

}  // namespace

std::span<const HuggingfaceFamily> expert_families() { return kExpertFamilies; }

}  // namespace stepsim
