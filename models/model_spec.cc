#include "models/model_spec.h"

#include <algorithm>

#include "sim/check.h"

namespace stepsim {

// Of a list that repeats; an empty one says it of all layers.
static bool of_pattern(const std::vector<std::uint8_t>& pattern, std::int64_t layer) {
  return pattern.empty() || pattern[static_cast<std::size_t>(layer) % pattern.size()] != 0;
}

static LayerSide side_of(const ModelSpec& model, std::int64_t layer) {
  if (model.encoder_layers == 0) return LayerSide::kOnly;
  if (layer < model.encoder_layers) return LayerSide::kEncoder;
  return layer == model.encoder_layers ? LayerSide::kFirstDecoder : LayerSide::kDecoder;
}

LayerKind ModelSpec::kind(std::int64_t layer) const {
  STEPSIM_CHECK(layer >= 0);
  STEPSIM_CHECK(layer < layers);
  LayerKind kind;
  kind.side = side_of(*this, layer);
  kind.experts = has_experts() && of_pattern(expert_layers, layer);
  kind.window = of_pattern(window_layers, layer) ? attention_window : 0;
  kind.rotary = position != Position::kRotary || of_pattern(rotary_layers, layer);
  return kind;
}

std::vector<LayerKind> ModelSpec::kinds() const {
  std::vector<LayerKind> found;
  for (const auto& pair : kind_counts(*this)) found.push_back(pair.first);
  return found;
}

std::vector<std::pair<LayerKind, std::int64_t>> kind_counts(const ModelSpec& model) {
  std::vector<std::pair<LayerKind, std::int64_t>> counts;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const LayerKind kind = model.kind(layer);
    const auto known = std::find_if(counts.begin(), counts.end(), [&](const auto& pair) { return pair.first == kind; });
    if (known == counts.end()) {
      counts.emplace_back(kind, 1);
    } else {
      ++known->second;
    }
  }
  return counts;
}

namespace {

std::int64_t norm_parameters(const ModelSpec& model, std::int64_t width) { return width * (model.norm_bias ? 2 : 1); }

std::int64_t qkv_width(const ModelSpec& model) { return (model.heads + 2 * model.kv_heads) * model.head_dim; }

void add_matrix(LayerParameters& count, std::int64_t weights) {
  count.all += weights;
  count.matrices += weights;
  count.active += weights;
  count.active_matrices += weights;
}

void add_vector(LayerParameters& count, std::int64_t values) {
  count.all += values;
  count.active += values;
}

// arXiv 2405.04434 section 2.1: down and up products of q and of kv, the rotary key straight from the input. The products of q and kv
// have no bias whatever the other layers have (Megatron-LM multi_latent_attention.py).
void add_latent_attention(const ModelSpec& model, LayerParameters& count) {
  const LatentAttentionSpec& latent = model.latent;
  const std::int64_t query = model.heads * (latent.nope_dim + latent.rope_dim), value = model.heads * latent.value_dim;
  if (latent.q_rank > 0) {
    add_matrix(count, latent.q_rank * (model.hidden + query));
    if (model.qk_norm) add_vector(count, norm_parameters(model, latent.q_rank));
  } else {
    add_matrix(count, model.hidden * query);
  }
  add_matrix(count, model.hidden * (latent.kv_rank + latent.rope_dim));
  add_matrix(count, latent.kv_rank * (model.heads * latent.nope_dim + value));
  if (model.qk_norm) add_vector(count, norm_parameters(model, latent.kv_rank));
  add_matrix(count, value * model.hidden);
  if (model.linear_bias) add_vector(count, model.hidden);
  count.attention_channels = query + value;
}

void add_attention(const ModelSpec& model, LayerParameters& count) {
  if (model.is_latent()) {
    add_latent_attention(model, count);
    return;
  }
  const std::int64_t width = model.heads * model.head_dim;
  add_matrix(count, model.hidden * (qkv_width(model) + width));
  if (model.qkv_bias) add_vector(count, qkv_width(model));
  if (model.linear_bias) add_vector(count, model.hidden);
  if (model.qk_norm) add_vector(count, 2 * norm_parameters(model, model.head_dim));
  if (model.attention_sinks) add_vector(count, model.heads);
  count.attention_channels = 2 * width;
}

// A decoder's attention over the encoder's output, with its norm.
void add_cross_attention(const ModelSpec& model, LayerParameters& count) {
  add_matrix(count, model.hidden * (qkv_width(model) + model.heads * model.head_dim));
  if (model.qkv_bias) add_vector(count, qkv_width(model));
  if (model.linear_bias) add_vector(count, model.hidden);
  add_vector(count, norm_parameters(model, model.hidden));
}

void add_mlp(const ModelSpec& model, LayerParameters& count) {
  const std::int64_t up_width = model.ffn_hidden * (model.gated() ? 2 : 1);
  add_matrix(count, model.hidden * (up_width + model.ffn_hidden));
  if (model.linear_bias) add_vector(count, up_width + model.hidden);
}

void add_experts(const ModelSpec& model, LayerParameters& count) {
  const ExpertsSpec& spec = model.experts;
  const std::int64_t matrices = model.gated() ? 3 : 2;
  count.router = model.hidden * spec.experts;
  add_matrix(count, count.router);
  if (spec.router_bias) add_vector(count, spec.experts);
  if (spec.shared_ffn > 0) add_matrix(count, matrices * model.hidden * spec.shared_ffn);
  if (spec.shared_gate) add_matrix(count, model.hidden);
  const std::int64_t weights = matrices * model.hidden * spec.ffn_hidden;
  const std::int64_t biases = spec.expert_bias ? (matrices - 1) * spec.ffn_hidden + model.hidden : 0;
  count.experts = spec.experts * (weights + biases);
  count.all += count.experts;
  count.matrices += spec.experts * weights;
  count.active += spec.top_k * (weights + biases);
  count.active_matrices += spec.top_k * weights;
}

// Megatron-LM bert_lm_head.py and pooler.py.
std::int64_t head_parameters(const ModelSpec& model) {
  const std::int64_t square = model.hidden * model.hidden + model.hidden;
  std::int64_t count = model.tied_head ? 0 : model.vocab * model.hidden;
  if (model.head_transform) count += square + norm_parameters(model, model.hidden) + model.vocab;
  if (model.pooler) count += square + 2 * model.hidden + 2;
  return count;
}

}  // namespace

