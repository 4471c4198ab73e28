#include "tools/megatron_model.h"

#include <algorithm>
#include <array>

namespace stepsim {

namespace {

struct NamedVocabulary {
  std::string_view tokenizer;
  std::int64_t tokens;
};
// spec/megatron_memory.md section 3.1, "Vocab".
constexpr std::array<NamedVocabulary, 5> kVocabularies = {{
    {"GPT2BPETokenizer", 50257},
    {"GPTSentencePieceTokenizer", 256000},  // nemotron_2_256k
    {"Llama2Tokenizer", 32000},
    {"BertWordPieceCase", 28996},
    {"BertWordPieceLowerCase", 28996},  // the tests' vocabulary file is the cased one
}};

// Tokens before padding.
std::int64_t vocabulary(const MegatronRun& run) {
  const MegatronArguments& arguments = run.arguments;
  if (arguments.given("padded-vocab-size")) return arguments.whole("padded-vocab-size", 0);
  const std::string usual = run.family() == "bert" || run.family() == "t5" ? "BertWordPieceCase" : "GPT2BPETokenizer";
  const std::string tokenizer = arguments.text("tokenizer-type", usual);
  const auto named =
      std::find_if(kVocabularies.begin(), kVocabularies.end(), [&](const NamedVocabulary& row) { return row.tokenizer == tokenizer; });
  if (named != kVocabularies.end()) return named->tokens + arguments.whole("vocab-extra-ids", 0, 0);
  if (!arguments.given("vocab-size")) arguments.refuse("tokenizer-type", "a tokenizer whose size is known, or --vocab-size");
  return arguments.whole("vocab-size", 0);
}

Position positions(const MegatronArguments& arguments) {
  if (arguments.on("use-rotary-position-embeddings") || arguments.on("multi-latent-attention")) return Position::kRotary;
  const std::string type = arguments.text("position-embedding-type", "learned_absolute");
  if (type == "learned_absolute") return Position::kLearned;
  if (type == "rope" || type == "mrope" || type == "yarn") return Position::kRotary;
  if (type == "none" || type == "relative") return Position::kNone;
  arguments.refuse("position-embedding-type", "learned_absolute, rope, yarn or none");
}

Activation activation(const MegatronArguments& arguments) {
  if (arguments.on("swiglu")) return Activation::kSwiGlu;
  return arguments.on("squared-relu") ? Activation::kSquaredRelu : Activation::kGelu;
}

// arguments.py: 4 hidden; with SwiGLU two thirds of that, a multiple of 64.
std::int64_t ffn_hidden(const MegatronArguments& arguments, std::int64_t hidden) {
  const std::int64_t usual = arguments.on("swiglu") ? 4 * hidden * 2 / 3 / 64 * 64 : 4 * hidden;
  return arguments.whole("ffn-hidden-size", usual);
}

// "([0]*3+[1]*11)" as the list of the layers; "2": every second layer from the first on has experts (transformer_config.py).
std::vector<std::uint8_t> expert_layers(const MegatronArguments& arguments) {
  const std::string_view kFlag = "moe-layer-freq";
  const std::string text = arguments.text(kFlag, "1");
  std::vector<std::uint8_t> layers;
  if (text.find('[') == std::string::npos) {
    const std::int64_t every = arguments.whole(kFlag, 1, 1, 1 << 10);
    for (std::int64_t i = 0; i < every; ++i) layers.push_back(i == 0 ? 1 : 0);
    return layers;
  }
  std::vector<std::uint8_t> list;  // of the brackets
  bool inside = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char letter = text[at];
    if (letter == '[') {
      inside = true;
      list.clear();
    } else if (letter == ']') {
      inside = false;
      layers.insert(layers.end(), list.begin(), list.end());
    } else if (inside && (letter == '0' || letter == '1')) {
      list.push_back(letter == '1' ? 1 : 0);
    } else if (letter == '*') {
      std::int64_t count = 0;
      while (at + 1 < text.size() && text[at + 1] >= '0' && text[at + 1] <= '9' && count < 1 << 16) count = 10 * count + (text[++at] - '0');
      for (std::int64_t i = 1; i < count; ++i) layers.insert(layers.end(), list.begin(), list.end());
    } else if (letter != '(' && letter != ')' && letter != '+' && letter != ',' && letter != ' ') {
      arguments.refuse(kFlag, "a sum of lists such as ([0]*3+[1]*11), or N");
    }
  }
  if (layers.empty()) arguments.refuse(kFlag, "a sum of lists such as ([0]*3+[1]*11), or N");
  return layers;
}

void add_experts(const MegatronArguments& arguments, ModelSpec& model) {
  ExpertsSpec& experts = model.experts;
  experts.experts = arguments.whole("num-experts", 0);
  if (experts.experts == 0) return;
  experts.top_k = arguments.whole("moe-router-topk", 2);
  experts.ffn_hidden = arguments.whole("moe-ffn-hidden-size", model.ffn_hidden);
  experts.shared_ffn = arguments.whole("moe-shared-expert-intermediate-size", 0, 0);
  const bool sinkhorn = arguments.text("moe-router-load-balancing-type") == "sinkhorn";
  const bool sigmoid = arguments.text("moe-router-score-function") == "sigmoid";
  experts.score = sinkhorn ? RouterScore::kSinkhorn : sigmoid ? RouterScore::kSigmoid : RouterScore::kSoftmax;
  experts.groups = arguments.whole("moe-router-num-groups", 1);
  experts.top_groups = arguments.whole("moe-router-group-topk", experts.groups);
  experts.balance_bias = arguments.on("moe-router-enable-expert-bias");
  experts.expert_bias = model.linear_bias;
  model.expert_layers = expert_layers(arguments);
}

// Defaults: arguments.py and MLATransformerConfig.
void add_latent_attention(const MegatronArguments& arguments, ModelSpec& model) {
  if (!arguments.on("multi-latent-attention")) return;
  model.latent = {.q_rank = arguments.whole("q-lora-rank", 0, 0),
                  .kv_rank = arguments.whole("kv-lora-rank", 32),
                  .nope_dim = arguments.whole("qk-head-dim", 128),
                  .rope_dim = arguments.whole("qk-pos-emb-head-dim", 64),
                  .value_dim = arguments.whole("v-head-dim", 128)};
  model.kv_heads = model.heads;
  model.head_dim = model.latent.nope_dim;
}

void add_family(const MegatronRun& run, ModelSpec& model) {
  const MegatronArguments& arguments = run.arguments;
  if (run.family() == "bert") {
    model.causal = false;
    model.token_types = 2;  // pretrain_bert.py: num_tokentypes 2 with the binary head
    model.head_transform = true;
    model.pooler = !arguments.on("bert-no-binary-head");
  }
  if (arguments.given("decoder-num-layers") || run.family() == "t5") {
    model.encoder_layers = arguments.whole("encoder-num-layers", arguments.whole("num-layers", 0));
    model.layers = model.encoder_layers + arguments.whole("decoder-num-layers", model.encoder_layers);
  }
}

}  // namespace

