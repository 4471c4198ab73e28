#include "models/dummy_gradients.h"

#include <set>
#include <string>
#include <utility>

namespace stepsim {

namespace {

// Routers and gates of shared experts are Megatron-LM's own.
bool is_engine_weight(const Slot& slot) {
  const bool router = slot.name.find("router") != std::string::npos || slot.name.find("sigmoid gate") != std::string::npos;
  return slot.kind == SlotKind::kWeightGradient && slot.shape.size() >= 2 && !router;
}

}  // namespace

Bytes kept_dummy_gradients(const StepMemoryContext& context, std::int32_t stage) {
  const FrameworkPreset& framework = context.request.framework;
  if (!framework.dummy_gradients || !framework.transformer_engine) return {};
  const StepTemplates& templates = context.templates;
  std::set<std::pair<std::int64_t, std::int64_t>> shapes;
  Bytes total;
  for (std::int32_t index = 0; index < context.stages.chunks; ++index) {
    const ModelChunk& chunk = context.stages.chunk(stage, index);
    for (std::int64_t layer = chunk.first_layer; layer < chunk.first_layer + chunk.layers; ++layer) {
      if (layer > chunk.first_layer && templates.kind_of.empty()) break;  // all are alike
      const std::size_t kind = templates.kind_of.empty() ? 0 : static_cast<std::size_t>(templates.kind_of[static_cast<std::size_t>(layer)]);
      for (const Slot& slot : templates.kinds[kind].slots) {
        if (!is_engine_weight(slot)) continue;
        const std::int64_t columns = slot.shape.back(), rows = slot.shape[slot.shape.size() - 2];
        if (shapes.emplace(rows, columns).second) total += size_of(rows * columns, DType::kBf16);
      }
    }
  }
  return total;
}

}  // namespace stepsim
