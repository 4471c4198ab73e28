#include "models/model_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "tests/unit/error_of.h"

namespace stepsim {
namespace {

using testing::Contains;
using testing::EndsWith;
using testing::HasSubstr;

std::string error_of_text(const std::string& text) {
  return error_of([&] { parse_model(text, "m.textproto"); });
}

// A file in the test's folder, removed at the end.
class TemporaryFile {
 public:
  TemporaryFile(const std::string& name, const std::string& text) : path_(testing::TempDir() + name) { std::ofstream(path_) << text; }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

constexpr const char* kSmall =
    "layers: 2\n"
    "hidden: 8\n"
    "heads: 4\n"
    "ffn_hidden: 32\n"
    "vocab: 100\n"
    "normalization: RMS_NORM\n"
    "activation: SWIGLU\n"
    "position: ROTARY\n";

std::string small_with(const std::string& line) { return std::string(kSmall) + line + "\n"; }

TEST(ModelSpec, HasTheNamesOfTheCommandLine) {
  for (const char* name :
       {"gpt2-124m",  "gpt3-175b",  "megatron-22b", "mt-nlg-530b", "megatron-1t", "mpt-125m",    "mpt-350m",   "mpt-760m",
        "mpt-1b",     "mpt-3b",     "mpt-7b",       "mpt-13b",     "mpt-30b",     "mpt-70b",     "palm-540b",  "llama2-7b",
        "llama2-13b", "llama2-70b", "llama3-8b",    "llama3-70b",  "llama3-405b", "llama3.2-1b", "llama3.2-3b"}) {
    EXPECT_THAT(model_names(), Contains(name));
    EXPECT_EQ(load_model(name).name, name);
    EXPECT_FALSE(load_model(name).source.empty());
  }
  const std::vector<std::string> names = model_names();
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
}

TEST(ModelSpec, AcceptsAliasesAndOrganisations) {
  for (const char* name : {"Llama-3-8B", "meta-llama/Meta-Llama-3-8B", "llama-3-8b", "LLAMA3_8B", "llama3.1-8b"}) {
    EXPECT_EQ(load_model(name).name, "llama3-8b") << name;
  }
  EXPECT_EQ(load_model("gpt-3").name, "gpt3-175b");
  EXPECT_EQ(load_model("turing-530b").name, "mt-nlg-530b");
  EXPECT_EQ(load_model("llama3.1-405b").name, "llama3-405b");
}

// 2104.04473 equation 2: P = 12lh^2 (1 + 13/12h + (V+s)/12lh) = l(12h^2 + 13h) + (V + s)h; it leaves out the last LayerNorm, 2h.
TEST(ModelSpec, CountsParametersOfEquation2) {
  const auto equation2 = [](const std::string& name) {
    const ParameterCount count = parameter_count(load_model(name), 2048);
    return count.total - count.final_norm;
  };
  EXPECT_EQ(equation2("megatron-22b"), 22'074'261'504);    // 48(12 x 6144^2 + 13 x 6144) + (51200 + 2048) 6144
  EXPECT_EQ(equation2("gpt3-175b"), 174'615'822'336);      // 96(12 x 12288^2 + 13 x 12288) + 53248 x 12288
  EXPECT_EQ(equation2("mt-nlg-530b"), 529'600'778'240);    // 105(12 x 20480^2 + 13 x 20480) + 53248 x 20480
  EXPECT_EQ(equation2("megatron-1t"), 1'008'038'707'200);  // 128(12 x 25600^2 + 13 x 25600) + 53248 x 25600
}

TEST(ModelSpec, CountsParametersOfLlama3) {
  const ParameterCount count = parameter_count(load_model("llama3-8b"), 8192);
  // q and o 2 x 4096 x 4096, k and v 2 x 4096 x 1024, gate, up and down 3 x 4096 x 14336, in 32 layers
  EXPECT_EQ(count.layer_matrices, 32LL * (33'554'432 + 8'388'608 + 176'160'768));
  EXPECT_EQ(count.layers, count.layer_matrices + 32 * 2 * 4096);
  EXPECT_EQ(count.active, count.total);  // no experts
  EXPECT_EQ(count.embedding, 128'256 * 4096);
  EXPECT_EQ(count.head, count.embedding);
  EXPECT_EQ(count.positions, 0);
  EXPECT_EQ(count.final_norm, 4096);
  EXPECT_EQ(count.total, 8'030'261'248);  // model card: 8.03B
  EXPECT_EQ(parameter_count(load_model("llama3-70b"), 8192).total, 70'553'706'496);
  EXPECT_EQ(parameter_count(load_model("llama3.2-1b"), 8192).total, 1'235'814'400);  // tied head
}

TEST(ModelSpec, CountsParametersOfPalm) {
  // q and o 2 x 18432 x 12288, one k and v head 2 x 18432 x 256, three matrices 18432 x 73728; one norm without bias: 540.35B (2204.02311)
  const ParameterCount count = parameter_count(load_model("palm-540b"), 2048);
  EXPECT_EQ(count.layer_matrices, 118 * (452'984'832 + 9'437'184 + 4'076'863'488));
  EXPECT_EQ(count.layers, count.layer_matrices + 118 * 18'432);
  EXPECT_EQ(count.total, count.layers + 256'000LL * 18'432 + 18'432);
  EXPECT_NEAR(static_cast<double>(count.total), 540.35e9, 0.01e9);
}

TEST(ModelSpec, LearnedPositionsFollowTheSequenceOfMpt) {
  const ModelSpec mpt = load_model("mpt-13b");
  // Vh + Sh + L(12h^2 + 13h) + 2h with V 50368, h 5120, L 40: the first row of llm-foundry's table
  EXPECT_EQ(parameter_count(mpt, 2048).total, 12'853'954'560);
  EXPECT_EQ(parameter_count(mpt, 4096).total, 12'853'954'560 + 2048 * 5120);
  EXPECT_EQ(parameter_count(load_model("gpt2-124m"), 512).total, 124'439'808);  // 1024 positions whatever the run: GPT-2's 124M
}

TEST(ModelSpec, CountsBiasesAndHeadNorms) {
  ModelSpec spec = parse_model(small_with("kv_heads: 2 qk_norm: true"), "m");
  // q 8x8, k and v 2 x 8x4, o 8x8, gate, up and down 3 x 8x32; norms 2 x 8; head norms 2 x 2
  EXPECT_EQ(layer_parameters(spec, {}).all, 64 + 64 + 64 + 768 + 16 + 4);
  spec.qkv_bias = true;  // 8 + 4 + 4
  EXPECT_EQ(layer_parameters(spec, {}).all, 980 + 16);
  spec.linear_bias = true;  // and gate 32, up 32, down 8, o 8
  EXPECT_EQ(layer_parameters(spec, {}).all, 980 + 16 + 80);
}

TEST(ModelSpec, ReadsTextAndJson) {
  const ModelSpec text = parse_model(kSmall, "m.textproto");
  EXPECT_EQ(text.name, "m.textproto");
  EXPECT_EQ(text.kv_heads, 4);
  EXPECT_EQ(text.head_dim, 2);
  EXPECT_FALSE(text.norm_bias);
  EXPECT_FALSE(text.tied_head);
  const ModelSpec json = parse_model(
      R"({"layers": 2, "hidden": 8, "heads": 4, "ffn_hidden": 32, "vocab": 100, "normalization": "LAYER_NORM", "activation": "GELU",
          "position": "LEARNED", "max_positions": 16, "dropout": 0.1, "linear_bias": true})",
      "m.json");
  EXPECT_TRUE(json.norm_bias);
  EXPECT_TRUE(json.qkv_bias);
  EXPECT_EQ(json.max_positions, 16);
  EXPECT_EQ(json.dropout, 0.1);
}

// What Windows editors put in front of a text.
TEST(ModelSpec, ReadsFilesWithAByteOrderMark) {
  const std::string config = R"({"model_type": "llama", "hidden_size": 8, "intermediate_size": 32, "num_attention_heads": 4,
      "num_hidden_layers": 2, "vocab_size": 100, "architectures": ["LlamaForCausalLM"]})";
  const TemporaryFile json("bom.json", "\xEF\xBB\xBF" + config), text("bom.textproto", "\xEF\xBB\xBF" + std::string(kSmall));
  EXPECT_EQ(load_model(json.path()).hidden, 8);
  EXPECT_EQ(load_model(text.path()).hidden, 8);
  const TemporaryFile broken("bom2.json", "\xEF\xBB\xBF{\"model_type\": \"lama\"}");
  EXPECT_THAT(error_of([&] { load_model(broken.path()); }), HasSubstr("bom2.json:1:2: found model_type \"lama\""));
}

TEST(ModelSpec, RefusesHeadsThatKeyValueHeadsDoNotDivide) {
  const TemporaryFile file("heads.textproto", small_with("kv_heads: 3"));
  EXPECT_EQ(error_of([&] { load_model(file.path()); }), file.path() + ":9:1: found kv_heads 3, wanted a divisor of the 4 heads");
}

TEST(ModelSpec, ReadsFilesOfBothKinds) {
  const TemporaryFile text("small.textproto", kSmall);
  EXPECT_EQ(load_model(text.path()).hidden, 8);
  const TemporaryFile ours("small.json", R"({"layers": 2, "hidden": 8, "heads": 4, "ffn_hidden": 32, "vocab": 100,
      "normalization": "RMS_NORM", "activation": "SWIGLU", "position": "ROTARY"})");
  EXPECT_EQ(load_model(ours.path()).hidden, 8);
  const TemporaryFile foreign("config.json", R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 4, "vocab_size": 100})");
  EXPECT_EQ(load_model(foreign.path()).ffn_hidden, 32);
}

TEST(ModelSpec, AFileComesBeforeTheCatalogNameInItsPath) {
  const TemporaryFile file("llama3-8b", kSmall);
  EXPECT_EQ(load_model(file.path()).hidden, 8);
}

TEST(ModelSpec, NamesTheNearestModel) {
  EXPECT_EQ(error_of([] { load_model("lama3-8b"); }),
            "--model: found \"lama3-8b\", wanted a name of the catalog, a .textproto or a config.json, did you mean \"llama3-8b\"?");
  EXPECT_THAT(error_of([] { load_model(""); }), HasSubstr("--model: found \"\", wanted a name"));
}

TEST(ModelSpec, NamesWhatForeignLayersHave) {
  for (const char* name : {"nemotron-h-8b", "nvidia/Nemotron-H-8B", "Jamba-v0.1", "Qwen/Qwen3-Next-80B-A3B", "llama4-scout",
                           "nemotron-h-56b", "nemotron_3_super", "nemotron-nano-v2", "nvidia/NVIDIA-Nemotron-Nano-9B-v2", "mamba2-2.7b",
                           "zamba2-7b", "falcon-h1-34b", "granite-4.0-h-small", "qwen3.6-35b-a3b"}) {
    EXPECT_THAT(error_of([&] { load_model(name); }), HasSubstr("wanted a model of attention and MLP layers")) << name;
  }
  EXPECT_EQ(error_of([] { load_model("jamba-v0.1"); }),
            "--model: found jamba-v0.1, which has state-space layers (Mamba), wanted a model of attention and MLP layers");
}

TEST(ModelSpec, LocatesMissingFilesAndFields) {
  EXPECT_THAT(error_of([] { load_model("/nowhere/model.textproto"); }), HasSubstr("/nowhere/model.textproto"));
  EXPECT_EQ(error_of_text("layers: 2\nhidden: 8\n"), "m.textproto:1:1: found no heads, wanted a model with it");
  EXPECT_THAT(error_of_text(small_with("hiden: 3")), HasSubstr("m.textproto:9:1"));
  EXPECT_THAT(error_of_text(small_with("hiden: 3")), HasSubstr("\"hidden\""));
}

TEST(ModelSpec, RefusesImpossibleValues) {
  const auto swap = [](const std::string& from, const std::string& to) {
    std::string text = kSmall;
    return text.replace(text.find(from), from.size(), to);
  };
  EXPECT_EQ(error_of_text(swap("layers: 2", "layers: 1000000000000")),
            "m.textproto:1:1: found layers 1000000000000, wanted a whole number from 1 to 100000");
  EXPECT_EQ(error_of_text(swap("layers: 2", "layers: 0")), "m.textproto:1:1: found layers 0, wanted a whole number from 1 to 100000");
  EXPECT_EQ(error_of_text(swap("hidden: 8", "hidden: -8")), "m.textproto:2:1: found hidden -8, wanted a whole number from 1 to 1048576");
  EXPECT_EQ(error_of_text(swap("heads: 4", "heads: 3")), "m.textproto:3:1: found heads 3, wanted a divisor of hidden 8, or head_dim");
  EXPECT_EQ(error_of_text(swap("heads: 4", "heads: 0")), "m.textproto:3:1: found heads 0, wanted a divisor of hidden 8, or head_dim");
  EXPECT_EQ(error_of_text(small_with("kv_heads: 3")), "m.textproto:9:1: found kv_heads 3, wanted a divisor of the 4 heads");
  EXPECT_EQ(error_of_text(small_with("head_dim: 1048576")), "m.textproto:9:1: found head_dim 1048576, wanted at most 262144 with 4 heads");
  EXPECT_THAT(error_of_text(small_with("dropout: 1.5")), EndsWith(":9:1: found dropout 1.500000, wanted a probability from 0 to below 1"));
  EXPECT_THAT(error_of_text(small_with("dropout: nan")), HasSubstr("wanted a probability"));
  EXPECT_THAT(error_of_text(small_with("norm_bias: true")), EndsWith("found norm_bias true, wanted false with RMSNorm"));
  EXPECT_THAT(error_of_text(small_with("linear_bias: true qkv_bias: false")), HasSubstr("found qkv_bias false, wanted true where"));
  EXPECT_THAT(error_of_text(swap("position: ROTARY", "position: LEARNED")),
              HasSubstr("found max_positions 0, wanted a whole number from 1"));
  // 100,000 layers of 4 x 2^40 + 3 x 2^44 parameters: no overflow, but no model
  EXPECT_THAT(error_of_text("layers: 100000 hidden: 1048576 heads: 1024 ffn_hidden: 16777216 vocab: 16777216 normalization: RMS_NORM "
                            "activation: SWIGLU position: ROTARY"),
              HasSubstr("wanted at most 1000000000000000 parameters"));
}

// Published totals, and what a token passes.
TEST(ModelSpec, CountsExpertsAndLatentAttention) {
  const ParameterCount deepseek = parameter_count(load_model("deepseek-v3"), 4096);
  EXPECT_EQ(deepseek.total, 671'026'404'352);  // ../shared/data/papers/flops_conventions.json
  EXPECT_EQ(deepseek.active, 37'552'282'624);
  EXPECT_EQ(deepseek.multi_token, 0);
  const ParameterCount mixtral = parameter_count(load_model("mixtral-8x7b"), 4096);
  EXPECT_EQ(mixtral.total, 46'702'792'704);  // arXiv 2401.04088: 47B, 13B active
  EXPECT_EQ(mixtral.active, 12'879'925'248);
  EXPECT_EQ(parameter_count(load_model("mixtral-8x22b"), 4096).total, 140'630'071'296);
  EXPECT_EQ(parameter_count(load_model("qwen3-30b-a3b"), 4096).total, 30'532'122'624);
  EXPECT_EQ(parameter_count(load_model("qwen3-235b-a22b"), 4096).total, 235'093'634'560);
  EXPECT_EQ(parameter_count(load_model("gpt-oss-20b"), 4096).total, 20'914'757'184);
  EXPECT_EQ(parameter_count(load_model("gpt-oss-120b"), 4096).total, 116'829'156'672);
  EXPECT_EQ(parameter_count(load_model("deepseek-v2"), 4096).total, 235'741'434'880);
  EXPECT_EQ(parameter_count(load_model("deepseek-v2-lite"), 4096).total, 15'706'484'224);
  EXPECT_EQ(parameter_count(load_model("moonlight"), 4096).total, 15'960'108'544);
}

// Hugging Face's counts of the checkpoints.
TEST(ModelSpec, CountsGemma) {
  EXPECT_EQ(parameter_count(load_model("gemma-2b"), 4096).total, 2'506'172'416);
  EXPECT_EQ(parameter_count(load_model("gemma2-2b"), 4096).total, 2'614'341'888);
  EXPECT_EQ(parameter_count(load_model("gemma-2-9b"), 4096).total, 9'241'705'984);
  EXPECT_EQ(parameter_count(load_model("gemma2-27b"), 4096).total, 27'227'128'320);
  EXPECT_EQ(parameter_count(load_model("gemma3-1b"), 4096).total, 999'885'952);
  const std::vector<LayerKind> kinds = load_model("gemma3-1b").kinds();
  ASSERT_EQ(kinds.size(), 2u);
  EXPECT_EQ(kinds[0].window, 512);
  EXPECT_EQ(kinds[1].window, 0);
  EXPECT_EQ(load_model("gemma3-1b").kind(5).window, 0);  // the sixth of six
}

// DeepSeek-V3: 3 dense layers, then 58 with experts; one layer of multi-token prediction is a layer of experts, 2h x h and three norms.
TEST(ModelSpec, KindsFollowThePattern) {
  ModelSpec model = load_model("deepseek-v3");
  EXPECT_EQ(kind_counts(model), (std::vector<std::pair<LayerKind, std::int64_t>>{{{}, 3}, {{.experts = true}, 58}}));
  model.layers = 4;  // a truncated run keeps the beginning
  EXPECT_EQ(kind_counts(model), (std::vector<std::pair<LayerKind, std::int64_t>>{{{}, 3}, {{.experts = true}, 1}}));
  model.layers = 3;
  EXPECT_EQ(model.kinds().size(), 1u);
  model = load_model("deepseek-v3");
  model.multi_token_layers = 1;
  ASSERT_FALSE(model_problem(model).has_value());
  const ParameterCount count = parameter_count(model, 4096);
  EXPECT_EQ(count.multi_token, layer_parameters(model, {.experts = true}).all + 2LL * 7168 * 7168 + 3 * 7168);
  EXPECT_EQ(count.total, 671'026'404'352);  // in no total
}

// Of T5-base as Megatron-LM builds it: h 768, ffn 3072, biases everywhere. An encoder layer is GPT's, 12h^2 + 13h; a decoder layer has one
// more attention of 4h^2 + 4h and its norm of 2h.
TEST(ModelSpec, CountsEncoderDecoders) {
  const ModelSpec model = load_model("t5-base");
  const std::int64_t h = 768;
  EXPECT_EQ(layer_parameters(model, model.kind(0)).all, 12 * h * h + 13 * h);
  EXPECT_EQ(layer_parameters(model, model.kind(12)).all, 16 * h * h + 19 * h);
  EXPECT_EQ(model.kind(0).side, LayerSide::kEncoder);
  EXPECT_EQ(model.kind(12).side, LayerSide::kFirstDecoder);
  EXPECT_EQ(model.kind(13).side, LayerSide::kDecoder);
  EXPECT_EQ(model.kinds().size(), 3u);
  EXPECT_EQ(parameter_count(model, 512).final_norm, 2 * 2 * h);
}

// BERT's heads: a square with bias and a norm and the vocabulary's biases; a square with bias and a classifier of two.
TEST(ModelSpec, CountsTheHeadsOfBert) {
  const ModelSpec model = load_model("bert-large");
  const std::int64_t h = 1024;
  EXPECT_EQ(parameter_count(model, 512).head, (h * h + h + 2 * h + 30'522) + (h * h + h + 2 * h + 2));
  EXPECT_EQ(parameter_count(model, 512).embedding, (30'522 + 2) * h);
  EXPECT_FALSE(model.causal);
}

TEST(ModelSpec, ReadsExpertsAndPatterns) {
  const ModelSpec spec = parse_model(small_with("experts { experts: 4 top_k: 2 ffn_hidden: 16 layers: \"([0]*1+[1]*3)\" }\n"
                                                "attention_window: 32\nwindow_layers: \"2\""),
                                     "m");
  EXPECT_FALSE(spec.kind(0).experts);
  EXPECT_TRUE(spec.kind(1).experts);
  EXPECT_EQ(spec.kind(0).window, 32);  // every second, the first too
  EXPECT_EQ(spec.kind(1).window, 0);
  // router 4 x 8; experts of 3 x 8 x 16; two of four are active
  const LayerParameters layer = layer_parameters(spec, spec.kind(1));
  EXPECT_EQ(layer.router, 32);
  EXPECT_EQ(layer.experts, 4 * 384);
  EXPECT_EQ(layer.all - layer.active, 2 * 384);
  EXPECT_EQ(layer.matrices, 4 * 64 + 32 + 4 * 384);
}

TEST(ModelSpec, RefusesImpossibleExperts) {
  const auto experts = [](const std::string& fields) { return error_of_text(small_with("experts { " + fields + " }")); };
  EXPECT_THAT(experts("experts: 4 top_k: 5 ffn_hidden: 16"), EndsWith("found top_k 5, wanted a whole number from 1 to 4"));
  EXPECT_THAT(experts("experts: 4 top_k: 2"), HasSubstr("found no experts.ffn_hidden"));
  EXPECT_THAT(experts("experts: 4 top_k: 2 ffn_hidden: 16 groups: 3"),
              EndsWith("found expert_groups 3, wanted a divisor of the 4 experts"));
  EXPECT_THAT(experts("experts: 4 top_k: 2 ffn_hidden: 16 groups: 4 top_groups: 1"), EndsWith("wanted a whole number from 1 to 1"));
  EXPECT_THAT(experts("experts: 4 top_k: 2 ffn_hidden: 16 layers: \"[0,2]\""), HasSubstr("found \"[0,2]\", wanted a pattern of layers"));
  EXPECT_THAT(experts("experts: 4 top_k: 2 ffn_hidden: 16 shared_gate: true"), EndsWith("wanted false without shared experts"));
  EXPECT_THAT(experts("experts: 1000000 top_k: 2 ffn_hidden: 16"), EndsWith("wanted a whole number from 0 to 65536"));
  EXPECT_THAT(error_of_text(small_with("window_layers: \"[1,0]\"")), EndsWith("wanted none without attention_window"));
  EXPECT_THAT(error_of_text(small_with("encoder_layers: 2")), EndsWith("found encoder_layers 2, wanted a whole number from 0 to 1"));
  EXPECT_THAT(error_of_text(small_with("latent_attention { kv_rank: 4 nope_dim: 2 rope_dim: 2 value_dim: 2 } head_dim: 3")),
              EndsWith("found head_dim 3, wanted nope_dim with latent attention"));
  // 100,000 layers of 2^16 experts of 2^20 x 2^24: 3 x 2^60 parameters a layer, their sum is beyond 2^63
  EXPECT_THAT(error_of_text("layers: 100000 hidden: 1048576 heads: 1024 ffn_hidden: 16777216 vocab: 16777216 normalization: RMS_NORM "
                            "activation: SWIGLU position: ROTARY experts { experts: 65536 top_k: 1 ffn_hidden: 16777216 }"),
              HasSubstr("more than 8000000000000000000 parameters"));
}

}  // namespace
}  // namespace stepsim
