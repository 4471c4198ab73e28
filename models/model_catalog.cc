// Models as files and by name: the catalog that is compiled in, own .textproto files, Hugging Face configs.
#include <algorithm>
#include <filesystem>
#include <span>

#include "models/layer_pattern.h"
#include "models/model.pb.h"
#include "models/model_spec.h"
#include "schema/embedded_files.h"
#include "schema/nearest_name.h"
#include "schema/read_message.h"
#include "sim/check.h"
#include "sim/input_error.h"

namespace stepsim {

std::span<const EmbeddedFile> model_files();  // written by stepsim_embed()

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

RouterScore score_of(files::Model::RouterScore value) {
  switch (value) {
    case files::Model::SIGMOID:
      return RouterScore::kSigmoid;
    case files::Model::SINKHORN:
      return RouterScore::kSinkhorn;
    default:
      return RouterScore::kSoftmax;
  }
}

void require_fields(const SourceLocation& where, std::initializer_list<std::pair<const char*, bool>> required) {
  for (const auto& [field, present] : required) {
    if (!present) throw InputError(where, std::string("found no ") + field + ", wanted a model with it");
  }
}

// A file: its text for the places of mistakes, its name.
struct TextFile {
  const std::string &text, &name;
  SourceLocation place(const std::string& field) const { return locate_field(text, name, field); }
};

std::vector<std::uint8_t> pattern_of(const std::string& notation, const TextFile& file, const std::string& field) {
  const auto pattern = layer_pattern(notation);
  if (pattern) return *pattern;
  throw InputError(file.place(field), "found \"" + notation + "\", wanted a pattern of layers such as ([0]*3+[1]*58), [0,1] or 2");
}

void read_experts(const files::Model::Experts& message, const TextFile& file, ModelSpec& spec) {
  require_fields(file.place("experts"), {{"experts.experts", message.has_experts()},
                                         {"experts.top_k", message.has_top_k()},
                                         {"experts.ffn_hidden", message.has_ffn_hidden()}});
  spec.experts = {.experts = message.experts(),
                  .top_k = message.top_k(),
                  .ffn_hidden = message.ffn_hidden(),
                  .shared_ffn = message.shared_ffn(),
                  .shared_gate = message.shared_gate(),
                  .score = score_of(message.score()),
                  .groups = message.has_groups() ? message.groups() : 1,
                  .top_groups = message.has_top_groups() ? message.top_groups() : 1,
                  .balance_bias = message.balance_bias(),
                  .router_bias = message.router_bias(),
                  .expert_bias = message.expert_bias()};
  if (message.has_layers()) spec.expert_layers = pattern_of(message.layers(), file, "experts.layers");
}

void read_latent_attention(const files::Model::LatentAttention& message, const TextFile& file, ModelSpec& spec) {
  require_fields(file.place("latent_attention"), {{"latent_attention.kv_rank", message.has_kv_rank()},
                                                  {"latent_attention.nope_dim", message.has_nope_dim()},
                                                  {"latent_attention.rope_dim", message.has_rope_dim()},
                                                  {"latent_attention.value_dim", message.has_value_dim()}});
  spec.latent = {message.q_rank(), message.kv_rank(), message.nope_dim(), message.rope_dim(), message.value_dim()};
}

// What only some architectures have.
void read_extras(const files::Model& message, const TextFile& file, ModelSpec& spec) {
  if (message.has_window_layers()) spec.window_layers = pattern_of(message.window_layers(), file, "window_layers");
  if (message.has_rotary_layers()) spec.rotary_layers = pattern_of(message.rotary_layers(), file, "rotary_layers");
  if (message.has_experts()) read_experts(message.experts(), file, spec);
  if (message.has_latent_attention()) read_latent_attention(message.latent_attention(), file, spec);
  spec.multi_token_layers = message.multi_token_layers();
  spec.causal = message.has_causal() ? message.causal() : true;
  spec.encoder_layers = message.encoder_layers();
  spec.post_norms = message.post_norms();
  spec.attention_sinks = message.attention_sinks();
  spec.token_types = message.token_types();
  spec.head_transform = message.head_transform();
  spec.pooler = message.pooler();
  spec.parallel_norms = message.parallel_norms();
}

// Of a head. Latent attention says it itself.
std::int64_t head_dim_of(const files::Model& message, const TextFile& file) {
  if (message.has_head_dim()) return message.head_dim();
  if (message.has_latent_attention()) return message.latent_attention().nope_dim();
  if (message.heads() > 0 && message.hidden() % message.heads() == 0) return message.hidden() / message.heads();
  throw InputError(file.place("heads"), "found heads " + std::to_string(message.heads()) + ", wanted a divisor of hidden " +
                                            std::to_string(message.hidden()) + ", or head_dim");
}

ModelSpec spec_of(const files::Model& message, const TextFile& text_file) {
  const std::string& file = text_file.name;
  require_fields({file, 1, 1}, {{"layers", message.has_layers()},
                                {"hidden", message.has_hidden()},
                                {"heads", message.has_heads()},
                                {"ffn_hidden", message.has_ffn_hidden()},
                                {"vocab", message.has_vocab()},
                                {"normalization", message.has_normalization()},
                                {"activation", message.has_activation()},
                                {"position", message.has_position()}});
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
  spec.head_dim = head_dim_of(message, text_file);
  read_extras(message, text_file, spec);
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

// Where the schema has a field that model_problem() names.
std::string path_of(const std::string& field) {
  constexpr std::pair<const char*, const char*> kPaths[] = {{"experts", "experts.experts"},
                                                            {"top_k", "experts.top_k"},
                                                            {"expert_ffn_hidden", "experts.ffn_hidden"},
                                                            {"shared_ffn", "experts.shared_ffn"},
                                                            {"shared_gate", "experts.shared_gate"},
                                                            {"expert_groups", "experts.groups"},
                                                            {"top_groups", "experts.top_groups"},
                                                            {"expert_layers", "experts.layers"},
                                                            {"q_rank", "latent_attention.q_rank"},
                                                            {"kv_rank", "latent_attention.kv_rank"},
                                                            {"nope_dim", "latent_attention.nope_dim"},
                                                            {"rope_dim", "latent_attention.rope_dim"},
                                                            {"value_dim", "latent_attention.value_dim"}};
  for (const auto& [name, path] : kPaths) {
    if (field == name) return path;
  }
  return field;
}

ModelSpec checked_spec(const files::Model& message, const std::string& text, const std::string& file) {
  ModelSpec spec = spec_of(message, {text, file});
  if (const auto problem = model_problem(spec)) {
    throw InputError(locate_field(text, file, path_of(problem->field)),
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

// Families that people will ask for and whose layers cannot be expressed, by how their names begin: what they have.
constexpr std::pair<std::string_view, std::string_view> kForeign[] = {{"nemotron-h", "state-space layers (Mamba-2)"},
                                                                      {"nemotron-3", "state-space layers (Mamba-2)"},
                                                                      {"nemotron3", "state-space layers (Mamba-2)"},
                                                                      {"nemotron-v3", "state-space layers (Mamba-2)"},
                                                                      {"nvidia-nemotron-3", "state-space layers (Mamba-2)"},
                                                                      {"nemotron-nano-v2", "state-space layers (Mamba-2)"},
                                                                      {"nvidia-nemotron-nano", "state-space layers (Mamba-2)"},
                                                                      {"jamba", "state-space layers (Mamba)"},
                                                                      {"ai21-jamba", "state-space layers (Mamba)"},
                                                                      {"mamba", "state-space layers (Mamba)"},
                                                                      {"falcon-mamba", "state-space layers (Mamba)"},
                                                                      {"falcon-h1", "state-space layers (Mamba-2)"},
                                                                      {"zamba", "state-space layers (Mamba)"},
                                                                      {"bamba", "state-space layers (Mamba-2)"},
                                                                      {"granite-4", "state-space layers (Mamba-2)"},
                                                                      {"codestral-mamba", "state-space layers (Mamba-2)"},
                                                                      {"hymba", "state-space layers beside attention (Mamba)"},
                                                                      {"qwen3-next", "linear attention (gated delta net)"},
                                                                      {"qwen3.", "linear attention (gated delta net)"},
                                                                      {"lfm2", "convolution layers"},
                                                                      {"kimi-linear", "linear attention (Kimi delta)"},
                                                                      {"minimax-text", "linear attention (lightning)"},
                                                                      {"minimax-m1", "linear attention (lightning)"},
                                                                      {"rwkv", "recurrent layers"},
                                                                      {"recurrentgemma", "recurrent layers"},
                                                                      {"llama4", "chunked attention"},
                                                                      {"llama-4", "chunked attention"}};

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
  for (const auto& [start, has] : kForeign) {
    if (catalog_key(name_or_file).compare(0, start.size(), start) != 0) continue;
    throw InputError({"--model"},
                     "found " + name_or_file + ", which has " + std::string(has) + ", wanted a model of attention and MLP layers");
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
