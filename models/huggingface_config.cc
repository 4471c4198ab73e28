#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "models/model_spec.h"
#include "schema/json_tokens.h"
#include "schema/message_field.h"
#include "schema/nearest_name.h"
#include "sim/input_error.h"

// Key names and the values of absent keys are those of the config classes of huggingface/transformers @008e5743
// (src/transformers/models/<model_type>/configuration_<model_type>.py). Dimensions have no default here: a file without them is not a
// model.

namespace stepsim {

namespace {

constexpr int kDeepest = 64;  // nested objects and lists

// One line of printable ASCII, cut to 60 characters: text of a foreign file inside a message.
std::string printable(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  std::string line;
  for (const char c : text.substr(0, kLongest)) line += c >= ' ' && c <= '~' ? c : '?';
  return text.size() > kLongest ? line + "..." : line;
}

// The object of the file with the place of each key. A key inside a key is "outer.inner". null counts as not given.
class ConfigFile {
 public:
  ConfigFile(const std::string& text, const std::string& file) : text_(text), file_(file) { read(); }

  bool named(const std::string& key) const { return value_at(key) != nullptr; }
  bool given(const std::string& key) const { return named(key) && !value_at(key)->is_null(); }
  bool is_object(const std::string& key) const { return named(key) && value_at(key)->is_object(); }

  std::int64_t whole(const std::string& key) const {
    const nlohmann::json& value = required(key, "a whole number");
    const bool above = value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX);
    if (!value.is_number_integer() || above) refuse(key, "a whole number");
    return value.get<std::int64_t>();
  }
  std::int64_t whole(const std::string& key, std::int64_t otherwise) const { return given(key) ? whole(key) : otherwise; }
  bool flag(const std::string& key, bool otherwise) const {
    if (!given(key)) return otherwise;
    if (!value_at(key)->is_boolean()) refuse(key, "true or false");
    return value_at(key)->get<bool>();
  }
  double number(const std::string& key, double otherwise) const {
    if (!given(key)) return otherwise;
    if (!value_at(key)->is_number()) refuse(key, "a number");
    return value_at(key)->get<double>();
  }
  std::string word(const std::string& key) const {
    const nlohmann::json& value = required(key, "a text");
    if (!value.is_string()) refuse(key, "a text");
    return value.get<std::string>();
  }
  std::string word(const std::string& key, const std::string& otherwise) const { return given(key) ? word(key) : otherwise; }
  std::vector<std::string> words(const std::string& key) const {
    std::vector<std::string> list;
    if (!given(key)) return list;
    if (!value_at(key)->is_array()) refuse(key, "a list of texts");
    for (const nlohmann::json& value : *value_at(key)) {
      if (!value.is_string()) refuse(key, "a list of texts");
      list.push_back(value.get<std::string>());
    }
    return list;
  }

  // At the key, or at the object where it is not named.
  [[noreturn]] void fail(const std::string& key, const std::string& found, const std::string& wanted) const {
    const auto place = offsets_.find(key);
    const std::size_t first = text_.find('{');
    throw InputError(place_at(text_, file_, place == offsets_.end() ? first : place->second), "found " + found + ", wanted " + wanted);
  }
  [[noreturn]] void refuse(const std::string& key, const std::string& wanted) const {
    fail(key, key + " " + printable(value_at(key)->dump(-1, ' ', true)), wanted);
  }
  const std::string& file() const { return file_; }

 private:
  const nlohmann::json* value_at(const std::string& key) const {
    const std::size_t dot = key.find('.');
    const auto outer = root_.find(key.substr(0, dot));
    if (outer == root_.end()) return nullptr;
    if (dot == std::string::npos) return &*outer;
    if (!outer->is_object()) return nullptr;
    const auto inner = outer->find(key.substr(dot + 1));
    return inner == outer->end() ? nullptr : &*inner;
  }

  const nlohmann::json& required(const std::string& key, const std::string& wanted) const {
    if (!given(key)) fail(key, "no " + key, wanted);
    return *value_at(key);
  }

  void read();
  [[noreturn]] void syntax_error(std::size_t bytes_read, const std::string& message) const;

