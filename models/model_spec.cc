#include "models/model_spec.h"

#include <algorithm>
#include <filesystem>
#include <span>

#include "models/model.pb.h"
#include "schema/embedded_files.h"
#include "schema/nearest_name.h"
#include "schema/read_message.h"
#include "sim/check.h"
#include "sim/input_error.h"

namespace stepsim {

std::span<const EmbeddedFile> model_files();  // written by stepsim_embed()

namespace {

constexpr std::int64_t kMostLayers = 100'000;
constexpr std::int64_t kMostWidth = 1 << 20;                     // hidden, heads x head_dim
constexpr std::int64_t kMostRows = 1 << 24;                      // ffn_hidden, vocab, positions
constexpr std::int64_t kMostParameters = 1'000'000'000'000'000;  // 18 bytes each and a factor of 500 stay inside int64

struct Bounds {
  const char* field;
  std::int64_t value, least, most;
};

std::optional<FieldProblem> outside(const Bounds& bounds) {
  if (bounds.value >= bounds.least && bounds.value <= bounds.most) return std::nullopt;
  return FieldProblem{bounds.field, std::to_string(bounds.value),
                      "a whole number from " + std::to_string(bounds.least) + " to " + std::to_string(bounds.most)};
}

std::optional<FieldProblem> counts_problem(const ModelSpec& model) {
  const bool table = model.position == Position::kLearned && !model.positions_follow_sequence;
  const Bounds all[] = {{"layers", model.layers, 1, kMostLayers},
                        {"hidden", model.hidden, 1, kMostWidth},
                        {"heads", model.heads, 1, kMostWidth},
                        {"kv_heads", model.kv_heads, 1, kMostWidth},
                        {"head_dim", model.head_dim, 1, kMostWidth},
                        {"ffn_hidden", model.ffn_hidden, 1, kMostRows},
                        {"vocab", model.vocab, 1, kMostRows},
                        {"max_positions", model.max_positions, table ? 1 : 0, kMostRows},
                        {"attention_window", model.attention_window, 0, kMostRows}};
  for (const Bounds& bounds : all) {
    if (auto problem = outside(bounds)) return problem;
  }
  return std::nullopt;
}

}  // namespace

std::optional<FieldProblem> model_problem(const ModelSpec& model) {
  if (auto problem = counts_problem(model)) return problem;
  if (model.heads % model.kv_heads != 0) {
    return FieldProblem{"kv_heads", std::to_string(model.kv_heads), "a divisor of the " + std::to_string(model.heads) + " heads"};
  }
  if (model.heads * model.head_dim > kMostWidth) {
    return FieldProblem{"head_dim", std::to_string(model.head_dim),
                        "at most " + std::to_string(kMostWidth / model.heads) + " with " + std::to_string(model.heads) + " heads"};
  }
  if (model.linear_bias && !model.qkv_bias) return FieldProblem{"qkv_bias", "false", "true where the other linear layers have biases"};
  if (model.norm_bias && model.normalization == Normalization::kRmsNorm) return FieldProblem{"norm_bias", "true", "false with RMSNorm"};
  if (!(model.dropout >= 0.0 && model.dropout < 1.0)) {
    return FieldProblem{"dropout", std::to_string(model.dropout), "a probability from 0 to below 1"};
  }
  const std::int64_t total = parameter_count(model, 1).total;
  if (total > kMostParameters) {
    return FieldProblem{"layers", std::to_string(model.layers) + " of " + std::to_string(total) + " parameters in all",
                        "at most " + std::to_string(kMostParameters) + " parameters"};
  }
  return std::nullopt;
}

ParameterCount parameter_count(const ModelSpec& model, std::int64_t sequence) {
  STEPSIM_CHECK(sequence > 0);
  const std::int64_t norm = model.hidden * (model.norm_bias ? 2 : 1);
  const std::int64_t qkv_width = (model.heads + 2 * model.kv_heads) * model.head_dim;
  const std::int64_t attention_width = model.heads * model.head_dim;
  const std::int64_t up_width = model.ffn_hidden * (model.gated() ? 2 : 1);
  ParameterCount count;
  count.layer_matrices = model.hidden * (qkv_width + attention_width + up_width + model.ffn_hidden);
  count.layer = count.layer_matrices + norm * (model.parallel_block ? 1 : 2);
  if (model.qkv_bias) count.layer += qkv_width;
  if (model.linear_bias) count.layer += up_width + 2 * model.hidden;  // up (and gate); attention output and down
  if (model.qk_norm) count.layer += 2 * model.head_dim;
  count.embedding = model.vocab * model.hidden;
  if (model.position == Position::kLearned) {
    count.positions = model.hidden * (model.positions_follow_sequence ? sequence : model.max_positions);
  }
  count.final_norm = norm;
  count.head = model.tied_head ? 0 : model.vocab * model.hidden;
  count.total = model.layers * count.layer + count.embedding + count.positions + count.final_norm + count.head;
  return count;
}

namespace {

Normalization normalization_of(files::Model::Normalization value) {
  return value == files::Model::RMS_NORM ? Normalization::kRmsNorm : Normalization::kLayerNorm;
}

Activation activation_of(files::Model::Activation value) {
  switch (value) {
    case files::Model::RELU:
      return Activation::kRelu;
    case files::Model::SQUARED_RELU:
      return Activation::kSquaredRelu;
    case files::Model::SWIGLU:
      return Activation::kSwiGlu;
    case files::Model::GEGLU:
      return Activation::kGeGlu;
    default:
      return Activation::kGelu;
  }
}

Position position_of(files::Model::Position value) {
  switch (value) {
    case files::Model::ROTARY:
      return Position::kRotary;
    case files::Model::ALIBI:
      return Position::kAlibi;
    case files::Model::NO_POSITIONS:
      return Position::kNone;
    default:
      return Position::kLearned;
  }
}

void require_fields(const files::Model& message, const std::string& file) {
  const std::pair<const char*, bool> required[] = {{"layers", message.has_layers()},         {"hidden", message.has_hidden()},
                                                   {"heads", message.has_heads()},           {"ffn_hidden", message.has_ffn_hidden()},
                                                   {"vocab", message.has_vocab()},           {"normalization", message.has_normalization()},
                                                   {"activation", message.has_activation()}, {"position", message.has_position()}};
  for (const auto& [field, present] : required) {
    if (!present) throw InputError({file, 1, 1}, std::string("found no ") + field + ", wanted a model with it");
  }
}

ModelSpec spec_of(const files::Model& message, const std::string& text, const std::string& file) {
  require_fields(message, file);
  ModelSpec spec;
  spec.name = message.name().empty() ? file : message.name();
  spec.source = message.source().empty() ? file : message.source();
  spec.layers = message.layers();
  spec.hidden = message.hidden();
  spec.heads = message.heads();
  spec.kv_heads = message.has_kv_heads() ? message.kv_heads() : message.heads();
  spec.ffn_hidden = message.ffn_hidden();
  spec.vocab = message.vocab();
  spec.max_positions = message.max_positions();
  spec.positions_follow_sequence = message.positions_follow_sequence();
  spec.normalization = normalization_of(message.normalization());
  spec.activation = activation_of(message.activation());
  spec.position = position_of(message.position());
  spec.linear_bias = message.linear_bias();
  spec.qkv_bias = message.has_qkv_bias() ? message.qkv_bias() : message.linear_bias();
  spec.norm_bias = message.has_norm_bias() ? message.norm_bias() : spec.normalization == Normalization::kLayerNorm;
  spec.qk_norm = message.qk_norm();
  spec.tied_head = message.tied_head();
  spec.parallel_block = message.parallel_block();
  spec.dropout = message.dropout();
  spec.attention_window = message.attention_window();
  if (message.has_head_dim()) {
    spec.head_dim = message.head_dim();
  } else if (spec.heads > 0 && spec.hidden % spec.heads == 0) {
    spec.head_dim = spec.hidden / spec.heads;
  } else {
    throw InputError(locate_field(text, file, "heads"), "found heads " + std::to_string(spec.heads) + ", wanted a divisor of hidden " +
                                                            std::to_string(spec.hidden) + ", or head_dim");
  }
  return spec;
}

struct CatalogEntry {
  ModelSpec spec;
  std::vector<std::string> names;  // its own first, then aliases, as catalog_key() makes them
};

std::string catalog_key(const std::string& name) {
  std::string key;
  for (const char c : name.substr(name.rfind('/') == std::string::npos ? 0 : name.rfind('/') + 1)) {
    const bool upper = c >= 'A' && c <= 'Z';
    key += c == '_' || c == ' ' ? '-' : upper ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return key;
}

files::Model read_model(const std::string& text, const std::string& file) {
  files::Model message;
  read_message(text, file, message);
  return message;
}

ModelSpec checked_spec(const files::Model& message, const std::string& text, const std::string& file) {
  ModelSpec spec = spec_of(message, text, file);
  if (const auto problem = model_problem(spec)) {
    throw InputError(locate_field(text, file, problem->field),
                     "found " + problem->field + " " + problem->found + ", wanted " + problem->wanted);
  }
  return spec;
}

std::vector<CatalogEntry> read_catalog() {
  std::vector<CatalogEntry> entries;
  for (const EmbeddedFile& file : model_files()) {
    const std::string text(file.text), path(file.path);
    const files::Model message = read_model(text, path);
    STEPSIM_CHECK(message.name() == file.name);
    CatalogEntry entry{checked_spec(message, text, path), {message.name()}};
    for (const std::string& alias : message.aliases()) entry.names.push_back(catalog_key(alias));
    entries.push_back(std::move(entry));
  }
  return entries;
}

const std::vector<CatalogEntry>& catalog() {
  static const std::vector<CatalogEntry> entries = read_catalog();
  return entries;
}

const ModelSpec* in_catalog(const std::string& name) {
  const std::string key = catalog_key(name);
  for (const CatalogEntry& entry : catalog()) {
    if (std::find(entry.names.begin(), entry.names.end(), key) != entry.names.end()) return &entry.spec;
  }
  return nullptr;
}

// Models that people will ask for and that this version's layers cannot express: what they need.
constexpr std::pair<std::string_view, std::string_view> kNotBuilt[] = {
    {"mixtral-8x7b", "mixture of experts"},         {"mixtral-8x22b", "mixture of experts"},
    {"qwen3-30b-a3b", "mixture of experts"},        {"qwen3-235b-a22b", "mixture of experts"},
    {"gpt-oss-20b", "mixture of experts"},          {"gpt-oss-120b", "mixture of experts"},
    {"deepseek-v2", "mixture of experts and MLA"},  {"deepseek-v3", "mixture of experts and MLA"},
    {"deepseek-16b", "mixture of experts and MLA"}, {"moonlight-16b", "mixture of experts and MLA"}};

bool looks_like_file(const std::string& name) {
  std::error_code ignored;
  if (std::filesystem::exists(name, ignored)) return true;
  const std::string extension = std::filesystem::path(name).extension().string();
  return extension == ".textproto" || extension == ".json" || extension == ".txt" || extension == ".pbtxt";
}

// Without the byte order mark that some editors put in front: places of errors count from behind it.
std::string without_mark(std::string text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (text.compare(0, kMark.size(), kMark) == 0) text.erase(0, kMark.size());
  return text;
}

// JSON is the JSON form of a Model message if it uses that message's names, otherwise a Hugging Face config.
bool is_huggingface(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || text[first] != '{') return false;
  const auto has = [&](const char* key) { return text.find(key) != std::string::npos; };
  return has("\"model_type\"") || has("\"architectures\"") || !(has("\"hidden\"") || has("\"layers\""));
}

}  // namespace

ModelSpec parse_model(const std::string& text, const std::string& file) { return checked_spec(read_model(text, file), text, file); }

ModelSpec load_model(const std::string& name_or_file) {
  std::error_code ignored;
  const bool own_file = name_or_file.find('/') != std::string::npos && std::filesystem::is_regular_file(name_or_file, ignored);
  const ModelSpec* spec = own_file ? nullptr : in_catalog(name_or_file);
  if (spec != nullptr) return *spec;
  if (looks_like_file(name_or_file)) {
    const std::string text = without_mark(read_text_file(name_or_file));
    return is_huggingface(text) ? parse_huggingface_config(text, name_or_file) : parse_model(text, name_or_file);
  }
  for (const auto& [name, needs] : kNotBuilt) {
    if (catalog_key(name_or_file) != name) continue;
    throw InputError({"--model"}, "found " + name_or_file + ", wanted a dense model: not built yet: " + std::string(needs));
  }
  std::vector<std::string> names;
  for (const CatalogEntry& entry : catalog()) names.insert(names.end(), entry.names.begin(), entry.names.end());
  throw InputError({"--model"}, "found \"" + name_or_file + "\", wanted a name of the catalog, a .textproto or a config.json" +
                                    suggestion(catalog_key(name_or_file), names));
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const CatalogEntry& entry : catalog()) names.push_back(entry.spec.name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace stepsim