LayerParameters layer_parameters(const ModelSpec& model, const LayerKind& kind) {
  LayerParameters count;
  add_attention(model, count);
  if (kind.side == LayerSide::kFirstDecoder || kind.side == LayerSide::kDecoder) add_cross_attention(model, count);
  if (kind.experts) {
    add_experts(model, count);
  } else {
    add_mlp(model, count);
  }
  const std::int64_t before = model.parallel_block && !model.parallel_norms ? 1 : 2, behind = model.post_norms ? 2 : 0;
  add_vector(count, (before + behind) * norm_parameters(model, model.hidden));
  return count;
}

ParameterCount parameter_count(const ModelSpec& model, std::int64_t sequence) {
  STEPSIM_CHECK(sequence > 0);
  ParameterCount count;
  for (const auto& [kind, layers] : kind_counts(model)) {
    const LayerParameters layer = layer_parameters(model, kind);
    count.layers += layers * layer.all;
    count.layer_matrices += layers * layer.matrices;
    count.active_layers += layers * layer.active;
    count.active_layer_matrices += layers * layer.active_matrices;
  }
  count.embedding = (model.vocab + model.token_types) * model.hidden;
  if (model.position == Position::kLearned) {
    count.positions = model.hidden * (model.positions_follow_sequence ? sequence : model.max_positions);
  }
  const std::int64_t norm = norm_parameters(model, model.hidden);
  count.final_norm = norm * (model.encoder_layers > 0 ? 2 : 1);
  count.head = head_parameters(model);
  if (model.multi_token_layers > 0) {
    // Megatron-LM multi_token_prediction.py: norms of the embedding, of the hidden state and behind the layer; eh_proj has no bias.
    const std::int64_t layer = layer_parameters(model, model.kind(model.layers - 1)).all;
    count.multi_token = model.multi_token_layers * (layer + 2 * model.hidden * model.hidden + 3 * norm);
  }
  const std::int64_t ends = count.embedding + count.positions + count.final_norm + count.head;
  count.total = count.layers + ends;
  count.active = count.active_layers + ends;
  return count;
}

}  // namespace stepsim