  const std::string& text_;
  const std::string& file_;
  nlohmann::json root_;
  std::map<std::string, std::size_t> offsets_;
};

void ConfigFile::syntax_error(std::size_t bytes_read, const std::string& message) const {
  const std::size_t offset = bytes_read == 0 ? 0 : bytes_read - 1;
  const bool ended = offset >= text_.size();
  const std::string found = ended ? "the end of the file" : "\"" + printable(std::string_view(text_).substr(offset, 1)) + "\"";
  const std::size_t expected = message.rfind("expected ");
  const std::size_t reason = message.find(" - ");
  std::string wanted = "valid JSON in UTF-8";
  if (expected != std::string::npos && message.compare(expected - 2, 2, "un") != 0) {
    wanted = printable(message.substr(expected + 9));
  } else if (reason != std::string::npos && !ended) {
    wanted += " (" + printable(message.substr(reason + 3, message.find(';', reason) - reason - 3)) + ")";
  }
  throw InputError(place_at(text_, file_, offset), "found " + found + ", wanted " + wanted);
}

void ConfigFile::read() {
  const std::size_t first = text_.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) throw InputError({file_, 1, 1}, "found an empty file, wanted a Hugging Face config.json");
  JsonTokens tokens(text_);
  std::string outer;
  std::vector<std::set<std::string>> open;  // keys so far of the objects around the place
  using Event = nlohmann::json::parse_event_t;
  const auto on_event = [&](int depth, Event event, nlohmann::json& parsed) {
    const std::size_t place = tokens.next(event == Event::value && parsed.is_number());
    if (depth > kDeepest) {
      throw InputError(place_at(text_, file_, place), "found more than " + std::to_string(kDeepest) + " nested lists, wanted fewer");
    }
    if (event == Event::object_start) open.emplace_back();
    if (event == Event::object_end) open.pop_back();
    if (event != Event::key) return true;
    const std::string& key = parsed.get_ref<const std::string&>();
    if (!open.back().insert(key).second) {
      throw InputError(place_at(text_, file_, place), "found " + printable(key) + " a second time, wanted each key once");
    }
    if (depth == 1) outer = key;
    if (depth <= 2) offsets_[depth == 1 ? key : outer + "." + key] = place;
    return true;
  };
  try {
    root_ = nlohmann::json::parse(tokens.begin(), tokens.end(), on_event);
  } catch (const nlohmann::json::parse_error& error) {
    syntax_error(error.byte, error.what());
  } catch (const nlohmann::json::exception& error) {  // a number beyond double
    throw InputError(place_at(text_, file_, tokens.taken()),
                     "found a value that cannot be read, wanted valid JSON (" + printable(error.what()) + ")");
  }
  if (!root_.is_object()) throw InputError(place_at(text_, file_, first), std::string("found ") + root_.type_name() + ", wanted an object");
}

// Which key gives which dimension: for reading, and for naming what model_problem finds.
struct Keys {
  const char *layers, *hidden, *heads, *kv_heads, *head_dim, *ffn_hidden, *max_positions;
};
constexpr Keys kModern = {"num_hidden_layers", "hidden_size",       "num_attention_heads",    "num_key_value_heads",
                          "head_dim",          "intermediate_size", "max_position_embeddings"};
constexpr Keys kGpt2 = {"n_layer", "n_embd", "n_head", "multi_query", "n_head", "n_inner", "n_positions"};
constexpr Keys kOpt = {"num_hidden_layers",   "hidden_size", "num_attention_heads",    "num_attention_heads",
                       "num_attention_heads", "ffn_dim",     "max_position_embeddings"};
constexpr Keys kMpt = {"n_layers", "d_model", "n_heads", "n_heads", "n_heads", "expansion_ratio", "max_seq_len"};
constexpr Keys kFalcon = {"num_hidden_layers",   "hidden_size",     "num_attention_heads",    "num_kv_heads",
                          "num_attention_heads", "ffn_hidden_size", "max_position_embeddings"};

std::string key_of(const Keys& keys, const std::string& field) {
  const std::pair<const char*, const char*> names[] = {{"layers", keys.layers},
                                                       {"hidden", keys.hidden},
                                                       {"heads", keys.heads},
                                                       {"kv_heads", keys.kv_heads},
                                                       {"head_dim", keys.head_dim},
                                                       {"ffn_hidden", keys.ffn_hidden},
                                                       {"max_positions", keys.max_positions},
                                                       {"vocab", "vocab_size"},
                                                       {"attention_window", "sliding_window"}};
  for (const auto& [name, key] : names) {
    if (field == name) return key;
  }
  return field;
}

