#include "models/weight_gradient_ops.h"

namespace stepsim {

namespace {

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

}  // namespace

std::vector<bool> weight_gradient_ops(const TemplateStamp& stamp) {
  const LayerTemplate& source = *stamp.source;
  std::vector<bool> needed(source.slots.size(), false);  // by root: read by an op that stays
  if (source.input_gradient != kNoSlot) needed[at(stamp.table.root[at(source.input_gradient)])] = true;
  for (std::size_t slot = 0; slot < source.slots.size(); ++slot) {
    if (source.slots[slot].kind == SlotKind::kSharedGradient) needed[slot] = true;
  }
  std::vector<bool> deferred(source.backward.size(), false);
  for (std::size_t i = source.backward.size(); i-- > 0;) {
    const TemplateOp& op = source.backward[i];
    bool only_gradients = true;
    for (const auto* slots : {&op.writes, &op.updates}) {
      for (const SlotIndex slot : *slots) {
        const bool gradient = source.slots[at(slot)].kind == SlotKind::kWeightGradient;
        only_gradients = only_gradients && (gradient || !needed[at(stamp.table.root[at(slot)])]);
      }
    }
    deferred[i] = only_gradients;
    if (only_gradients) continue;
    for (const auto* slots : {&op.reads, &op.updates, &op.holds}) {
      for (const SlotIndex slot : *slots) needed[at(stamp.table.root[at(slot)])] = true;
    }
  }
  return deferred;
}

}  // namespace stepsim
