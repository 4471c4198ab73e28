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
  // q and o 2 x 4096 x 4096, k and v 2 x 4096 x 1024, gate, up and down 3 x 4096 x 14336
  EXPECT_EQ(count.layer_matrices, 33'554'432 + 8'388'608 + 176'160'768);
  EXPECT_EQ(count.layer, count.layer_matrices + 2 * 4096);
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
  EXPECT_EQ(count.layer_matrices, 452'984'832 + 9'437'184 + 4'076'863'488);
  EXPECT_EQ(count.layer, count.layer_matrices + 18'432);
  EXPECT_EQ(count.total, 118 * count.layer + 256'000LL * 18'432 + 18'432);
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
  EXPECT_EQ(parameter_count(spec, 1).layer, 64 + 64 + 64 + 768 + 16 + 4);
  spec.qkv_bias = true;  // 8 + 4 + 4
  EXPECT_EQ(parameter_count(spec, 1).layer, 980 + 16);
  spec.linear_bias = true;  // and gate 32, up 32, down 8, o 8
  EXPECT_EQ(parameter_count(spec, 1).layer, 980 + 16 + 80);
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

TEST(ModelSpec, SaysWhatIsNotBuiltYet) {
  for (const char* name : {"mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "Qwen/Qwen3-30B-A3B"}) {
    EXPECT_THAT(error_of([&] { load_model(name); }), HasSubstr("not built yet: mixture of experts")) << name;
  }
  EXPECT_THAT(error_of([] { load_model("deepseek-v3"); }), HasSubstr("MLA"));
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

}  // namespace
}  // namespace stepsim
