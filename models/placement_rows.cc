#include "models/placement_rows.h"

#include <algorithm>

namespace stepsim {

const std::vector<SlotIndex>& RowSlots::of(const std::string& module_or_slot, bool offloads) {
  const auto [known, fresh] = known_.try_emplace({module_or_slot, offloads});
  if (fresh) known->second = offloads ? offloaded(module_or_slot) : others(module_or_slot);
  return known->second;
}

std::vector<SlotIndex> RowSlots::others(const std::string& name) const {
  std::vector<SlotIndex> roots;
  for (SlotIndex root = 0; at(root) < layer_.slots.size(); ++root) {
    if (table_.root[at(root)] != root || !(table_.saved[at(root)] || root == table_.output)) continue;
    const Slot& slot = layer_.slots[at(root)];
    const bool by_group = name == "*" || names_module(slot.module, name);
    const bool inner = root != table_.input && root != table_.output;
    if (slot.name == name || (by_group && inner)) roots.push_back(root);
  }
  return roots;
}

std::vector<SlotIndex> RowSlots::offloaded(const std::string& name) const {
  for (const OffloadModule& module : offload_modules(layer_, table_)) {
    if (module.name == name) return module.saved;
  }
  std::vector<SlotIndex> roots = others(name);
  // What recomputation starts from is not read by backward itself under full recompute, but by the re-run; where norms save a copy of it,
  // by nothing else.
  const bool wants_input = table_.input != kNoSlot && (name == "*" || name == layer_.slots[at(table_.input)].name);
  if (wants_input && std::find(roots.begin(), roots.end(), table_.input) == roots.end()) {
    roots.insert(std::lower_bound(roots.begin(), roots.end(), table_.input), table_.input);
  }
  std::erase_if(roots, [&](SlotIndex root) { return layer_.slots[at(root)].kind == SlotKind::kBatch; });
  return roots;
}

LastRow::LastRow(std::int64_t layers) : row_(static_cast<std::size_t>(layers), LastRows::kNone) {
  for (std::int64_t layer = 0; layer <= layers; ++layer) open_.push_back(static_cast<std::int32_t>(layer));
}

void LastRow::add(std::int64_t first, std::int64_t last, std::int32_t row) {
  const auto end = static_cast<std::int64_t>(row_.size());
  if (first >= end) return;
  for (std::int32_t layer = next_open(static_cast<std::int32_t>(first)); layer <= last && layer < end; layer = next_open(layer)) {
    row_[at(layer)] = row;
    open_[at(layer)] = layer + 1;
  }
}

std::int32_t LastRow::next_open(std::int32_t layer) {
  while (open_[at(layer)] != layer) {
    open_[at(layer)] = open_[at(open_[at(layer)])];  // halves the way for the next time
    layer = open_[at(layer)];
  }
  return layer;
}

LastRows::LastRows(const LayerStack& stack, const std::vector<PlacementRow>& rows) : stack_(stack) {
  std::vector<RowSlots> row_slots;
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
    row_slots.emplace_back(stack.kind(kind), stack.kind_table(kind));
    kinds_.emplace_back().own.resize(stack.kind(kind).slots.size());
  }
  for (std::size_t index = rows.size(); index-- > 0;) {
    const PlacementRow& row = rows[index];
    const std::int64_t end = row.last_layer == -1 ? stack.layers() - 1 : row.last_layer;
    for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
      for (const SlotIndex root : row_slots[kind].of(row.module_or_slot, row.action == PlacementAction::kOffload)) {
        const bool hands_on = root == stack.kind_table(static_cast<std::int32_t>(kind)).output;
        std::optional<LastRow>& last = hands_on ? kinds_[kind].output : kinds_[kind].own[at(root)];
        if (!last) last.emplace(stack.layers());
        last->add(row.first_layer, end, static_cast<std::int32_t>(index));
      }
    }
  }
}

std::int32_t LastRows::row(std::int32_t layer, SlotIndex root) const {
  const std::optional<LastRow>& own = kinds_[at(stack_.kind_of(layer))].own[at(root)];
  const std::int32_t row = own ? own->row(layer) : kNone;
  if (layer == 0 || root != stack_.table(layer).input) return row;
  const std::optional<LastRow>& before = kinds_[at(stack_.kind_of(layer - 1))].output;
  return before ? std::max(row, before->row(layer - 1)) : row;  // the later row
}

}  // namespace stepsim
