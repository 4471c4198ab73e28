// A Transformer's dimensions and architecture choices: what a model card says. Knows no training run and no machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/units.h"

namespace stepsim {

enum class Normalization : std::uint8_t { kLayerNorm, kRmsNorm };
enum class Activation : std::uint8_t { kGelu, kRelu, kSquaredRelu, kSwiGlu, kGeGlu };
enum class Position : std::uint8_t { kLearned, kRotary, kAlibi, kNone };

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
  bool qk_norm = false;     // RMSNorm per head on q and k
  bool tied_head = true;
  bool parallel_block = false;        // y = x + attention(norm(x)) + mlp(norm(x)) (PaLM)
  double dropout = 0.0;               // hidden and attention, as trained
  std::int64_t attention_window = 0;  // keys that a query sees at most; 0: all earlier ones. Longer sequences are refused (check_layout)
  bool gated() const { return activation == Activation::kSwiGlu || activation == Activation::kGeGlu; }
};

// Exact parameter counts, embeddings as the model defines them (no padding).
struct ParameterCount {
  std::int64_t layer = 0;           // of one layer
  std::int64_t layer_matrices = 0;  // of which weights of matrix products
  std::int64_t embedding = 0;       // token table
  std::int64_t positions = 0;       // learned positions, for `sequence` positions where the table follows the sequence
  std::int64_t final_norm = 0;
  std::int64_t head = 0;  // 0 if tied
  std::int64_t total = 0;
};
ParameterCount parameter_count(const ModelSpec& model, std::int64_t sequence);

// What makes a spec impossible.
struct FieldProblem {
  std::string field;          // as in ModelSpec: "kv_heads"
  std::string found, wanted;  // "3", "a divisor of heads 32"
};
// The first one, in the order of the fields; none for a valid spec. Limits keep every product of dimensions far inside int64:
// layers <= 100,000, hidden and attention width <= 2^20, ffn_hidden and vocab <= 2^24, parameters <= 10^15.
std::optional<FieldProblem> model_problem(const ModelSpec& model);

// A catalog name or alias (case, '_' for '-' and the organisation before a slash do not count), a .textproto, or a Hugging Face
// config.json. Unknown name (with the nearest), malformed or impossible file: InputError.
ModelSpec load_model(const std::string& name_or_file);

// Names in the catalog, sorted.
std::vector<std::string> model_names();

// Reads the text (text form or JSON) of a Model message, models/model.proto. `file` is named in errors.
ModelSpec parse_model(const std::string& text, const std::string& file);

// Reads the text of a config.json (llama, mistral, qwen2, gpt2, gpt_neox, opt, mpt, falcon-like, phi3, gemma where this program's layers
// can express it). `file` is named in errors. A model type or feature that cannot be expressed (mixture of experts, MLA, sliding window
// that matters) is an InputError that says so.
ModelSpec parse_huggingface_config(const std::string& text, const std::string& file);

}  // namespace stepsim
