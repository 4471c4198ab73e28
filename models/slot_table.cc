#include "models/slot_table.h"

#include <algorithm>

#include "sim/check.h"

namespace stepsim {

namespace {

void add_once(std::vector<std::int32_t>& values, std::int32_t value) {
  if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
}

SlotIndex root_of(const LayerTemplate& layer, SlotIndex slot) {
  for (std::size_t steps = 0; layer.slots[at(slot)].view_of != kNoSlot; ++steps) {
    STEPSIM_CHECK(steps < layer.slots.size());
    slot = layer.slots[at(slot)].view_of;
  }
  return slot;
}

std::vector<SlotIndex> forward_roots(const SlotTable& table, const TemplateOp& op) {
  std::vector<SlotIndex> roots;
  for (const auto* slots : {&op.reads, &op.updates, &op.holds}) {
    for (const SlotIndex slot : *slots) {
      if (table.forward_made[at(table.root[at(slot)])]) add_once(roots, table.root[at(slot)]);
    }
  }
  std::sort(roots.begin(), roots.end());
  return roots;
}

}  // namespace

SlotTable::SlotTable(const LayerTemplate& layer) {
  const std::size_t slots = layer.slots.size();
  for (std::size_t slot = 0; slot < slots; ++slot) root.push_back(root_of(layer, static_cast<SlotIndex>(slot)));
  if (layer.input != kNoSlot) input = root[at(layer.input)];
  if (layer.output != kNoSlot) output = root[at(layer.output)];
  forward_made.assign(slots, false);
  saved.assign(slots, false);
  shared.assign(slots, false);
  makers.resize(slots);
  updaters.resize(slots);
  if (input != kNoSlot) forward_made[at(input)] = true;
  for (std::size_t op = 0; op < layer.forward.size(); ++op) {
    std::vector<SlotIndex> makes;
    for (const SlotIndex slot : layer.forward[op].writes) add_once(makes, root[at(slot)]);
    std::sort(makes.begin(), makes.end());
    for (const SlotIndex made : makes) {
      forward_made[at(made)] = true;
      makers[at(made)].push_back(static_cast<std::int32_t>(op));
    }
    for (const SlotIndex slot : layer.forward[op].updates) {
      add_once(makers[at(root[at(slot)])], static_cast<std::int32_t>(op));
      add_once(updaters[at(root[at(slot)])], static_cast<std::int32_t>(op));
    }
    forward_makes.push_back(std::move(makes));
  }
  for (std::size_t slot = 0; slot < slots; ++slot) shared[slot] = forward_made[slot] && layer.slots[slot].kind == SlotKind::kShared;
  for (const TemplateOp& op : layer.forward) forward_needs.push_back(forward_roots(*this, op));
  for (const TemplateOp& op : layer.backward) {
    backward_needs.push_back(forward_roots(*this, op));
    for (const SlotIndex needed : backward_needs.back()) saved[at(needed)] = !shared[at(needed)];
  }
}

std::int32_t SlotTable::last_saving_op() const {
  std::int32_t last = -1;
  for (std::size_t slot = 0; slot < root.size(); ++slot) {
    if (!saved[slot] || static_cast<SlotIndex>(slot) == output || makers[slot].empty()) continue;
    last = std::max(last, makers[slot].back());
  }
  return last;
}

bool names_module(std::string_view modules, std::string_view module) {
  while (!modules.empty()) {
    const std::size_t comma = std::min(modules.find(','), modules.size());
    std::string_view word = modules.substr(0, comma);
    while (!word.empty() && word.front() == ' ') word.remove_prefix(1);
    while (!word.empty() && word.back() == ' ') word.remove_suffix(1);
    if (word == module) return true;
    modules.remove_prefix(std::min(comma + 1, modules.size()));
  }
  return false;
}

}  // namespace stepsim
