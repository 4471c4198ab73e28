// Models with experts and latents for tests of templates, from the catalog and by hand.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "tests/unit/models/template_case.h"

namespace stepsim {

inline TemplateCase catalog_case(const std::string& model, std::int64_t sequence = 4096) {
  TemplateCase each;
  each.model = load_model(model);
  each.framework = load_framework("megatron-core@2025");
  each.training.sequence = sequence;
  return each;
}

inline LayerTemplate layer_of_kind(const TemplateCase& each, const LayerKind& kind) { return transformer_layer(each.context(), kind); }
inline LayerTemplate experts_layer(const TemplateCase& each) {
  for (const LayerKind& kind : each.model.kinds()) {
    if (kind.experts) return layer_of_kind(each, kind);
  }
  return {};
}

// 8 tokens, hidden 16, two heads of 8, 4 experts of 32 of which a token goes to 2; SwiGLU, RMSNorm, rotary, bf16, flash.
inline TemplateCase small_mixture() {
  TemplateCase each = llama_case(2, 16, 2, 64);
  each.model.kv_heads = 2;
  each.model.head_dim = 8;
  each.model.vocab = 64;
  each.model.experts = {.experts = 4, .top_k = 2, .ffn_hidden = 32};
  each.training.sequence = 8;
  return each;
}

inline std::int64_t bytes_of(const LayerTemplate& layer, const std::string& slot) {
  const SlotIndex index = slot_named(layer, slot);
  return index == kNoSlot ? -1 : slot_at(layer, index).size.value;
}

inline bool is_saved(const LayerTemplate& layer, const std::string& slot) {
  const std::vector<SlotIndex> saved = saved_slots(layer);
  return std::find(saved.begin(), saved.end(), slot_named(layer, slot)) != saved.end();
}

// "name kind message ranks stride" of the collectives of a group.
inline std::vector<std::string> collectives(const std::vector<TemplateOp>& ops, Group group) {
  constexpr const char* kKinds[] = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send", "dispatch", "combine"};
  std::vector<std::string> lines;
  for (const TemplateOp& op : ops) {
    const auto* const work = std::get_if<Collective>(&op.work);
    if (work == nullptr || op.group != group) continue;
    lines.push_back(op.name + ": " + kKinds[static_cast<int>(work->kind)] + " " + std::to_string(work->message.value) + " B, " +
                    std::to_string(work->ranks) + " ranks, stride " + std::to_string(work->stride));
  }
  return lines;
}

}  // namespace stepsim
