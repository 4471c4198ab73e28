// A Hugging Face config.json as a ModelSpec. Key names and the values of absent keys are those of the config classes of
// huggingface/transformers @008e5743 (src/transformers/models/<model_type>/configuration_<model_type>.py). Dimensions have no default here:
// a file without them is not a model.
#include <algorithm>

#include "models/huggingface_families.h"
#include "schema/nearest_name.h"
#include "sim/input_error.h"

namespace stepsim {

namespace {

// Known types whose layers cannot be expressed: what they have.
constexpr std::pair<std::string_view, std::string_view> kForeign[] = {{"dbrx", "one norm and clipped products"},
                                                                      {"phimoe", "LayerNorm with a head bias"},
                                                                      {"olmoe", "norms over all heads together"},
                                                                      {"olmo2", "norms over all heads together"},
                                                                      {"granitemoe", "experts whose gate is scaled"},
                                                                      {"llama4", "models of several modalities"},
                                                                      {"llama4_text", "chunked attention"},
                                                                      {"glm4_moe", "experts beside partial rotary attention"},
                                                                      {"deepseek", "experts beside ordinary attention"},
                                                                      {"deepseek_v32", "sparse attention with an indexer"},
                                                                      {"minicpm3", "MLA without experts"},
                                                                      {"mamba", "state-space layers (Mamba)"},
                                                                      {"mamba2", "state-space layers (Mamba-2)"},
                                                                      {"falcon_mamba", "state-space layers (Mamba)"},
                                                                      {"rwkv", "recurrent layers"},
                                                                      {"recurrent_gemma", "recurrent layers"},
                                                                      {"jamba", "state-space layers (Mamba)"},
                                                                      {"bamba", "state-space layers (Mamba-2)"},
                                                                      {"zamba", "state-space layers (Mamba)"},
                                                                      {"zamba2", "state-space layers (Mamba-2)"},
                                                                      {"nemotron_h", "state-space layers (Mamba-2)"},
                                                                      {"nemotron-nas", "layers that differ one by one"},
                                                                      {"falcon_h1", "state-space layers (Mamba-2)"},
                                                                      {"qwen3_next", "linear attention (gated delta net)"},
                                                                      {"qwen3_5", "linear attention (gated delta net)"},
                                                                      {"qwen3_5_moe", "linear attention (gated delta net)"},
                                                                      {"hymba", "state-space layers beside attention (Mamba)"},
                                                                      {"plamo2", "state-space layers (Mamba)"},
                                                                      {"kimi_linear", "linear attention"},
                                                                      {"minimax", "linear attention"},
                                                                      {"granitemoehybrid", "state-space layers (Mamba-2)"},
                                                                      {"lfm2", "convolution layers"},
                                                                      {"t5", "relative position biases"},
                                                                      {"mt5", "relative position biases"},
                                                                      {"bart", "an encoder-decoder with norms behind the blocks"},
                                                                      {"whisper", "an encoder of audio"},
                                                                      {"bert", "an encoder with norms behind the blocks"},
                                                                      {"roberta", "an encoder with norms behind the blocks"},
                                                                      {"gemma3", "models of several modalities"},
                                                                      {"gemma3n", "models of several modalities"},
                                                                      {"gpt_neo", "local attention"},
                                                                      {"gptj", "a head with biases"},
                                                                      {"phi", "a head with biases"},
                                                                      {"bloom", "a norm behind the embedding"}};

// Keys that change no size, no op and no FLOPs of training: text generation, token ids, constants of norms, rotary variants and scales,
// dropouts that Transformers reads for other types, losses of the router. num_nextn_predict_layers: Transformers builds no such layer.
constexpr std::string_view kHarmless[] = {"architectures",
                                          "auto_map",
                                          "transformers_version",
                                          "torch_dtype",
                                          "dtype",
                                          "use_cache",
                                          "model_type",
                                          "_name_or_path",
                                          "name_or_path",
                                          "_attn_implementation",
                                          "_attn_implementation_autoset",
                                          "attn_implementation",
                                          "_commit_hash",
                                          "use_bfloat16",
                                          "torchscript",
                                          "return_dict",
                                          "output_attentions",
                                          "output_hidden_states",
                                          "quantization_config",
                                          "quantization",
                                          "unsloth_version",
                                          "unsloth_fixed",
                                          "original_max_position_embeddings",
                                          "initial_context_length",
                                          "bos_token_id",
                                          "eos_token_id",
                                          "pad_token_id",
                                          "sep_token_id",
                                          "unk_token_id",
                                          "cls_token_id",
                                          "mask_token_id",
                                          "decoder_start_token_id",
                                          "bos_token",
                                          "eos_token",
                                          "pad_token",
                                          "tokenizer_class",
                                          "vocab_file",
                                          "task_specific_params",
                                          "finetuning_task",
                                          "id2label",
                                          "label2id",
                                          "num_labels",
                                          "problem_type",
                                          "prefix",
                                          "max_length",
                                          "min_length",
                                          "do_sample",
                                          "early_stopping",
                                          "num_beams",
                                          "num_beam_groups",
                                          "diversity_penalty",
                                          "temperature",
                                          "top_k",
                                          "top_p",
                                          "typical_p",
                                          "repetition_penalty",
                                          "length_penalty",
                                          "no_repeat_ngram_size",
                                          "encoder_no_repeat_ngram_size",
                                          "bad_words_ids",
                                          "num_return_sequences",
                                          "output_scores",
                                          "return_dict_in_generate",
                                          "forced_bos_token_id",
                                          "forced_eos_token_id",
                                          "remove_invalid_values",
                                          "exponential_decay_length_penalty",
                                          "suppress_tokens",
                                          "begin_suppress_tokens",
                                          "max_new_tokens",
                                          "cache_implementation",
                                          "keys_to_ignore_at_inference",
                                          "initializer_range",
                                          "init_std",
                                          "init_method_std",
                                          "initializer_factor",
                                          "init_config",
                                          "init_device",
                                          "init_fn",
                                          "rms_norm_eps",
                                          "norm_eps",
                                          "norm_epsilon",
                                          "layer_norm_eps",
                                          "layer_norm_epsilon",
                                          "epsilon",
                                          "rope_theta",
                                          "rope_scaling",
                                          "rope_parameters",
                                          "rope_local_base_freq",
                                          "rope_interleave",
                                          "rope_type",
                                          "rotary_pct",
                                          "rotary_emb_base",
                                          "rotary_base",
                                          "partial_rotary_factor",
                                          "rotary_dim",
                                          "max_position_embeddings",
                                          "seq_length",
                                          "n_ctx",
                                          "max_seq_len",
                                          "max_sequence_length",
                                          "model_max_length",
                                          "n_positions",
                                          "position_embedding_type",
                                          "pretraining_tp",
                                          "tensor_parallel",
                                          "tp_size",
                                          "attention_dropout",
                                          "attn_pdrop",
                                          "embd_pdrop",
                                          "embed_pdrop",
                                          "emb_pdrop",
                                          "resid_pdrop",
                                          "hidden_dropout",
                                          "embedding_dropout",
                                          "dropout",
                                          "activation_dropout",
                                          "layerdrop",
                                          "classifier_dropout",
                                          "summary_first_dropout",
                                          "summary_type",
                                          "summary_use_proj",
                                          "summary_activation",
                                          "summary_proj_to_labels",
                                          "attn_logit_softcapping",
                                          "final_logit_softcapping",
                                          "query_pre_attn_scalar",
                                          "logit_scale",
                                          "logits_scaling",
                                          "embedding_multiplier",
                                          "residual_multiplier",
                                          "attention_multiplier",
                                          "scale_attn_weights",
                                          "scale_attn_by_inverse_layer_idx",
                                          "reorder_and_upcast_attn",
                                          "attention_softmax_in_fp32",
                                          "scale_attention_softmax_in_fp32",
                                          "gradient_checkpointing",
                                          "router_aux_loss_coef",
                                          "router_z_loss_coef",
                                          "router_jitter_noise",
                                          "output_router_logits",
                                          "norm_topk_prob",
                                          "aux_loss_alpha",
                                          "seq_aux",
                                          "routed_scaling_factor",
                                          "ep_size",
                                          "moe_capacity_factor",
                                          "swiglu_limit",
                                          "swiglu_alpha",
                                          "num_nextn_predict_layers",
                                          "use_mrope",
                                          "is_decoder",
                                          "chunk_size_feed_forward",
                                          "pruned_heads",
                                          "tf_legacy_loss",
                                          "tie_encoder_decoder",
                                          "cross_attention_hidden_size",
                                          "verbose"};

// What only some types of model may have.
void refuse_experts(const ConfigFile& config) {
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"}) {
    if (config.given(key) && config.whole(key) > 1) config.refuse(key, "a dense model, which this model_type is");
  }
  for (const char* key : {"kv_lora_rank", "q_lora_rank"}) {
    if (config.given(key)) config.refuse(key, "ordinary attention, which this model_type has (MLA: deepseek_v2, deepseek_v3)");
  }
}

void refuse_features(const ConfigFile& config) {
  for (const char* key : {"is_encoder_decoder", "add_cross_attention"}) {
    if (config.flag(key, false)) config.refuse(key, "false: this model_type is a decoder");
  }
  for (const char* key : {"text_config", "vision_config"}) {
    if (config.is_object(key)) config.fail(key, key, "a text model, not one of several modalities");
  }
  for (const std::string& type : config.words("layer_types")) {
    if (type == "full_attention" || type == "sliding_attention") continue;
    config.fail("layer_types", "layer_types \"" + printable(type) + "\"",
                "full_attention or sliding_attention: hybrid layers are not built");
  }
}

void refuse_unread(const ConfigFile& config, const std::string& type) {
  const std::vector<std::string> keys = config.unread(kHarmless);
  if (!keys.empty()) config.refuse(keys.front(), "a key that is known of model_type " + type + ": it may change the model");
}

std::span<const HuggingfaceFamily> families_of(bool experts) { return experts ? expert_families() : dense_families(); }

}  // namespace

ModelSpec parse_huggingface_config(const std::string& text, const std::string& file) {
  const ConfigFile config(text, file);
  const std::string type = config.word("model_type");
  for (const auto& [known, has] : kForeign) {
    if (type == known)
      config.fail("model_type", "model_type \"" + type + "\" (" + std::string(has) + ")", "a decoder that can be expressed");
  }
  std::vector<std::string> names;
  for (const bool experts : {false, true}) {
    for (const HuggingfaceFamily& family : families_of(experts)) {
      names.emplace_back(family.model_type);
      if (family.model_type != type) continue;
      if (!experts) refuse_experts(config);
      refuse_features(config);
      ModelSpec spec = family.read(config);
      refuse_unread(config, type);
      return spec;
    }
  }
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  config.fail("model_type", "model_type \"" + printable(type) + "\"", "one of " + all + suggestion(printable(type), names));
}

}  // namespace stepsim
