// Hugging Face configs of dense models.
#include <algorithm>
#include <array>

#include "models/huggingface_families.h"

namespace stepsim {

namespace {

constexpr ConfigKeys kGpt2 = {"n_layer", "n_embd", "n_head", "multi_query", "n_head", "n_inner", "n_positions"};
constexpr ConfigKeys kOpt = {"num_hidden_layers",   "hidden_size", "num_attention_heads",    "num_attention_heads",
                             "num_attention_heads", "ffn_dim",     "max_position_embeddings"};
constexpr ConfigKeys kMpt = {"n_layers", "d_model", "n_heads", "n_heads", "n_heads", "expansion_ratio", "max_seq_len"};
constexpr ConfigKeys kFalcon = {"num_hidden_layers",   "hidden_size",     "num_attention_heads",    "num_kv_heads",
                                "num_attention_heads", "ffn_hidden_size", "max_position_embeddings"};

ModelSpec llama(const ConfigFile& config) {
  ModelSpec spec = modern_spec(config, {});
  read_biases(config, spec);
  read_window_layers(config, {}, spec);
  return checked(config, kModernKeys, spec);
}

ModelSpec mistral(const ConfigFile& config) {
  ModelSpec spec = modern_spec(config, {.kv_heads = 8});
  read_window(config, 4096, spec);
  read_window_layers(config, {}, spec);
  return checked(config, kModernKeys, spec);
}

// Layers from max_window_layers on slide (Qwen2Config.__init__).
void read_late_windows(const ConfigFile& config, ModelSpec& spec) {
  const std::int64_t first = std::clamp<std::int64_t>(config.whole("max_window_layers", 28), 0, spec.layers);
  config.named("sliding_window");  // without effect unless it is switched on
  if (config.flag("use_sliding_window", false) && first < spec.layers) read_window(config, 4096, spec);
  std::vector<std::uint8_t> late;
  if (spec.attention_window > 0 && spec.layers <= kMostLayers) {
    late.assign(static_cast<std::size_t>(first), 0);
    late.resize(static_cast<std::size_t>(spec.layers), 1);
  }
  read_window_layers(config, first > 0 ? late : std::vector<std::uint8_t>{}, spec);
}

ModelSpec qwen2(const ConfigFile& config) {
  ModelSpec spec = modern_spec(config, {.kv_heads = 32});
  spec.qkv_bias = true;
  read_late_windows(config, spec);
  return checked(config, kModernKeys, spec);
}

ModelSpec qwen3(const ConfigFile& config) {
  ModelSpec spec = modern_spec(config, {.kv_heads = 32, .head_dim = 128});
  read_biases(config, spec);
  spec.qk_norm = true;
  read_late_windows(config, spec);
  return checked(config, kModernKeys, spec);
}

ModelSpec phi3(const ConfigFile& config) {
  ModelSpec spec = modern_spec(config, {});
  if (config.flag("attention_bias", false)) config.refuse("attention_bias", "false: biases of attention alone are not built yet");
  spec.dropout = config.number("resid_pdrop", 0.0);
  read_window(config, 0, spec);
  read_window_layers(config, {}, spec);
  return checked(config, kModernKeys, spec);
}

ModelSpec gemma(const ConfigFile& config) {
  ModelSpec spec = modern_spec(config, {.kv_heads = 16, .head_dim = 256, .activation = "gelu_pytorch_tanh", .tied = true});
  read_biases(config, spec);
  return checked(config, kModernKeys, spec);
}

// A norm behind attention and MLP too, every other layer slides, the first does (Gemma2DecoderLayer).
ModelSpec gemma2(const ConfigFile& config) {
  ModelSpec spec = modern_spec(config, {.kv_heads = 4, .head_dim = 256, .activation = "gelu_pytorch_tanh", .tied = true});
  read_biases(config, spec);
  spec.post_norms = true;
  config.named("sliding_window_size");  // the same under an older name
  read_window(config, 4096, spec);
  read_window_layers(config, {1, 0}, spec);
  return checked(config, kModernKeys, spec);
}

// As Gemma 2, with norms on q and k, and one layer in sliding_window_pattern that does not slide.
ModelSpec gemma3(const ConfigFile& config) {
  ModelSpec spec = modern_spec(config, {.kv_heads = 4, .head_dim = 256, .activation = "gelu_pytorch_tanh", .tied = true});
  read_biases(config, spec);
  if (config.flag("use_bidirectional_attention", false)) config.refuse("use_bidirectional_attention", "false: a causal model");
  spec.post_norms = spec.qk_norm = true;
  read_window(config, 4096, spec);
  config.named("_sliding_window_pattern");
  const char* const key = config.given("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  const std::int64_t every = config.whole(key, 6);
  if (every < 1 || every > kMostLayers) config.refuse(key, "a whole number from 1 to " + std::to_string(kMostLayers));
  std::vector<std::uint8_t> pattern(static_cast<std::size_t>(every), 1);
  pattern.back() = 0;
  read_window_layers(config, pattern, spec);
  return checked(config, kModernKeys, spec);
}

ModelSpec starcoder2(const ConfigFile& config) {
  ModelSpec spec = modern_spec(config, {.kv_heads = 2, .activation = "gelu_pytorch_tanh", .gated = false, .tied = true});
  spec.normalization = Normalization::kLayerNorm;
  spec.norm_bias = true;
  spec.linear_bias = spec.qkv_bias = config.flag("use_bias", true);
  if (config.word("norm_type", "layer_norm") != "layer_norm") config.refuse("norm_type", "layer_norm");
  if (config.word("mlp_type", "default") != "default") config.refuse("mlp_type", "default");
  config.named("activation_function");  // Starcoder2Config reads hidden_act
  spec.dropout = config.number("residual_dropout", 0.0);
  read_window(config, 0, spec);
  return checked(config, kModernKeys, spec);
}

ModelSpec nemotron(const ConfigFile& config) {
  ModelSpec spec = modern_spec(config, {.activation = "relu2", .gated = false});
  spec.normalization = Normalization::kLayerNorm;
  spec.norm_bias = true;
  read_biases(config, spec);
  return checked(config, kModernKeys, spec);
}

ModelSpec gpt_neox(const ConfigFile& config) {
  ModelSpec spec = modern_spec(config, {.activation = "gelu", .gated = false});
  spec.parallel_block = spec.parallel_norms = config.flag("use_parallel_residual", true);
  spec.normalization = Normalization::kLayerNorm;
  spec.norm_bias = true;
  spec.linear_bias = spec.qkv_bias = true;
  if (!config.flag("attention_bias", true)) config.refuse("attention_bias", "true: biases of the other layers alone are not built yet");
  spec.dropout = config.number("hidden_dropout", 0.0);
  return checked(config, kModernKeys, spec);
}

ModelSpec gpt2(const ConfigFile& config) {
  for (const char* const key : {"inference_runner", "validate_runner_input", "pre_allocate_kv_cache", "max_batch_size"}) config.named(key);
  ModelSpec spec = common_spec(config, kGpt2);
  spec.kv_heads = config.word("model_type") == "gpt_bigcode" && config.flag("multi_query", true) ? 1 : spec.heads;
  spec.head_dim = width_per_head(config, kGpt2, spec.hidden, spec.heads);
  spec.ffn_hidden = config.given(kGpt2.ffn_hidden) ? config.whole(kGpt2.ffn_hidden) : 4 * std::min(spec.hidden, std::int64_t{1} << 40);
  spec.max_positions = config.whole(kGpt2.max_positions, 1024);
  spec.activation = activation_named(config, "activation_function", "gelu_new", false);
  spec.tied_head = config.flag("tie_word_embeddings", true);
  spec.dropout = config.number("resid_pdrop", 0.1);
  return checked(config, kGpt2, spec);
}

ModelSpec opt(const ConfigFile& config) {
  if (!config.flag("do_layer_norm_before", true)) {
    config.refuse("do_layer_norm_before", "true: norms behind the blocks are not built yet");
  }
  ModelSpec spec = common_spec(config, kOpt);
  if (config.whole("word_embed_proj_dim", spec.hidden) != spec.hidden) {
    config.refuse("word_embed_proj_dim", "hidden_size: projected embeddings are not built yet");
  }
  spec.kv_heads = spec.heads;
  spec.head_dim = width_per_head(config, kOpt, spec.hidden, spec.heads);
  spec.ffn_hidden = config.whole(kOpt.ffn_hidden);
  constexpr std::int64_t kOffset = 2;  // modeling_opt.py OPTLearnedPositionalEmbedding: the first two rows are never read
  spec.max_positions = std::min(config.whole(kOpt.max_positions, 2048), INT64_MAX - kOffset) + kOffset;
  spec.activation = activation_named(config, "activation_function", "relu", false);
  spec.linear_bias = spec.qkv_bias = config.flag("enable_bias", true);
  if (config.flag("_remove_final_layer_norm", false)) config.refuse("_remove_final_layer_norm", "false: a norm before the head");
  if (!config.flag("layer_norm_elementwise_affine", true)) config.refuse("layer_norm_elementwise_affine", "true: norms with weights");
  spec.tied_head = config.flag("tie_word_embeddings", true);
  spec.dropout = config.number("dropout", 0.1);
  return checked(config, kOpt, spec);
}

ModelSpec mpt(const ConfigFile& config) {
  ModelSpec spec = common_spec(config, kMpt);
  if (config.word("attn_config.attn_type", "multihead_attention") != "multihead_attention") {
    config.refuse("attn_config.attn_type", "multihead_attention: others are not built yet");
  }
  if (config.flag("attn_config.qk_ln", false)) config.refuse("attn_config.qk_ln", "false: LayerNorm on queries and keys is not built yet");
  if (config.whole("attn_config.sliding_window_size", -1) > 0) config.refuse("attn_config.sliding_window_size", "-1: no window");
  if (config.word("ffn_config.ffn_type", "mptmlp") != "mptmlp") config.refuse("ffn_config.ffn_type", "mptmlp");
  if (config.word("norm_type", "low_precision_layernorm").find("layernorm") == std::string::npos) config.refuse("norm_type", "a layernorm");
  config.named("learned_pos_emb");  // MptModel has no table beside alibi
  if (config.flag("attn_config.prefix_lm", false)) config.refuse("attn_config.prefix_lm", "false: prefix attention is not built yet");
  spec.kv_heads = spec.heads;
  spec.head_dim = width_per_head(config, kMpt, spec.hidden, spec.heads);
  const std::int64_t ratio = config.whole(kMpt.ffn_hidden, 4);
  if (ratio < 1 || ratio > 64) config.refuse(kMpt.ffn_hidden, "a whole number from 1 to 64");
  spec.ffn_hidden = ratio * std::min(spec.hidden, std::int64_t{1} << 40);
  spec.position = config.flag("attn_config.alibi", true) ? Position::kAlibi : Position::kLearned;
  if (spec.position == Position::kLearned) spec.max_positions = config.whole(kMpt.max_positions, 2048);
  const bool bias = !config.flag("no_bias", true);
  spec.linear_bias = spec.qkv_bias = spec.norm_bias = bias;
  spec.tied_head = config.flag("tie_word_embeddings", true);
  spec.dropout = config.number("resid_pdrop", 0.0);
  return checked(config, kMpt, spec);
}

ModelSpec falcon(const ConfigFile& config) {
  if (config.flag("new_decoder_architecture", false)) {
    config.refuse("new_decoder_architecture", "false: parallel blocks with two norms are not built yet");
  }
  if (config.whole("num_ln_in_parallel_attn", 1) != 1) {
    config.refuse("num_ln_in_parallel_attn", "1: parallel blocks with two norms are not built yet");
  }
  config.named("apply_residual_connection_post_layernorm");  // the same sizes and ops
  ModelSpec spec = common_spec(config, kFalcon);
  spec.kv_heads = config.flag("multi_query", true) ? 1 : spec.heads;
  spec.head_dim = width_per_head(config, kFalcon, spec.hidden, spec.heads);
  spec.ffn_hidden = config.given(kFalcon.ffn_hidden) ? config.whole(kFalcon.ffn_hidden) : 4 * std::min(spec.hidden, std::int64_t{1} << 40);
  spec.activation = activation_named(config, "activation", "gelu", false);
  spec.position = config.flag("alibi", false) ? Position::kAlibi : Position::kRotary;
  spec.linear_bias = spec.qkv_bias = config.flag("bias", false);
  spec.parallel_block = config.flag("parallel_attn", true);
  spec.tied_head = config.flag("tie_word_embeddings", true);
  spec.dropout = config.number("hidden_dropout", 0.0);
  return checked(config, kFalcon, spec);
}

constexpr std::array<HuggingfaceFamily, 17> kDenseFamilies = {{{"llama", llama},
                                                               {"mistral", mistral},
                                                               {"qwen2", qwen2},
                                                               {"qwen3", qwen3},
                                                               {"phi3", phi3},
                                                               {"gemma", gemma},
                                                               {"gemma2", gemma2},
                                                               {"gemma3_text", gemma3},
                                                               {"granite", llama},
                                                               {"starcoder2", starcoder2},
                                                               {"nemotron", nemotron},
                                                               {"gpt_neox", gpt_neox},
                                                               {"gpt2", gpt2},
                                                               {"gpt_bigcode", gpt2},
                                                               {"opt", opt},
                                                               {"mpt", mpt},
                                                               {"falcon", falcon}}};

}  // namespace

std::span<const HuggingfaceFamily> dense_families() { return kDenseFamilies; }

}  // namespace stepsim
