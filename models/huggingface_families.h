// What the readers of Hugging Face configs share: keys, dimensions, activations, windows; and the families that are read.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "models/huggingface_file.h"
#include "models/model_spec.h"

namespace stepsim {

// Which key gives which dimension: for reading, and for naming what model_problem finds.
struct ConfigKeys {
  const char *layers, *hidden, *heads, *kv_heads, *head_dim, *ffn_hidden, *max_positions;
};
inline constexpr ConfigKeys kModernKeys = {"num_hidden_layers", "hidden_size",       "num_attention_heads",    "num_key_value_heads",
                                           "head_dim",          "intermediate_size", "max_position_embeddings"};

// The spec; InputError at the key of what is wrong with it.
ModelSpec checked(const ConfigFile&, const ConfigKeys&, ModelSpec);

// Keys that every family shares.
ModelSpec common_spec(const ConfigFile&, const ConfigKeys&);

// hidden / heads; InputError where it is not whole.
std::int64_t width_per_head(const ConfigFile&, const ConfigKeys&, std::int64_t hidden, std::int64_t heads);

Activation activation_named(const ConfigFile&, const std::string& key, const std::string& otherwise, bool gated);

struct ModernDefaults {       // values of absent keys
  std::int64_t kv_heads = 0;  // 0: as many as heads
  std::int64_t head_dim = 0;  // 0: hidden / heads
  const char* activation = "silu";
  bool gated = true;
  bool tied = false;
};

// RMSNorm, rotary positions, no biases: what Llama and its many descendants share.
ModelSpec modern_spec(const ConfigFile&, const ModernDefaults&);

// attention_bias puts biases on q, k, v and the output projection, mlp_bias on the others.
void read_biases(const ConfigFile&, ModelSpec&);

// "sliding_window", `otherwise` where it is not named; null: none.
void read_window(const ConfigFile&, std::int64_t otherwise, ModelSpec&);

// The layers that slide: "layer_types" where it is given, else `otherwise` (empty: all, if there is a window).
void read_window_layers(const ConfigFile&, const std::vector<std::uint8_t>& otherwise, ModelSpec&);

struct HuggingfaceFamily {
  std::string_view model_type;
  ModelSpec (*read)(const ConfigFile&);
};
std::span<const HuggingfaceFamily> dense_families();
std::span<const HuggingfaceFamily> expert_families();

}  // namespace stepsim
