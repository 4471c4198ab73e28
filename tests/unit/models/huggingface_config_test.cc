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

TEST(HuggingfaceConfig, ReadsGptNeoxInBothOrders) {
  const std::string text = R"({"model_type": "gpt_neox", "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
      "num_hidden_layers": 12, "vocab_size": 50304, "use_parallel_residual": false, "hidden_act": "gelu"})";
  // 2 x 50304 x 768 + 12(12 x 768^2 + 13 x 768) + 2 x 768
  EXPECT_EQ(parameters(text), 77'266'944 + 85'054'464 + 1'536);
  EXPECT_FALSE(read(text).parallel_block);
  std::string parallel = text;
  parallel.replace(parallel.find("false"), 5, "true");
  EXPECT_EQ(parameters(parallel), parameters(text));  // a norm for each branch
  EXPECT_TRUE(read(parallel).parallel_norms);
  EXPECT_EQ(parameters(R"({"model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576, "num_attention_heads": 64,
      "num_hidden_layers": 44, "vocab_size": 50432, "hidden_act": "gelu_fast", "rotary_pct": 0.25})"),
            20'554'567'680);  // GPT-NeoX-20B
}

TEST(HuggingfaceConfig, ReadsMixtral) {
  const std::string text = R"({"architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
      "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
      "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
      "num_local_experts": 8, "output_router_logits": false, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
      "router_aux_loss_coef": 0.02, "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
      "transformers_version": "4.36.0.dev0", "use_cache": true, "vocab_size": 32000})";
  ModelSpec spec = read(text), known = load_model("mixtral-8x7b");
  EXPECT_EQ(parameters(text), 46'702'792'704);
  EXPECT_EQ(spec.experts, known.experts);
  EXPECT_EQ(spec.attention_window, 0);
}

TEST(HuggingfaceConfig, ReadsDeepseekV3) {
  const std::string text = R"({"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "aux_loss_alpha": 0.001, "bos_token_id": 0, "eos_token_id": 1,
      "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168, "initializer_range": 0.02,
      "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v3",
      "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1,
      "norm_topk_prob": true, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
      "num_nextn_predict_layers": 1, "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
      "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
      "rms_norm_eps": 1e-06, "rope_scaling": {"beta_fast": 32, "factor": 40, "type": "yarn"}, "rope_theta": 10000,
      "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": true, "tie_word_embeddings": false, "topk_group": 4,
      "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "transformers_version": "4.33.1", "use_cache": true, "v_head_dim": 128,
      "vocab_size": 129280})";
  const ModelSpec spec = read(text), known = load_model("deepseek-v3");
  EXPECT_EQ(parameters(text), 671'026'404'352);
  EXPECT_EQ(spec.experts, known.experts);
  EXPECT_EQ(spec.latent, known.latent);
  EXPECT_EQ(kind_counts(spec), kind_counts(known));
  std::string changed = text;
  changed.replace(changed.find("\"seq_aux\""), 9, "\"index_topk\": 2048, \"seq_aux\"");
  EXPECT_THAT(error_of(changed), HasSubstr("found index_topk 2048, wanted a key that is known of model_type deepseek_v3"));
  changed = text;
  changed.replace(changed.find("noaux_tc"), 8, "greedy");
  EXPECT_THAT(error_of(changed), HasSubstr("found topk_method \"greedy\", wanted noaux_tc"));
}

TEST(HuggingfaceConfig, ReadsDeepseekV2Lite) {
  const std::string text = R"({"model_type": "deepseek_v2", "first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 10944,
      "kv_lora_rank": 512, "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2,
      "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16, "q_lora_rank": null,
      "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "scoring_func": "softmax", "topk_group": 1, "topk_method": "greedy",
      "v_head_dim": 128, "vocab_size": 102400})";
  EXPECT_EQ(parameters(text), 15'706'484'224);
  EXPECT_EQ(read(text).latent.q_rank, 0);
}

TEST(HuggingfaceConfig, ReadsQwenMoe) {
  const std::string qwen3 = R"({"model_type": "qwen3_moe", "attention_bias": false, "decoder_sparse_step": 1, "head_dim": 128,
      "hidden_size": 2048, "intermediate_size": 6144, "max_window_layers": 48, "mlp_only_layers": [], "moe_intermediate_size": 768,
      "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
      "num_key_value_heads": 4, "sliding_window": null, "use_sliding_window": false, "vocab_size": 151936})";
  EXPECT_EQ(parameters(qwen3), 30'532'122'624);
  const std::string qwen2 = R"({"model_type": "qwen2_moe", "decoder_sparse_step": 1, "hidden_size": 2048, "intermediate_size": 5632,
      "max_window_layers": 21, "moe_intermediate_size": 1408, "num_attention_heads": 16, "num_experts": 60, "num_experts_per_tok": 4,
      "num_hidden_layers": 24, "num_key_value_heads": 16, "shared_expert_intermediate_size": 5632, "sliding_window": 32768,
      "use_sliding_window": false, "vocab_size": 151936})";
  EXPECT_EQ(parameters(qwen2), 14'315'784'192);  // Qwen1.5-MoE-A2.7B
  EXPECT_TRUE(read(qwen2).experts.shared_gate);
  std::string sparse = qwen3;
  sparse.replace(sparse.find("[]"), 2, "[1]");
  sparse.replace(sparse.find("\"decoder_sparse_step\": 1"), 24, "\"decoder_sparse_step\": 2");
  const ModelSpec spec = read(sparse);  // layers 3, 5, 7 ...
  EXPECT_FALSE(spec.kind(0).experts);
  EXPECT_FALSE(spec.kind(1).experts);
  EXPECT_TRUE(spec.kind(3).experts);
}

