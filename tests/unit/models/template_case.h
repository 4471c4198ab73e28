// A model, recipe, layout and preset that own what a TemplateContext refers to, for tests of templates; and sums over a template.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "models/framework_preset.h"
#include "models/layer_template.h"
#include "models/model_spec.h"
#include "models/training_recipe.h"

namespace stepsim {

struct TemplateCase {
  ModelSpec model;
  TrainingRecipe training;
  ParallelLayout parallel;
  FrameworkPreset framework;
  TemplateContext context() const { return {model, training, parallel, framework}; }
  LayerTemplate layer() const { return transformer_layer(context()); }
  LayerTemplate embedding() const { return embedding_layer(context()); }
  LayerTemplate head() const { return head_layer(context()); }
};

// The accounting of arXiv 2205.05198: fp16, dropout, unfused attention, no statistics.
inline TemplateCase paper_case(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t micro_batch) {
  TemplateCase gpt;
  gpt.model.name = "gpt";
  gpt.model.layers = layers;
  gpt.model.hidden = hidden;
  gpt.model.heads = gpt.model.kv_heads = heads;
  gpt.model.head_dim = hidden / heads;
  gpt.model.ffn_hidden = 4 * hidden;
  gpt.model.vocab = 51200;
  gpt.model.max_positions = 2048;
  gpt.model.dropout = 0.1;
  gpt.training.sequence = 2048;
  gpt.training.micro_batch = gpt.training.global_batch = micro_batch;
  gpt.training.precision = Precision::kFp16;
  gpt.training.gradient_dtype = DType::kFp32;
  gpt.training.attention = AttentionKind::kUnfused;
  gpt.training.dropout = 0.1;
  gpt.framework.name = "paper";
  gpt.framework.saves_softmax_statistics = false;
  gpt.framework.fused_rotary = false;
  gpt.framework.backward_all_reduce_overlaps_weight_gradient = true;
  return gpt;
}

// Llama-3: bf16, flash attention, statistics saved, no dropout.
inline TemplateCase llama_case(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t ffn_hidden) {
  TemplateCase llama;
  llama.model.name = "llama";
  llama.model.layers = layers;
  llama.model.hidden = hidden;
  llama.model.heads = heads;
  llama.model.kv_heads = 8;
  llama.model.head_dim = 128;
  llama.model.ffn_hidden = ffn_hidden;
  llama.model.vocab = 128256;
  llama.model.normalization = Normalization::kRmsNorm;
  llama.model.activation = Activation::kSwiGlu;
  llama.model.position = Position::kRotary;
  llama.model.linear_bias = llama.model.qkv_bias = llama.model.norm_bias = llama.model.tied_head = false;
  llama.training.sequence = 8192;
  llama.framework.name = "core";
  llama.framework.saves_norm_statistics = true;
  llama.framework.backward_all_reduce_overlaps_weight_gradient = true;
  return llama;
}

inline TemplateCase gpt3_175b() { return paper_case(96, 12288, 96, 1); }
inline TemplateCase megatron_22b() { return paper_case(48, 6144, 64, 4); }
inline TemplateCase mt_nlg_530b() { return paper_case(105, 20480, 128, 1); }
inline TemplateCase megatron_1t() { return paper_case(128, 25600, 160, 1); }
inline TemplateCase llama3_8b() { return llama_case(32, 4096, 32, 14336); }
inline TemplateCase llama3_70b() { return llama_case(80, 8192, 64, 28672); }
inline TemplateCase llama3_405b() { return llama_case(126, 16384, 128, 53248); }

inline const Slot& slot_at(const LayerTemplate& layer, SlotIndex slot) { return layer.slots[static_cast<std::size_t>(slot)]; }

inline SlotIndex slot_named(const LayerTemplate& layer, const std::string& name) {
  const auto slot = std::find_if(layer.slots.begin(), layer.slots.end(), [&](const Slot& each) { return each.name == name; });
  return slot == layer.slots.end() ? kNoSlot : static_cast<SlotIndex>(slot - layer.slots.begin());
}

inline const TemplateOp* op_named(const std::vector<TemplateOp>& ops, const std::string& name) {
  const auto op = std::find_if(ops.begin(), ops.end(), [&](const TemplateOp& each) { return each.name == name; });
  return op == ops.end() ? nullptr : &*op;
}

inline std::vector<std::string> op_names(const std::vector<TemplateOp>& ops) {
  std::vector<std::string> names;
  for (const TemplateOp& op : ops) names.push_back(op.name);
  return names;
}

inline double flops_of(const std::vector<TemplateOp>& ops) {
  double sum = 0;
  for (const TemplateOp& op : ops) sum += arithmetic(op.work).value;
  return sum;
}

// What the saved slots hold if the policies on `modules` drop theirs.
inline std::int64_t bytes_without(const LayerTemplate& layer, const std::vector<std::string>& modules) {
  std::vector<std::string> dropped;
  for (const auto& [module, slots] : module_table(layer)) {
    if (std::find(modules.begin(), modules.end(), module) != modules.end()) dropped.insert(dropped.end(), slots.begin(), slots.end());
  }
  std::int64_t bytes = 0;
  for (const SlotIndex slot : saved_slots(layer)) {
    const bool kept = std::find(dropped.begin(), dropped.end(), slot_at(layer, slot).name) == dropped.end();
    if (kept) bytes += slot_at(layer, slot).size.value;
  }
  return bytes;
}

}  // namespace stepsim
