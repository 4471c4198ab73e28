// What makes a ModelSpec impossible: limits and contradictions, in the order of its fields.
#include "models/model_spec.h"

namespace stepsim {

namespace {

constexpr std::int64_t kMostWidth = 1 << 20;                     // hidden, heads x head_dim
constexpr std::int64_t kMostRows = 1 << 24;                      // ffn_hidden, vocab, positions
constexpr std::int64_t kMostExperts = 1 << 16;                   // with the limits above one layer stays below 2^62 parameters
constexpr std::int64_t kMostMultiToken = 1'000;                  // layers of multi-token prediction
constexpr std::int64_t kMostTypes = 1 << 16;                     // of tokens
constexpr std::int64_t kMostParameters = 1'000'000'000'000'000;  // 18 bytes each and a factor of 500 stay inside int64

using Problem = std::optional<FieldProblem>;

struct Bounds {
  const char* field;
  std::int64_t value, least, most;
};

Problem outside(const Bounds& bounds) {
  if (bounds.value >= bounds.least && bounds.value <= bounds.most) return std::nullopt;
  return FieldProblem{bounds.field, std::to_string(bounds.value),
                      "a whole number from " + std::to_string(bounds.least) + " to " + std::to_string(bounds.most)};
}

Problem first_outside(std::initializer_list<Bounds> all) {
  for (const Bounds& bounds : all) {
    if (auto problem = outside(bounds)) return problem;
  }
  return std::nullopt;
}

// A switch that contradicts another field.
struct Conflict {
  bool found;
  const char* field;
  std::string value, wanted;
};

Problem first_conflict(std::initializer_list<Conflict> all) {
  for (const Conflict& conflict : all) {
    if (conflict.found) return FieldProblem{conflict.field, conflict.value, conflict.wanted};
  }
  return std::nullopt;
}

Problem counts_problem(const ModelSpec& model) {
  const bool table = model.position == Position::kLearned && !model.positions_follow_sequence;
  return first_outside({{"layers", model.layers, 1, kMostLayers},
                        {"hidden", model.hidden, 1, kMostWidth},
                        {"heads", model.heads, 1, kMostWidth},
                        {"kv_heads", model.kv_heads, 1, kMostWidth},
                        {"head_dim", model.head_dim, 1, kMostWidth},
                        {"ffn_hidden", model.ffn_hidden, 1, kMostRows},
                        {"vocab", model.vocab, 1, kMostRows},
                        {"max_positions", model.max_positions, table ? 1 : 0, kMostRows},
                        {"attention_window", model.attention_window, 0, kMostRows}});
}

Problem heads_problem(const ModelSpec& model) {
  if (model.heads % model.kv_heads != 0) {
    return FieldProblem{"kv_heads", std::to_string(model.kv_heads), "a divisor of the " + std::to_string(model.heads) + " heads"};
  }
  if (model.heads * model.head_dim > kMostWidth) {
    return FieldProblem{"head_dim", std::to_string(model.head_dim),
                        "at most " + std::to_string(kMostWidth / model.heads) + " with " + std::to_string(model.heads) + " heads"};
  }
  return std::nullopt;
}

Problem switches_problem(const ModelSpec& model) {
  if (model.linear_bias && !model.qkv_bias && !model.is_latent())
    return FieldProblem{"qkv_bias", "false", "true where the other linear layers have biases"};
  if (model.norm_bias && model.normalization == Normalization::kRmsNorm) return FieldProblem{"norm_bias", "true", "false with RMSNorm"};
  if (!(model.dropout >= 0.0 && model.dropout < 1.0)) {
    return FieldProblem{"dropout", std::to_string(model.dropout), "a probability from 0 to below 1"};
  }
  if (model.parallel_norms && !model.parallel_block) return FieldProblem{"parallel_norms", "true", "false without a parallel block"};
  if (model.parallel_block && model.post_norms) return FieldProblem{"post_norms", "true", "false with a parallel block"};
  return std::nullopt;
}

Problem experts_problem(const ModelSpec& model) {
  const ExpertsSpec& spec = model.experts;
  if (auto problem = outside({"experts", spec.experts, 0, kMostExperts})) return problem;
  if (!model.has_experts()) {
    return first_conflict({{spec.top_k != 0, "top_k", std::to_string(spec.top_k), "none without experts"},
                           {spec.ffn_hidden != 0, "expert_ffn_hidden", std::to_string(spec.ffn_hidden), "none without experts"},
                           {spec.shared_ffn != 0, "shared_ffn", std::to_string(spec.shared_ffn), "none without experts"},
                           {!model.expert_layers.empty(), "expert_layers", "a pattern", "none without experts"}});
  }
  if (auto problem = first_outside({{"top_k", spec.top_k, 1, spec.experts},
                                    {"expert_ffn_hidden", spec.ffn_hidden, 1, kMostRows},
                                    {"shared_ffn", spec.shared_ffn, 0, kMostRows},
                                    {"expert_groups", spec.groups, 1, spec.experts}})) {
    return problem;
  }
  if (spec.experts % spec.groups != 0) {
    return FieldProblem{"expert_groups", std::to_string(spec.groups), "a divisor of the " + std::to_string(spec.experts) + " experts"};
  }
  if (auto problem = outside({"top_groups", spec.top_groups, 1, spec.groups})) return problem;
  const std::int64_t reachable = spec.experts / spec.groups * spec.top_groups;
  if (auto problem = outside({"top_k", spec.top_k, 1, reachable})) return problem;
  const bool biased = spec.expert_bias || model.linear_bias;
  return first_conflict(
      {{spec.shared_gate && spec.shared_ffn == 0, "shared_gate", "true", "false without shared experts"},
       // Megatron-LM transformer_config.py and every model with shared experts: their products have no biases.
       {spec.shared_ffn > 0 && biased, "shared_ffn", std::to_string(spec.shared_ffn), "0 where linear layers have biases"}});
}

Problem latent_problem(const ModelSpec& model) {
  const LatentAttentionSpec& latent = model.latent;
  if (auto problem = first_outside({{"kv_rank", latent.kv_rank, 0, kMostWidth}, {"q_rank", latent.q_rank, 0, kMostWidth}})) return problem;
  if (!model.is_latent()) {
    return first_conflict({{latent.q_rank != 0, "q_rank", std::to_string(latent.q_rank), "none without kv_rank"},
                           {latent.nope_dim != 0, "nope_dim", std::to_string(latent.nope_dim), "none without kv_rank"},
                           {latent.rope_dim != 0, "rope_dim", std::to_string(latent.rope_dim), "none without kv_rank"},
                           {latent.value_dim != 0, "value_dim", std::to_string(latent.value_dim), "none without kv_rank"}});
  }
  const std::int64_t most = kMostWidth / model.heads;  // of a head: all heads together keep the limit
  if (auto problem = first_outside(
          {{"nope_dim", latent.nope_dim, 1, most}, {"rope_dim", latent.rope_dim, 1, most}, {"value_dim", latent.value_dim, 1, most}})) {
    return problem;
  }
  return first_conflict(
      {{model.kv_heads != model.heads, "kv_heads", std::to_string(model.kv_heads), "as many as heads with latent attention"},
       {model.head_dim != latent.nope_dim, "head_dim", std::to_string(model.head_dim), "nope_dim with latent attention"},
       {model.position != Position::kRotary, "position", "another", "ROTARY with latent attention"},
       {model.attention_sinks, "attention_sinks", "true", "false with latent attention"}});
}

bool is_pattern(const std::vector<std::uint8_t>& pattern) {
  if (pattern.size() > static_cast<std::size_t>(kMostLayers)) return false;
  for (const std::uint8_t entry : pattern) {
    if (entry > 1) return false;
  }
  return true;
}

Problem patterns_problem(const ModelSpec& model) {
  const std::string wanted = "a list of 0 and 1, at most " + std::to_string(kMostLayers);
  return first_conflict(
      {{!is_pattern(model.expert_layers), "expert_layers", "another pattern", wanted},
       {!is_pattern(model.window_layers), "window_layers", "another pattern", wanted},
       {!is_pattern(model.rotary_layers), "rotary_layers", "another pattern", wanted},
       {!model.window_layers.empty() && model.attention_window == 0, "window_layers", "a pattern", "none without attention_window"},
       {!model.rotary_layers.empty() && model.position != Position::kRotary, "rotary_layers", "a pattern",
        "none without rotary positions"}});
}

Problem encoder_problem(const ModelSpec& model) {
  if (model.encoder_layers == 0) return std::nullopt;
  if (auto problem = outside({"encoder_layers", model.encoder_layers, 0, model.layers - 1})) return problem;
  const std::string wanted = "another model without encoder_layers: an encoder-decoder's layers are dense and sequential";
  return first_conflict({{model.has_experts(), "experts", std::to_string(model.experts.experts), wanted},
                         {model.is_latent(), "kv_rank", std::to_string(model.latent.kv_rank), wanted},
                         {model.attention_window > 0, "attention_window", std::to_string(model.attention_window), wanted},
                         {model.attention_sinks, "attention_sinks", "true", wanted},
                         {model.parallel_block, "parallel_block", "true", wanted},
                         {model.post_norms, "post_norms", "true", wanted},
                         {model.multi_token_layers > 0, "multi_token_layers", std::to_string(model.multi_token_layers), wanted},
                         {!model.causal, "causal", "false", "true: an encoder-decoder's encoder is not causal anyway"}});
}

// Every product in a layer is below 2^62, not the sum over layers.
Problem size_problem(const ModelSpec& model) {
  double all = 0;
  for (const auto& [kind, layers] : kind_counts(model)) {
    all += static_cast<double>(layers) * static_cast<double>(layer_parameters(model, kind).all);
  }
  const LayerKind last = model.kind(model.layers - 1);
  all += static_cast<double>(model.multi_token_layers) * static_cast<double>(layer_parameters(model, last).all);
  const std::string wanted = "at most " + std::to_string(kMostParameters) + " parameters";
  const std::string found = std::to_string(model.layers) + " of ";
  if (all > 8e18) return FieldProblem{"layers", found + "more than 8000000000000000000 parameters in all", wanted};
  const std::int64_t total = parameter_count(model, 1).total;
  if (total > kMostParameters) return FieldProblem{"layers", found + std::to_string(total) + " parameters in all", wanted};
  return std::nullopt;
}

}  // namespace

Problem model_problem(const ModelSpec& model) {
  if (auto problem = counts_problem(model)) return problem;
  if (auto problem = heads_problem(model)) return problem;
  if (auto problem = switches_problem(model)) return problem;
  if (auto problem = experts_problem(model)) return problem;
  if (auto problem = latent_problem(model)) return problem;
  if (auto problem = patterns_problem(model)) return problem;
  if (auto problem = first_outside(
          {{"multi_token_layers", model.multi_token_layers, 0, kMostMultiToken}, {"token_types", model.token_types, 0, kMostTypes}})) {
    return problem;
  }
  if (auto problem = encoder_problem(model)) return problem;
  return size_problem(model);
}

}  // namespace stepsim
