#include "models/huggingface_families.h"

#include <algorithm>

namespace stepsim {

static std::string key_of(const ConfigKeys& keys, const std::string& field) {
  const std::pair<const char*, const char*> names[] = {{"layers", keys.layers},
                                                       {"hidden", keys.hidden},
                                                       {"heads", keys.heads},
                                                       {"kv_heads", keys.kv_heads},
                                                       {"head_dim", keys.head_dim},
                                                       {"ffn_hidden", keys.ffn_hidden},
                                                       {"max_positions", keys.max_positions},
                                                       {"vocab", "vocab_size"},
                                                       {"attention_window", "sliding_window"},
                                                       {"top_k", "num_experts_per_tok"},
                                                       {"expert_ffn_hidden", "moe_intermediate_size"},
                                                       {"expert_groups", "n_group"},
                                                       {"top_groups", "topk_group"},
                                                       {"q_rank", "q_lora_rank"},
                                                       {"kv_rank", "kv_lora_rank"},
                                                       {"nope_dim", "qk_nope_head_dim"},
                                                       {"rope_dim", "qk_rope_head_dim"},
                                                       {"value_dim", "v_head_dim"}};
  for (const auto& [name, key] : names) {
    if (field == name) return key;
  }
  return field;
}

ModelSpec checked(const ConfigFile& config, const ConfigKeys& keys, ModelSpec spec) {
  if (const auto problem = model_problem(spec)) {
    const std::string key = key_of(keys, problem->field);
    config.fail(key, key + " " + problem->found, problem->wanted);
  }
  return spec;
}

std::int64_t width_per_head(const ConfigFile& config, const ConfigKeys& keys, std::int64_t hidden, std::int64_t heads) {
  if (heads > 0 && hidden % heads == 0) return hidden / heads;
  config.fail(keys.heads, std::string(keys.heads) + " " + std::to_string(heads),
              "a divisor of " + std::string(keys.hidden) + " " + std::to_string(hidden));
}

ModelSpec common_spec(const ConfigFile& config, const ConfigKeys& keys) {
  ModelSpec spec;
  spec.name = config.word("_name_or_path", "");
  if (spec.name.empty() || spec.name != printable(spec.name)) spec.name = config.file();
  spec.source = config.file();
  spec.layers = config.whole(keys.layers);
  spec.hidden = config.whole(keys.hidden);
  spec.heads = config.whole(keys.heads);
  spec.vocab = config.whole("vocab_size");
  return spec;
}

Activation activation_named(const ConfigFile& config, const std::string& key, const std::string& otherwise, bool gated) {
  const std::string name = config.word(key, otherwise);
  const bool gelu = name.find("gelu") != std::string::npos;
  const bool silu = name == "silu" || name == "swish";
  if (gated && gelu) return Activation::kGeGlu;
  if (gated && silu) return Activation::kSwiGlu;
  if (!gated && gelu) return Activation::kGelu;
  if (!gated && name == "relu") return Activation::kRelu;
  if (!gated && name == "relu2") return Activation::kSquaredRelu;
  config.fail(
      key, key + " \"" + printable(name) + "\"",
      gated ? "silu or a gelu: others with a gate are not built yet" : "relu, relu2 or a gelu: others without a gate are not built yet");
}

ModelSpec modern_spec(const ConfigFile& config, const ModernDefaults& defaults) {
  ModelSpec spec = common_spec(config, kModernKeys);
  const bool absent = !config.named(kModernKeys.kv_heads) && defaults.kv_heads > 0;
  spec.kv_heads = absent ? defaults.kv_heads : config.whole(kModernKeys.kv_heads, spec.heads);
  spec.ffn_hidden = config.whole(kModernKeys.ffn_hidden);
  if (config.given(kModernKeys.head_dim) || defaults.head_dim > 0) {
    spec.head_dim = config.whole(kModernKeys.head_dim, defaults.head_dim);
  } else {
    spec.head_dim = width_per_head(config, kModernKeys, spec.hidden, spec.heads);
  }
  config.named("hidden_act");
  const std::string activation_key = config.given("hidden_activation") ? "hidden_activation" : "hidden_act";  // Gemma has both
  spec.normalization = Normalization::kRmsNorm;
  spec.activation = activation_named(config, activation_key, defaults.activation, defaults.gated);
  spec.position = Position::kRotary;
  spec.linear_bias = spec.qkv_bias = spec.norm_bias = false;
  spec.tied_head = config.flag("tie_word_embeddings", defaults.tied);
  return spec;
}

void read_biases(const ConfigFile& config, ModelSpec& spec) {
  const bool attention = config.flag("attention_bias", false);
  if (attention != config.flag("mlp_bias", false)) {
    config.fail("attention_bias", std::string("attention_bias ") + (attention ? "true" : "false"),
                "the same as mlp_bias: not built yet otherwise");
  }
  spec.linear_bias = spec.qkv_bias = attention;
}

void read_window(const ConfigFile& config, std::int64_t otherwise, ModelSpec& spec) {
  constexpr std::int64_t kMost = 1 << 24;
  spec.attention_window = config.named("sliding_window") ? config.whole("sliding_window", 0) : otherwise;
  const bool outside = spec.attention_window < 1 || spec.attention_window > kMost;
  if (config.given("sliding_window") && outside) config.refuse("sliding_window", "a whole number from 1 to 16777216, or null");
}

void read_window_layers(const ConfigFile& config, const std::vector<std::uint8_t>& otherwise, ModelSpec& spec) {
  const std::vector<std::string> types = config.words("layer_types");
  if (types.empty()) {
    if (spec.attention_window > 0) spec.window_layers = otherwise;
    return;
  }
  if (static_cast<std::int64_t>(types.size()) != spec.layers) {
    config.fail("layer_types", std::to_string(types.size()) + " layer_types",
                "one for each of the " + std::to_string(spec.layers) + " layers");
  }
  const auto sliding = static_cast<std::size_t>(std::count(types.begin(), types.end(), "sliding_attention"));
  if (sliding == 0) {
    spec.attention_window = 0;
    return;
  }
  if (spec.attention_window == 0) {
    if (!config.given("sliding_window")) config.fail("layer_types", "layer_types \"sliding_attention\" and no sliding_window", "both");
    read_window(config, 0, spec);
  }
  spec.window_layers.clear();
  if (sliding == types.size()) return;
  for (const std::string& type : types) spec.window_layers.push_back(type == "sliding_attention" ? 1 : 0);
}

}  // namespace stepsim
