#include "models/needed_ops.h"

#include <algorithm>
#include <set>
#include <utility>

#include "models/template_builder.h"

namespace stepsim {

namespace {

bool ends_here(const LayerTemplate& layer, SlotIndex root) {
  const SlotKind kind = layer.slots[at(root)].kind;
  return kind == SlotKind::kWeightGradient || kind == SlotKind::kSharedGradient;
}

// By backward op: whether it is needed.
std::vector<bool> needed_backward(const LayerTemplate& layer, bool input_gradient) {
  std::set<SlotIndex> wanted;
  if (input_gradient && layer.input_gradient != kNoSlot) wanted.insert(root_of(layer.slots, layer.input_gradient));
  std::vector<bool> needed(layer.backward.size(), false);
  for (std::size_t index = layer.backward.size(); index-- > 0;) {
    const TemplateOp& op = layer.backward[index];
    bool makes = false;
    for (const auto* made : {&op.writes, &op.updates}) {
      for (const SlotIndex slot : *made) {
        const SlotIndex root = root_of(layer.slots, slot);
        makes = makes || ends_here(layer, root) || wanted.contains(root);
      }
    }
    if (!makes) continue;
    needed[index] = true;
    for (const auto* used : {&op.reads, &op.updates, &op.holds}) {
      for (const SlotIndex slot : *used) wanted.insert(root_of(layer.slots, slot));
    }
  }
  return needed;
}

// Ops that follow one that is left out follow what stood before it.
void keep_ops(std::vector<TemplateOp>& ops, const std::vector<bool>& needed) {
  std::vector<std::int32_t> kept_until(ops.size(), -1);
  std::int32_t last = -1;
  for (std::size_t index = 0; index < ops.size(); ++index) {
    if (needed[index]) ++last;
    kept_until[index] = last;
  }
  std::vector<TemplateOp> kept;
  for (std::size_t index = 0; index < ops.size(); ++index) {
    if (!needed[index]) continue;
    TemplateOp op = std::move(ops[index]);
    for (std::int32_t& before : op.after) before = kept_until[static_cast<std::size_t>(before)];
    std::erase(op.after, -1);
    kept.push_back(std::move(op));
  }
  ops = std::move(kept);
}

std::vector<bool> used_slots(const LayerTemplate& layer) {
  std::vector<bool> used(layer.slots.size(), false);
  const auto use = [&](SlotIndex slot) {
    for (; slot != kNoSlot; slot = layer.slots[at(slot)].view_of) used[at(slot)] = true;
  };
  for (const SlotIndex end : {layer.input, layer.output, layer.output_gradient, layer.input_gradient}) use(end);
  for (const auto* ops : {&layer.forward, &layer.backward}) {
    for (const TemplateOp& op : *ops) {
      for (const auto* list : {&op.reads, &op.writes, &op.updates, &op.holds}) {
        for (const SlotIndex slot : *list) use(slot);
      }
    }
  }
  for (std::size_t slot = 0; slot < layer.slots.size(); ++slot) {
    const SlotKind kind = layer.slots[slot].kind;
    if (kind == SlotKind::kWeight || kind == SlotKind::kWeightGradient || kind == SlotKind::kShared || kind == SlotKind::kSharedGradient) {
      used[slot] = true;
    }
  }
  return used;
}

void keep_slots(LayerTemplate& layer, const std::vector<bool>& used) {
  std::vector<SlotIndex> renamed(layer.slots.size(), kNoSlot);
  std::vector<Slot> kept;
  for (std::size_t slot = 0; slot < layer.slots.size(); ++slot) {
    if (!used[slot]) continue;
    renamed[slot] = static_cast<SlotIndex>(kept.size());
    kept.push_back(std::move(layer.slots[slot]));
  }
  const auto rename = [&](SlotIndex& slot) {
    if (slot != kNoSlot) slot = renamed[at(slot)];
  };
  for (Slot& slot : kept) rename(slot.view_of);
  layer.slots = std::move(kept);
  for (auto* ops : {&layer.forward, &layer.backward}) {
    for (TemplateOp& op : *ops) {
      for (auto* list : {&op.reads, &op.writes, &op.updates, &op.holds}) std::for_each(list->begin(), list->end(), rename);
    }
  }
  for (SlotIndex* end : {&layer.input, &layer.output, &layer.output_gradient, &layer.input_gradient}) rename(*end);
}

}  // namespace

void drop_unneeded_backward(LayerTemplate& layer, bool input_gradient) {
  const std::vector<bool> needed = needed_backward(layer, input_gradient);
  if (!input_gradient) layer.input_gradient = kNoSlot;
  keep_ops(layer.backward, needed);
  keep_slots(layer, used_slots(layer));
}

}  // namespace stepsim
