#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/model_spec.h"
#include "tests/unit/error_of.h"

namespace stepsim {
namespace {

using testing::HasSubstr;

ModelSpec read(const std::string& text) { return parse_huggingface_config(text, "config.json"); }

std::int64_t parameters(const std::string& text, std::int64_t sequence = 2048) { return parameter_count(read(text), sequence).total; }

std::string error_of(const std::string& text) {
  return stepsim::error_of([&] { read(text); });
}

constexpr const char* kLlama = R"({
  "architectures": ["LlamaForCausalLM"],
  "hidden_act": "silu",
  "hidden_size": 4096,
  "intermediate_size": 14336,
  "max_position_embeddings": 8192,
  "model_type": "llama",
  "num_attention_heads": 32,
  "num_hidden_layers": 32,
  "num_key_value_heads": 8,
  "rope_scaling": null,
  "tie_word_embeddings": false,
  "vocab_size": 128256
})";

// kLlama with one line replaced.
std::string llama_with(const std::string& from, const std::string& to) {
  std::string text = kLlama;
  return text.replace(text.find(from), from.size(), to);
}

// The published parameter counts of these models.
TEST(HuggingfaceConfig, ReadsLlama) {
  const ModelSpec spec = read(kLlama);
  EXPECT_EQ(parameter_count(spec, 8192).total, 8'030'261'248);
  EXPECT_EQ(spec.head_dim, 128);
  EXPECT_EQ(spec.position, Position::kRotary);
  EXPECT_EQ(spec.activation, Activation::kSwiGlu);
  EXPECT_EQ(spec.name, "config.json");
  EXPECT_EQ(read(llama_with("\"num_key_value_heads\": 8,", "")).kv_heads, 32);  // LlamaConfig: as many as heads
  EXPECT_EQ(read(llama_with("\"num_key_value_heads\": 8,", "\"num_key_value_heads\": null,")).kv_heads, 32);
}

TEST(HuggingfaceConfig, ReadsMistralInsideItsWindow) {
  const std::string text = R"({"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
      "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 32000, "sliding_window": 4096})";
  EXPECT_EQ(parameters(text), 7'241'732'096);  // Mistral-7B-v0.1
  EXPECT_EQ(read(text).attention_window, 4096);
  std::string open = text;
  open.replace(open.rfind("4096"), 4, "null");  // v0.3
  EXPECT_EQ(read(open).attention_window, 0);
}

TEST(HuggingfaceConfig, ReadsQwen2WithBiasesOnQkvOnly) {
  const std::string text = R"({"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
      "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064, "use_sliding_window": false, "sliding_window": 131072})";
  EXPECT_EQ(parameters(text), 7'615'616'512);  // Qwen2.5-7B
  EXPECT_TRUE(read(text).qkv_bias);
  EXPECT_FALSE(read(text).linear_bias);
  EXPECT_EQ(read(text).attention_window, 0);
}

TEST(HuggingfaceConfig, ReadsQwen3WithHeadNorms) {
  const std::string text = R"({"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
      "num_hidden_layers": 36, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936})";
  EXPECT_EQ(parameters(text), 8'190'735'360);  // Qwen3-8B
  EXPECT_TRUE(read(text).qk_norm);
}

TEST(HuggingfaceConfig, ReadsGpt2) {
  const std::string text =
      R"({"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257})";
  EXPECT_EQ(parameters(text), 124'439'808);
  EXPECT_EQ(parameters(text), parameter_count(load_model("gpt2-124m"), 2048).total);
  EXPECT_EQ(read(text).dropout, 0.1);
  EXPECT_EQ(read(text).max_positions, 1024);
}

TEST(HuggingfaceConfig, ReadsGptBigcodeWithOneKeyValueHead) {
  const std::string text = R"({"model_type": "gpt_bigcode", "n_embd": 2048, "n_head": 16, "n_layer": 24, "n_inner": 8192,
      "n_positions": 2048, "vocab_size": 49280, "activation_function": "gelu_pytorch_tanh"})";
  EXPECT_EQ(read(text).kv_heads, 1);
  EXPECT_EQ(parameters(text), 1'124'886'528);  // SantaCoder, bigcode/gpt_bigcode-santacoder
}

TEST(HuggingfaceConfig, ReadsOptWithTwoUnreadPositions) {
  const std::string text = R"({"model_type": "opt", "hidden_size": 768, "ffn_dim": 3072, "num_attention_heads": 12,
      "num_hidden_layers": 12, "max_position_embeddings": 2048, "vocab_size": 50272, "word_embed_proj_dim": 768})";
  EXPECT_EQ(parameters(text), 125'239'296);  // OPT-125m
  EXPECT_EQ(read(text).activation, Activation::kRelu);
}

