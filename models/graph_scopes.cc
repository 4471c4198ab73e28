#include "models/graph_scopes.h"

#include <string_view>

namespace stepsim {

// An op of the MLP or the experts, with the way of tokens to them. The router's are "moe,router".
static bool of_mlp(const TemplateOp& op) {
  const std::string_view module = op.module, first = module.substr(0, module.find(','));
  return first == "mlp" || first == "shared_experts" || (first == "moe" && module != "moe,router");
}

const GraphScopes::Bounds& GraphScopes::bounds_of(const LayerTemplate& source) {
  const auto [place, is_new] = bounds_.try_emplace(&source);
  if (!is_new) return place->second;
  Bounds& bounds = place->second;
  while (bounds.forward_end < static_cast<std::int32_t>(source.forward.size()) &&
         !of_mlp(source.forward[static_cast<std::size_t>(bounds.forward_end)])) {
    ++bounds.forward_end;
  }
  for (std::size_t op = 0; op < source.backward.size(); ++op) {
    if (of_mlp(source.backward[op])) bounds.backward_begin = static_cast<std::int32_t>(op) + 1;
  }
  return bounds;
}

std::int32_t GraphScopes::of(const LayerTemplate& source, std::int32_t layer, std::int32_t index, Phase phase, std::int32_t number) {
  if (!on_ || layer < 0) return -1;
  const Bounds& bounds = bounds_of(source);
  if (phase == Phase::kBackward ? index < bounds.backward_begin : index >= bounds.forward_end) return -1;
  if (number != next_ || layer != layer_ || phase != phase_) ++graph_;
  next_ = number + 1;
  layer_ = layer;
  phase_ = phase;
  return graph_;
}

}  // namespace stepsim
