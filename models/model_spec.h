// A Transformer's dimensions and architecture choices: what a model card says. Knows no training run and no machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/units.h"

namespace stepsim {

enum class Normalization : std::uint8_t { kLayerNorm, kRmsNorm };
enum class Activation : std::uint8_t { kGelu, kRelu, kSquaredRelu, kSwiGlu, kGeGlu };
enum class Position : std::uint8_t { kLearned, kRotary, kAlibi, kNone };
enum class RouterScore : std::uint8_t { kSoftmax, kSigmoid, kSinkhorn };

// A mixture of experts in place of the MLP. Experts have the model's activation; experts 0: no layer is one.
struct ExpertsSpec {
  std::int64_t experts = 0, top_k = 0;  // routed experts, and how many of them a token goes to
  std::int64_t ffn_hidden = 0;          // of one expert
  std::int64_t shared_ffn = 0;          // of the shared experts together, which every token passes; 0: none
  bool shared_gate = false;             // the shared experts' output is scaled by a gate of `hidden` weights (Qwen2-MoE)
  RouterScore score = RouterScore::kSoftmax;
  std::int64_t groups = 1, top_groups = 1;  // experts are chosen within the best groups (DeepSeek)
  bool balance_bias = false;                // an fp32 bias an expert that no gradient reaches (DeepSeek-V3): no parameter
  bool router_bias = false;                 // of the router's product (gpt-oss)
  bool expert_bias = false;                 // of the experts' products (gpt-oss)
  friend bool operator==(const ExpertsSpec&, const ExpertsSpec&) = default;
};

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 section 2.1). kv_rank 0: ordinary heads.
struct LatentAttentionSpec {
  std::int64_t q_rank = 0;  // 0: queries are projected from the layer's input
  std::int64_t kv_rank = 0;
  std::int64_t nope_dim = 0, rope_dim = 0, value_dim = 0;  // of a head
  friend bool operator==(const LatentAttentionSpec&, const LatentAttentionSpec&) = default;
};

// Where in the model a layer stands. An encoder-decoder's first decoder layer ends the encoder and embeds the decoder's tokens too.
enum class LayerSide : std::uint8_t { kOnly, kEncoder, kFirstDecoder, kDecoder };

// What distinguishes the layers of one model. Layers of one kind are alike.
struct LayerKind {
  LayerSide side = LayerSide::kOnly;
  bool experts = false;
  std::int64_t window = 0;  // keys that a query sees at most; 0: all
  bool rotary = true;       // where the model has rotary positions (layers without: Llama 4, SmolLM3)
  friend bool operator==(const LayerKind&, const LayerKind&) = default;
};

constexpr std::int64_t kMostLayers = 100'000;

// Valid by construction of the loaders (model_problem finds nothing): all counts > 0, heads % kv_heads == 0, linear_bias implies qkv_bias.
struct ModelSpec {
  std::string name;    // catalog name or the file's own
  std::string source;  // where the dimensions come from
  std::int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn_hidden = 0, vocab = 0;
  std::int64_t max_positions =
      0;  // rows of the learned position table; 0 with other positions; recipes may replace it by the sequence length
  bool positions_follow_sequence = false;  // learned table as long as the run's sequence (MPT)
  Normalization normalization = Normalization::kLayerNorm;
  Activation activation = Activation::kGelu;
  Position position = Position::kLearned;
  bool linear_bias = true;  // on every linear layer
  bool qkv_bias = true;     // on q, k, v (Qwen2: only there)
  bool norm_bias = true;    // LayerNorm beta
  bool qk_norm = false;     // a norm per head on q and k; of latent attention, the norms of its compressed q and kv instead
  bool tied_head = true;
  bool parallel_block = false;        // y = x + attention(norm(x)) + mlp(norm(x)) (PaLM)
  bool parallel_norms = false;        // of a parallel block: attention and MLP have a norm each (GPT-NeoX)
  double dropout = 0.0;               // hidden and attention, as trained
  std::int64_t attention_window = 0;  // keys that a query sees at most in the layers that have a window; 0: all
  ExpertsSpec experts;
  LatentAttentionSpec latent;  // then heads = kv_heads, head_dim = nope_dim
  std::vector<std::uint8_t>
      expert_layers;  // by layer 1: a mixture of experts, 0: dense; shorter lists repeat; empty: all, if there are experts
  std::vector<std::uint8_t> window_layers;  // likewise, those with the window; empty: all, if there is a window
  std::vector<std::uint8_t> rotary_layers;  // likewise; empty: all, if positions are rotary
  std::int64_t multi_token_layers = 0;      // multi-token prediction: each a layer of the last kind with its own norms and projection
  bool causal = true;                       // false: every token sees all (BERT, a T5 encoder)
  std::int64_t encoder_layers = 0;          // of `layers`, the first: an encoder-decoder (T5); 0: one stack
  bool post_norms = false;                  // attention and MLP outputs are normalised too (Gemma 2)
  bool attention_sinks = false;             // a learned logit a head (gpt-oss)
  std::int64_t token_types = 0;             // rows of a table added to the embeddings (BERT)
  bool head_transform = false;              // dense, activation and norm before the head, and a bias behind it (BERT)
  bool pooler = false;                      // dense on the first token and a classifier of 2 (BERT's next sentence)
  bool gated() const { return activation == Activation::kSwiGlu || activation == Activation::kGeGlu; }
  bool is_latent() const { return latent.kv_rank > 0; }
  bool has_experts() const { return experts.experts > 0; }
  // Of layer 0 to layers - 1.
  LayerKind kind(std::int64_t layer) const;
  // Those that occur, each once, in the order of their first layers.
  std::vector<LayerKind> kinds() const;
};