ModelSpec checked(const ConfigFile& config, const Keys& keys, ModelSpec spec) {
  if (const auto problem = model_problem(spec)) {
    const std::string key = key_of(keys, problem->field);
    config.fail(key, key + " " + problem->found, problem->wanted);
  }
  return spec;
}

std::int64_t width_per_head(const ConfigFile& config, const Keys& keys, std::int64_t hidden, std::int64_t heads) {
  if (heads > 0 && hidden % heads == 0) return hidden / heads;
  config.fail(keys.heads, std::string(keys.heads) + " " + std::to_string(heads),
              "a divisor of " + std::string(keys.hidden) + " " + std::to_string(hidden));
}

// Keys that every family shares.
ModelSpec common(const ConfigFile& config, const Keys& keys) {
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

struct ModernDefaults {       // values of absent keys
  std::int64_t kv_heads = 0;  // 0: as many as heads
  std::int64_t head_dim = 0;  // 0: hidden / heads
  const char* activation = "silu";
  bool gated = true;
  bool tied = false;
};

// RMSNorm, rotary positions, no biases: what Llama and its many descendants share.
ModelSpec modern(const ConfigFile& config, const ModernDefaults& defaults) {
  ModelSpec spec = common(config, kModern);
  const bool absent = !config.named(kModern.kv_heads) && defaults.kv_heads > 0;
  spec.kv_heads = absent ? defaults.kv_heads : config.whole(kModern.kv_heads, spec.heads);
  spec.ffn_hidden = config.whole(kModern.ffn_hidden);
  if (config.given(kModern.head_dim) || defaults.head_dim > 0) {
    spec.head_dim = config.whole(kModern.head_dim, defaults.head_dim);
  } else {
    spec.head_dim = width_per_head(config, kModern, spec.hidden, spec.heads);
  }
  const std::string activation_key = config.given("hidden_activation") ? "hidden_activation" : "hidden_act";  // Gemma has both
  spec.normalization = Normalization::kRmsNorm;
  spec.activation = activation_named(config, activation_key, defaults.activation, defaults.gated);
  spec.position = Position::kRotary;
  spec.linear_bias = spec.qkv_bias = spec.norm_bias = false;
  spec.tied_head = config.flag("tie_word_embeddings", defaults.tied);
  return spec;
}

// attention_bias puts biases on q, k, v and the output projection, mlp_bias on the others.
void read_biases(const ConfigFile& config, ModelSpec& spec) {
  const bool attention = config.flag("attention_bias", false);
  if (attention != config.flag("mlp_bias", false)) {
    config.fail("attention_bias", std::string("attention_bias ") + (attention ? "true" : "false"),
                "the same as mlp_bias: not built yet otherwise");
  }
  spec.linear_bias = spec.qkv_bias = attention;
}

// Sequences inside the window are ordinary attention.
void read_window(const ConfigFile& config, std::int64_t otherwise, ModelSpec& spec) {
  constexpr std::int64_t kMost = 1 << 24;
  spec.attention_window = config.named("sliding_window") ? config.whole("sliding_window", 0) : otherwise;
  const bool outside = spec.attention_window < 1 || spec.attention_window > kMost;
  if (config.given("sliding_window") && outside) config.refuse("sliding_window", "a whole number from 1 to 16777216, or null");
}

ModelSpec llama(const ConfigFile& config) {
  ModelSpec spec = modern(config, {});
  read_biases(config, spec);
  return checked(config, kModern, spec);
}

ModelSpec mistral(const ConfigFile& config) {
  ModelSpec spec = modern(config, {.kv_heads = 8});
  read_window(config, 4096, spec);
  return checked(config, kModern, spec);
}

ModelSpec qwen2(const ConfigFile& config) {
  ModelSpec spec = modern(config, {.kv_heads = 32});
  spec.qkv_bias = true;
  if (config.flag("use_sliding_window", false)) read_window(config, 4096, spec);
  return checked(config, kModern, spec);
}

ModelSpec qwen3(const ConfigFile& config) {
  ModelSpec spec = modern(config, {.kv_heads = 32, .head_dim = 128});
  read_biases(config, spec);
  spec.qk_norm = true;
  if (config.flag("use_sliding_window", false)) read_window(config, 4096, spec);
  return checked(config, kModern, spec);
}

ModelSpec phi3(const ConfigFile& config) {
  ModelSpec spec = modern(config, {});
  spec.dropout = config.number("resid_pdrop", 0.0);
  read_window(config, 0, spec);
  return checked(config, kModern, spec);
}

ModelSpec gemma(const ConfigFile& config) {
  ModelSpec spec = modern(config, {.kv_heads = 16, .head_dim = 256, .activation = "gelu_pytorch_tanh", .tied = true});
  read_biases(config, spec);
  return checked(config, kModern, spec);
}

ModelSpec starcoder2(const ConfigFile& config) {
  ModelSpec spec = modern(config, {.kv_heads = 2, .activation = "gelu_pytorch_tanh", .gated = false, .tied = true});
  spec.normalization = Normalization::kLayerNorm;
  spec.norm_bias = true;
  spec.linear_bias = spec.qkv_bias = config.flag("use_bias", true);
  spec.dropout = config.number("residual_dropout", 0.0);
  read_window(config, 0, spec);
  return checked(config, kModern, spec);
}

ModelSpec nemotron(const ConfigFile& config) {
  ModelSpec spec = modern(config, {.activation = "relu2", .gated = false});
  spec.normalization = Normalization::kLayerNorm;
  spec.norm_bias = true;
  read_biases(config, spec);
  return checked(config, kModern, spec);
}

ModelSpec gpt_neox(const ConfigFile& config) {
  if (config.flag("use_parallel_residual", true)) {
    config.fail("use_parallel_residual", "use_parallel_residual true", "false: parallel blocks with two norms are not built yet");
  }
  ModelSpec spec = modern(config, {.activation = "gelu", .gated = false});
  spec.normalization = Normalization::kLayerNorm;
  spec.norm_bias = true;
  spec.linear_bias = spec.qkv_bias = true;
  if (!config.flag("attention_bias", true)) config.refuse("attention_bias", "true: biases of the other layers alone are not built yet");
  spec.dropout = config.number("hidden_dropout", 0.0);
  return checked(config, kModern, spec);
}

ModelSpec gpt2(const ConfigFile& config) {
  ModelSpec spec = common(config, kGpt2);
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
  ModelSpec spec = common(config, kOpt);
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
  spec.tied_head = config.flag("tie_word_embeddings", true);
  spec.dropout = config.number("dropout", 0.1);
  return checked(config, kOpt, spec);
}

ModelSpec mpt(const ConfigFile& config) {
  ModelSpec spec = common(config, kMpt);
  if (config.word("attn_config.attn_type", "multihead_attention") != "multihead_attention") {
    config.refuse("attn_config.attn_type", "multihead_attention: others are not built yet");
  }
  if (config.flag("attn_config.qk_ln", false)) config.refuse("attn_config.qk_ln", "false: LayerNorm on queries and keys is not built yet");
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
  ModelSpec spec = common(config, kFalcon);
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

struct Family {
  std::string_view model_type;
  ModelSpec (*read)(const ConfigFile&);
};
constexpr Family kFamilies[] = {{"llama", llama},       {"mistral", mistral},   {"qwen2", qwen2},   {"qwen3", qwen3},
                                {"phi3", phi3},         {"gemma", gemma},       {"granite", llama}, {"starcoder2", starcoder2},
                                {"nemotron", nemotron}, {"gpt_neox", gpt_neox}, {"gpt2", gpt2},     {"gpt_bigcode", gpt2},
                                {"opt", opt},           {"mpt", mpt},           {"falcon", falcon}};

// Known types whose layers this version cannot express, and why.
constexpr std::pair<std::string_view, std::string_view> kNotBuilt[] = {{"mixtral", "mixture of experts"},
                                                                       {"qwen2_moe", "mixture of experts"},
                                                                       {"qwen3_moe", "mixture of experts"},
                                                                       {"gpt_oss", "mixture of experts"},
                                                                       {"dbrx", "mixture of experts"},
                                                                       {"phimoe", "mixture of experts"},
                                                                       {"olmoe", "mixture of experts"},
                                                                       {"granitemoe", "mixture of experts"},
                                                                       {"llama4", "mixture of experts"},
                                                                       {"llama4_text", "mixture of experts"},
                                                                       {"glm4_moe", "mixture of experts"},
                                                                       {"deepseek", "mixture of experts"},
                                                                       {"deepseek_v2", "mixture of experts and MLA"},
                                                                       {"deepseek_v3", "mixture of experts and MLA"},
                                                                       {"kimi_k2", "mixture of experts and MLA"},
                                                                       {"minicpm3", "MLA"},
                                                                       {"mamba", "state-space layers"},
                                                                       {"mamba2", "state-space layers"},
                                                                       {"falcon_mamba", "state-space layers"},
                                                                       {"rwkv", "recurrent layers"},
                                                                       {"recurrent_gemma", "hybrid layers"},
                                                                       {"jamba", "hybrid layers"},
                                                                       {"bamba", "hybrid layers"},
                                                                       {"zamba", "hybrid layers"},
                                                                       {"zamba2", "hybrid layers"},
                                                                       {"nemotron_h", "hybrid layers"},
                                                                       {"falcon_h1", "hybrid layers"},
                                                                       {"qwen3_next", "hybrid layers"},
                                                                       {"granitemoehybrid", "hybrid layers"},
                                                                       {"lfm2", "hybrid layers"},
                                                                       {"t5", "encoder-decoder models"},
                                                                       {"mt5", "encoder-decoder models"},
                                                                       {"bart", "encoder-decoder models"},
                                                                       {"whisper", "encoder-decoder models"},
                                                                       {"bert", "encoders"},
                                                                       {"roberta", "encoders"},
                                                                       {"gemma2", "norms behind the blocks"},
                                                                       {"gemma3_text", "norms behind the blocks"},
                                                                       {"gemma3", "models of several modalities"},
                                                                       {"olmo2", "norms behind the blocks"},
                                                                       {"gpt_neo", "local attention"},
                                                                       {"gptj", "a head with biases"},
                                                                       {"phi", "a head with biases"},
                                                                       {"bloom", "a norm behind the embedding"}};

void refuse_features(const ConfigFile& config) {
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"}) {
    if (config.given(key) && config.whole(key) > 1) config.refuse(key, "a dense model: not built yet: mixture of experts");
  }
  for (const char* key : {"kv_lora_rank", "q_lora_rank"}) {
    if (config.given(key)) config.refuse(key, "ordinary attention: not built yet: MLA");
  }
  for (const char* key : {"is_encoder_decoder", "add_cross_attention"}) {
    if (config.flag(key, false)) config.refuse(key, "false: not built yet: encoder-decoder models");
  }
  for (const char* key : {"text_config", "vision_config"}) {
    if (config.is_object(key)) config.fail(key, key, "a text model: not built yet: models of several modalities");
  }
  for (const std::string& type : config.words("layer_types")) {
    if (type == "full_attention" || type == "sliding_attention") continue;
    config.fail("layer_types", "layer_types \"" + printable(type) + "\"", "full_attention: not built yet: hybrid layers");
  }
}

// Some layers slide, some do not: only sequences inside the window are the same in both.
void read_sliding_layers(const ConfigFile& config, ModelSpec& spec) {
  const std::vector<std::string> types = config.words("layer_types");
  if (std::find(types.begin(), types.end(), "sliding_attention") == types.end()) return;
  if (!config.given("sliding_window")) config.fail("layer_types", "layer_types \"sliding_attention\" and no sliding_window", "both");
  read_window(config, 0, spec);
}

}  // namespace

ModelSpec parse_huggingface_config(const std::string& text, const std::string& file) {
  const ConfigFile config(text, file);
  const std::string type = config.word("model_type");
  for (const auto& [known, needs] : kNotBuilt) {
    if (type == known) config.fail("model_type", "model_type \"" + type + "\"", "a dense decoder: not built yet: " + std::string(needs));
  }
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.emplace_back(family.model_type);
  const auto position = std::find(names.begin(), names.end(), type);
  if (position == names.end()) {
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
    config.fail("model_type", "model_type \"" + printable(type) + "\"", "one of " + all + suggestion(printable(type), names));
  }
  refuse_features(config);
  ModelSpec spec = kFamilies[position - names.begin()].read(config);
  read_sliding_layers(config, spec);
  return spec;
}

}  // namespace stepsim