TEST(HuggingfaceConfig, ReadsMptWithoutBiases) {
  const std::string text = R"({"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "expansion_ratio": 4,
      "max_seq_len": 2048, "vocab_size": 50432, "no_bias": true, "attn_config": {"alibi": true, "attn_impl": "torch"}})";
  EXPECT_EQ(parameters(text), 6'649'286'656);  // MPT-7B
  EXPECT_EQ(read(text).position, Position::kAlibi);
}

TEST(HuggingfaceConfig, ReadsFalconAsParallelBlock) {
  const std::string text = R"({"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32,
      "vocab_size": 65024, "bias": false, "multi_query": true, "parallel_attn": true, "new_decoder_architecture": false})";
  EXPECT_EQ(parameters(text), 6'921'720'704);  // Falcon-7B
  EXPECT_TRUE(read(text).parallel_block);
}

TEST(HuggingfaceConfig, ReadsPhi3) {
  const std::string text = R"({"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 32,
      "num_hidden_layers": 32, "num_key_value_heads": 32, "vocab_size": 32064, "sliding_window": 2047})";
  EXPECT_EQ(parameters(text), 3'821'079'552);  // Phi-3-mini-4k
  EXPECT_EQ(read(text).attention_window, 2047);
}

TEST(HuggingfaceConfig, ReadsGemmaWithWideHeads) {
  const std::string text = R"({"model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576, "num_attention_heads": 16,
      "num_hidden_layers": 28, "num_key_value_heads": 16, "head_dim": 256, "vocab_size": 256000, "hidden_act": "gelu"})";
  EXPECT_EQ(parameters(text), 8'537'680'896);  // Gemma-7B: heads x head_dim 4096 above hidden 3072, head tied
  EXPECT_EQ(read(text).activation, Activation::kGeGlu);
}

TEST(HuggingfaceConfig, ReadsStarcoder2Nemotron) {
  const std::string starcoder = R"({"model_type": "starcoder2", "hidden_size": 3072, "intermediate_size": 12288,
      "num_attention_heads": 24, "num_hidden_layers": 30, "num_key_value_heads": 2, "vocab_size": 49152, "use_bias": true})";
  EXPECT_EQ(parameters(starcoder), 3'030'371'328);  // StarCoder2-3B
  const ModelSpec nemotron = read(R"({"model_type": "nemotron", "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 32,
      "num_attention_heads": 48, "num_key_value_heads": 8, "vocab_size": 256000})");
  EXPECT_EQ(nemotron.activation, Activation::kSquaredRelu);
  EXPECT_EQ(nemotron.normalization, Normalization::kLayerNorm);
}

TEST(HuggingfaceConfig, ReadsGptNeoxOnlyWithSequentialBlocks) {
  const std::string text = R"({"model_type": "gpt_neox", "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
      "num_hidden_layers": 12, "vocab_size": 50304, "use_parallel_residual": false, "hidden_act": "gelu"})";
  // 2 x 50304 x 768 + 12(12 x 768^2 + 13 x 768) + 2 x 768
  EXPECT_EQ(parameters(text), 77'266'944 + 85'054'464 + 1'536);
  EXPECT_THAT(error_of(R"({"model_type": "gpt_neox", "use_parallel_residual": true})"), HasSubstr("two norms are not built yet"));
  EXPECT_THAT(error_of(R"({"model_type": "gpt_neox"})"), HasSubstr("two norms are not built yet"));  // true is the default
}

TEST(HuggingfaceConfig, NamesTheFileFromTheConfig) {
  EXPECT_EQ(read(llama_with("\"rope_scaling\": null", "\"_name_or_path\": \"meta-llama/Meta-Llama-3-8B\"")).name,
            "meta-llama/Meta-Llama-3-8B");
}

TEST(HuggingfaceConfig, LocatesSyntaxErrors) {
  EXPECT_EQ(error_of(""), "config.json:1:1: found an empty file, wanted a Hugging Face config.json");
  EXPECT_EQ(error_of("{\n  \"a\": 1,\n}"), "config.json:3:1: found \"}\", wanted string literal");
  EXPECT_EQ(error_of("{\"a\": 1} x"), "config.json:1:10: found \"x\", wanted end of input");
  EXPECT_EQ(error_of("[1, 2]"), "config.json:1:1: found array, wanted an object");
  const std::string cut = std::string(kLlama).substr(0, 60);
  EXPECT_THAT(error_of(cut), HasSubstr("config.json:3:"));
  EXPECT_THAT(error_of(cut), HasSubstr("found the end of the file, wanted"));
}