// Of one layer of a kind.
struct LayerParameters {
  std::int64_t all = 0, matrices = 0;            // matrices: weights of matrix products
  std::int64_t active = 0, active_matrices = 0;  // that one token passes: top_k of the routed experts
  std::int64_t experts = 0;                      // of `all`, the routed experts'
  std::int64_t router = 0;                       // of `matrices`, the router's
  std::int64_t attention_channels = 0;           // sum of the widths of q k and p v products of all heads: 2 heads head_dim
};
LayerParameters layer_parameters(const ModelSpec& model, const LayerKind& kind);
// How many layers there are of each kind, in the order of kinds().
std::vector<std::pair<LayerKind, std::int64_t>> kind_counts(const ModelSpec& model);

// Exact parameter counts, embeddings as the model defines them (no padding).
struct ParameterCount {
  std::int64_t layers = 0;                                    // of all layers, without those for multi-token prediction
  std::int64_t layer_matrices = 0;                            // of which weights of matrix products
  std::int64_t active_layers = 0, active_layer_matrices = 0;  // that one token passes
  std::int64_t embedding = 0;                                 // token table, and that of token types
  std::int64_t positions = 0;    // learned positions, for `sequence` positions where the table follows the sequence
  std::int64_t final_norm = 0;   // an encoder's too
  std::int64_t head = 0;         // 0 if tied; a transform's and pooler's too
  std::int64_t multi_token = 0;  // layers, norms and projections of multi-token prediction: in no total
  std::int64_t total = 0, active = 0;
};
ParameterCount parameter_count(const ModelSpec& model, std::int64_t sequence);

// What makes a spec impossible.
struct FieldProblem {
  std::string field;          // as in ModelSpec: "kv_heads"
  std::string found, wanted;  // "3", "a divisor of heads 32"
};
// The first one, in the order of the fields; none for a valid spec. Limits keep every product of dimensions far inside int64:
// layers <= 100,000, hidden and attention width <= 2^20, ffn_hidden and vocab <= 2^24, experts <= 2^16, parameters <= 10^15.
std::optional<FieldProblem> model_problem(const ModelSpec& model);

// A catalog name or alias (case, '_' for '-' and the organisation before a slash do not count), a .textproto, or a Hugging Face
// config.json. Unknown name (with the nearest), malformed or impossible file: InputError.
ModelSpec load_model(const std::string& name_or_file);

// Names in the catalog, sorted.
std::vector<std::string> model_names();

// Reads the text (text form or JSON) of a Model message, models/model.proto. `file` is named in errors.
ModelSpec parse_model(const std::string& text, const std::string& file);

// Reads the text of a config.json (llama, mistral, qwen2, gpt2, gpt_neox, opt, mpt, falcon-like, phi3, gemma where this program's layers
// can express it). `file` is named in errors. A model type or a field that changes the answer and cannot be expressed is an InputError
// that names it.
ModelSpec parse_huggingface_config(const std::string& text, const std::string& file);

}  // namespace stepsim