TEST(HuggingfaceConfig, ReadsGptOss) {
  const std::string text = R"({"model_type": "gpt_oss", "attention_bias": true, "experts_per_token": 4, "head_dim": 64,
      "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880, "num_attention_heads": 64,
      "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "sliding_window": 128,
      "swiglu_limit": 7.0, "tie_word_embeddings": false, "vocab_size": 201088})";
  EXPECT_EQ(parameters(text), 20'914'757'184);
  EXPECT_EQ(kind_counts(read(text)), kind_counts(load_model("gpt-oss-20b")));
}

TEST(HuggingfaceConfig, ReadsGemma2And3) {
  const std::string second = R"({"model_type": "gemma2", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "head_dim": 256,
      "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "intermediate_size": 9216,
      "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "sliding_window": 4096,
      "vocab_size": 256000})";
  EXPECT_EQ(parameters(second), 2'614'341'888);
  EXPECT_EQ(kind_counts(read(second)), kind_counts(load_model("gemma2-2b")));
  const std::string third = R"({"model_type": "gemma3_text", "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
      "hidden_size": 1152, "intermediate_size": 6912, "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
      "rope_local_base_freq": 10000, "sliding_window": 512, "sliding_window_pattern": 6, "vocab_size": 262144})";
  EXPECT_EQ(parameters(third), 999'885'952);
  EXPECT_EQ(kind_counts(read(third)), kind_counts(load_model("gemma3-1b")));
}

// A key that nobody reads is no decoration: it is named.
TEST(HuggingfaceConfig, NamesKeysThatAreNotKnown) {
  EXPECT_EQ(error_of(llama_with("\"rope_scaling\": null", "\"attn_temperature\": {\"a\": 1}")),
            "config.json:11:3: found attn_temperature {\"a\":1}, wanted a key that is known of model_type llama: it may change the model");
  EXPECT_EQ(error_of(llama_with("\"rope_scaling\": null", "\"attn_temperature\": null")), "");
  EXPECT_THAT(error_of(llama_with("\"rope_scaling\": null", "\"sliding_window\": 4096")), HasSubstr("found sliding_window 4096"));
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
            "config.json:1:2: found model_type \"lama\", wanted one of llama, mistral, qwen2, qwen3, phi3, gemma, gemma2, gemma3_text, "
            "granite, starcoder2, nemotron, gpt_neox, gpt2, gpt_bigcode, opt, mpt, falcon, mixtral, qwen2_moe, qwen3_moe, gpt_oss, "
            "deepseek_v2, deepseek_v3, kimi_k2, did you mean \"llama\"?");
  EXPECT_THAT(error_of("{\"model_type\": \"x\\ny\"}"), HasSubstr("found model_type \"x?y\""));
}

TEST(HuggingfaceConfig, SaysWhatCannotBeExpressed) {
  EXPECT_EQ(error_of(R"({"model_type": "jamba"})"),
            "config.json:1:2: found model_type \"jamba\" (state-space layers (Mamba)), wanted a decoder that can be expressed");
  EXPECT_THAT(error_of(R"({"model_type": "nemotron_h"})"), HasSubstr("state-space layers (Mamba-2)"));
  for (const char* type :
       {"mamba", "mamba2", "falcon_mamba", "bamba", "zamba", "zamba2", "falcon_h1", "granitemoehybrid", "hymba", "plamo2"}) {
    EXPECT_THAT(error_of(std::string(R"({"model_type": ")") + type + "\"}"), HasSubstr("state-space layers")) << type;
  }
  EXPECT_THAT(error_of(R"({"model_type": "qwen3_5_moe"})"), HasSubstr("linear attention"));
  EXPECT_THAT(error_of(R"({"model_type": "qwen3_next"})"), HasSubstr("linear attention"));
  EXPECT_THAT(error_of(R"({"model_type": "t5"})"), HasSubstr("relative position biases"));
  EXPECT_THAT(error_of(R"({"model_type": "llama", "num_local_experts": 8})"), HasSubstr("found num_local_experts 8, wanted a dense model"));
  EXPECT_THAT(error_of(R"({"model_type": "llama", "kv_lora_rank": 512})"), HasSubstr("MLA"));
  EXPECT_THAT(error_of(R"({"model_type": "llama", "is_encoder_decoder": true})"), HasSubstr("found is_encoder_decoder true, wanted false"));
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

TEST(HuggingfaceConfig, SlidingLayersAreAPattern) {
  const ModelSpec spec = read(R"({"model_type": "llama", "hidden_size": 8, "intermediate_size": 32, "num_attention_heads": 4,
      "num_hidden_layers": 2, "vocab_size": 100, "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 512})");
  EXPECT_EQ(spec.kind(0).window, 0);
  EXPECT_EQ(spec.kind(1).window, 512);
  EXPECT_THAT(error_of(llama_with("\"rope_scaling\": null", R"("layer_types": ["full_attention"])")),
              HasSubstr("found 1 layer_types, wanted one for each of the 32 layers"));
  EXPECT_THAT(error_of(R"({"model_type": "llama", "hidden_size": 8, "intermediate_size": 32, "num_attention_heads": 4,
      "num_hidden_layers": 1, "vocab_size": 100, "layer_types": ["sliding_attention"]})"),
              HasSubstr("no sliding_window"));
}

}  // namespace
}  // namespace stepsim