TEST(HuggingfaceConfig, RefusesOtherEncodings) {
  EXPECT_THAT(error_of(std::string("\xff\xfe{\0\"\0", 6)), HasSubstr("config.json:1:1: found \"?\", wanted"));  // UTF-16
  EXPECT_THAT(error_of("{\"model_type\": \"lla\xe9ma\"}"), HasSubstr("wanted valid JSON in UTF-8"));            // Latin-1
}

TEST(HuggingfaceConfig, RefusesKeysThatComeTwice) {
  EXPECT_EQ(error_of(llama_with("\"rope_scaling\": null", "\"hidden_size\": 8192")),
            "config.json:11:3: found hidden_size a second time, wanted each key once");
  EXPECT_EQ(error_of(R"({"a": {"b": [{"c": 1, "c": 2}]}})"), "config.json:1:23: found c a second time, wanted each key once");
  EXPECT_EQ(error_of(R"({"a": [{"c": 1}, {"c": 2}], "c": {"a": 1}})"), "config.json:1:1: found no model_type, wanted a text");
}

TEST(HuggingfaceConfig, RefusesDeepNesting) {
  EXPECT_THAT(error_of(std::string(100'000, '[')), HasSubstr("found more than 64 nested lists"));
}

TEST(HuggingfaceConfig, LocatesMissingKeysAtTheObject) {
  EXPECT_EQ(error_of(" {\"model_type\": \"llama\"}"), "config.json:1:2: found no num_hidden_layers, wanted a whole number");
  EXPECT_EQ(error_of("{}"), "config.json:1:1: found no model_type, wanted a text");
}

TEST(HuggingfaceConfig, LocatesWrongTypesAtTheKey) {
  EXPECT_EQ(error_of(llama_with("\"hidden_size\": 4096", "\"hidden_size\": \"4096\"")),
            "config.json:4:3: found hidden_size \"4096\", wanted a whole number");
  EXPECT_EQ(error_of(llama_with("\"hidden_size\": 4096", "\"hidden_size\": 4096.0")),
            "config.json:4:3: found hidden_size 4096.0, wanted a whole number");
  EXPECT_EQ(error_of(llama_with("\"hidden_size\": 4096", "\"hidden_size\": 18446744073709551615")),
            "config.json:4:3: found hidden_size 18446744073709551615, wanted a whole number");
  EXPECT_THAT(error_of(llama_with("\"hidden_size\": 4096", "\"hidden_size\": 1e999")), HasSubstr("config.json:4:"));
  EXPECT_EQ(error_of(llama_with("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": 0")),
            "config.json:12:3: found tie_word_embeddings 0, wanted true or false");
  EXPECT_EQ(error_of(llama_with("\"silu\"", "7")), "config.json:3:3: found hidden_act 7, wanted a text");
  EXPECT_EQ(error_of(R"({"model_type": "phi3", "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "vocab_size": 9,
 "intermediate_size": 8, "resid_pdrop": "x"})"),
            "config.json:2:26: found resid_pdrop \"x\", wanted a number");
  EXPECT_THAT(error_of(llama_with("\"rope_scaling\": null", "\"layer_types\": 3")), HasSubstr("wanted a list of texts"));
  EXPECT_THAT(error_of(llama_with("\"rope_scaling\": null", "\"layer_types\": [3]")), HasSubstr("wanted a list of texts"));
}

TEST(HuggingfaceConfig, LocatesImpossibleValuesAtTheKey) {
  EXPECT_EQ(error_of(llama_with("\"num_hidden_layers\": 32", "\"num_hidden_layers\": 1000000000000")),
            "config.json:9:3: found num_hidden_layers 1000000000000, wanted a whole number from 1 to 100000");
  EXPECT_EQ(error_of(llama_with("\"num_hidden_layers\": 32", "\"num_hidden_layers\": 0")),
            "config.json:9:3: found num_hidden_layers 0, wanted a whole number from 1 to 100000");
  EXPECT_EQ(error_of(llama_with("\"vocab_size\": 128256", "\"vocab_size\": -1")),
            "config.json:13:3: found vocab_size -1, wanted a whole number from 1 to 16777216");
  EXPECT_EQ(error_of(llama_with("\"num_key_value_heads\": 8", "\"num_key_value_heads\": 5")),
            "config.json:10:3: found num_key_value_heads 5, wanted a divisor of the 32 heads");
  EXPECT_EQ(error_of(llama_with("\"hidden_size\": 4096", "\"hidden_size\": 4097")),
            "config.json:8:3: found num_attention_heads 32, wanted a divisor of hidden_size 4097");
  EXPECT_EQ(error_of(llama_with("\"hidden_size\": 4096", "\"hidden_size\": 4611686018427387904")),
            "config.json:4:3: found hidden_size 4611686018427387904, wanted a whole number from 1 to 1048576");
  EXPECT_THAT(error_of(R"({"model_type": "mpt", "d_model": 8, "n_heads": 2, "n_layers": 1, "vocab_size": 9, "expansion_ratio": 1000})"),
              HasSubstr("found expansion_ratio 1000, wanted a whole number from 1 to 64"));
  EXPECT_THAT(error_of(R"({"model_type": "mistral", "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "vocab_size": 9,
      "intermediate_size": 8, "sliding_window": 0})"),
              HasSubstr("found sliding_window 0, wanted"));
}

TEST(HuggingfaceConfig, RefusesOtherActivations) {
  EXPECT_EQ(error_of(llama_with("\"silu\"", "\"tanh\"")),
            "config.json:3:3: found hidden_act \"tanh\", wanted silu or a gelu: others with a gate are not built yet");
  EXPECT_THAT(error_of(R"({"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1, "vocab_size": 9, "activation_function": "silu"})"),
              HasSubstr("without a gate are not built yet"));
}

TEST(HuggingfaceConfig, NamesTheNearestType) {
  EXPECT_EQ(error_of("{\"model_type\": \"lama\"}"),
            "config.json:1:2: found model_type \"lama\", wanted one of llama, mistral, qwen2, qwen3, phi3, gemma, granite, starcoder2, "
            "nemotron, gpt_neox, gpt2, gpt_bigcode, opt, mpt, falcon, did you mean \"llama\"?");
  EXPECT_THAT(error_of("{\"model_type\": \"x\\ny\"}"), HasSubstr("found model_type \"x?y\""));
}

TEST(HuggingfaceConfig, SaysWhatIsNotBuiltYet) {
  EXPECT_THAT(error_of(R"({"model_type": "mixtral"})"), HasSubstr("not built yet: mixture of experts"));
  EXPECT_THAT(error_of(R"({"model_type": "deepseek_v3"})"), HasSubstr("not built yet: mixture of experts and MLA"));
  EXPECT_THAT(error_of(R"({"model_type": "jamba"})"), HasSubstr("not built yet: hybrid layers"));
  EXPECT_THAT(error_of(R"({"model_type": "t5"})"), HasSubstr("not built yet: encoder-decoder"));
  EXPECT_THAT(error_of(R"({"model_type": "llama", "num_local_experts": 8})"), HasSubstr("mixture of experts"));
  EXPECT_THAT(error_of(R"({"model_type": "llama", "kv_lora_rank": 512})"), HasSubstr("MLA"));
  EXPECT_THAT(error_of(R"({"model_type": "llama", "is_encoder_decoder": true})"), HasSubstr("encoder-decoder"));
  EXPECT_THAT(error_of(R"({"model_type": "llama", "text_config": {}})"), HasSubstr("several modalities"));
  EXPECT_THAT(error_of(R"({"model_type": "llama", "layer_types": ["linear_attention"]})"), HasSubstr("hybrid layers"));
  EXPECT_THAT(error_of(llama_with("\"rope_scaling\": null", "\"attention_bias\": true")), HasSubstr("the same as mlp_bias"));
  EXPECT_THAT(error_of(R"({"model_type": "opt", "do_layer_norm_before": false})"), HasSubstr("norms behind the blocks"));
  EXPECT_THAT(error_of(R"({"model_type": "opt", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 9,
      "word_embed_proj_dim": 4})"),
              HasSubstr("projected embeddings"));
  EXPECT_THAT(error_of(R"({"model_type": "falcon", "new_decoder_architecture": true})"), HasSubstr("two norms"));
  EXPECT_THAT(error_of(R"({"model_type": "mpt", "d_model": 8, "n_heads": 2, "n_layers": 1, "vocab_size": 9,
      "attn_config": {"qk_ln": true}})"),
              HasSubstr("config.json:2:23: found attn_config.qk_ln true"));
}

TEST(HuggingfaceConfig, SlidingLayersLimitTheSequence) {
  EXPECT_EQ(read(llama_with("\"rope_scaling\": null", R"("layer_types": ["full_attention", "sliding_attention"], "sliding_window": 512)"))
                .attention_window,
            512);
  EXPECT_THAT(error_of(llama_with("\"rope_scaling\": null", R"("layer_types": ["sliding_attention"])")), HasSubstr("no sliding_window"));
}

}  // namespace
}  // namespace stepsim