ModelSpec megatron_model(const MegatronRun& run) {
  const MegatronArguments& arguments = run.arguments;
  ModelSpec model;
  model.name = run.name();
  model.source = run.test_case;
  model.layers = arguments.whole("num-layers", arguments.whole("encoder-num-layers", 0));
  model.hidden = arguments.whole("hidden-size", 0);
  model.heads = arguments.whole("num-attention-heads", 0);
  if (model.hidden == 0) arguments.refuse("hidden-size", "a number");
  if (model.heads == 0) arguments.refuse("num-attention-heads", "a number");
  model.kv_heads = arguments.on("group-query-attention") ? arguments.whole("num-query-groups", 1) : model.heads;
  model.head_dim = arguments.whole("kv-channels", model.hidden / model.heads);
  model.ffn_hidden = ffn_hidden(arguments, model.hidden);
  model.vocab = vocabulary(run);
  model.normalization = arguments.text("normalization", "LayerNorm") == "RMSNorm" ? Normalization::kRmsNorm : Normalization::kLayerNorm;
  model.activation = activation(arguments);
  model.position = positions(arguments);
  if (model.position == Position::kLearned)
    model.max_positions = arguments.whole("max-position-embeddings", arguments.whole("seq-length", 0));
  model.linear_bias = !arguments.on("disable-bias-linear");
  model.qkv_bias = model.linear_bias || arguments.on("add-qkv-bias");
  model.norm_bias = model.normalization == Normalization::kLayerNorm;
  model.qk_norm = arguments.on("qk-layernorm");
  model.tied_head = !arguments.on("untie-embeddings-and-output-weights");
  model.dropout = arguments.real("hidden-dropout", kMegatronDropout);
  model.multi_token_layers = arguments.whole("mtp-num-layers", 0, 0);
  add_family(run, model);
  add_experts(arguments, model);
  add_latent_attention(arguments, model);
  if (const std::optional<FieldProblem> problem = model_problem(model)) {
    throw InputError(arguments.where(), run.test_case + ": found " + problem->field + " " + problem->found + ", wanted " + problem->wanted);
  }
  return model;
}

}  // namespace stepsim
