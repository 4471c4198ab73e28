#include "models/recompute_groups.h"

#include <algorithm>
#include <span>

#include "sim/check.h"

namespace stepsim {

namespace {

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

std::vector<std::int32_t> ops_of_module(const LayerTemplate& layer, const std::string& module) {
  std::vector<std::int32_t> ops;
  for (std::size_t op = 0; op < layer.forward.size(); ++op) {
    if (names_module(layer.forward[op].module, module)) ops.push_back(static_cast<std::int32_t>(op));
  }
  return ops;
}

bool read_outside(const LayerTemplate& layer, const SlotTable& table, SlotIndex root, const std::string& module) {
  for (std::size_t op = 0; op < layer.forward.size(); ++op) {
    const std::vector<SlotIndex>& needs = table.forward_needs[op];
    if (names_module(layer.forward[op].module, module)) continue;
    if (std::binary_search(needs.begin(), needs.end(), root)) return true;
  }
  return false;
}

bool is_inner(const SlotTable& table, SlotIndex root) { return root != table.input && root != table.output; }

bool row_covers(const PlacementRow& row, std::int64_t layer, std::int64_t layers) {
  return layer >= row.first_layer && layer <= (row.last_layer == -1 ? layers - 1 : row.last_layer);
}

// What the row selects among the storages that layer `layer` reads in backward: its output is the input of the next layer.
std::vector<SlotIndex> selected(const LayerTemplate& layer_template, const SlotTable& table, const PlacementRow& row, std::int64_t layer,
                                std::int64_t layers) {
  std::vector<SlotIndex> roots;
  const bool here = row_covers(row, layer, layers);
  const bool before = layer > 0 && row_covers(row, layer - 1, layers);
  if (!here && !before) return roots;
  for (const SlotIndex root : slots_of_row(layer_template, table, row.module_or_slot)) {
    if (root == table.output) {
      if (before && table.input != kNoSlot) roots.push_back(table.input);
    } else if (here) {
      roots.push_back(root);
    }
  }
  return roots;
}

}  // namespace

std::vector<SlotIndex> slots_of_module(const LayerTemplate& layer, const SlotTable& table, const RecomputeModule& module) {
  std::vector<SlotIndex> roots;
  for (SlotIndex root = 0; at(root) < layer.slots.size(); ++root) {
    if (!table.saved[at(root)] || !is_inner(table, root) || table.makers[at(root)].empty()) continue;
    const bool made_inside = names_module(layer.slots[at(root)].module, module.name) ||
                             std::all_of(table.makers[at(root)].begin(), table.makers[at(root)].end(),
                                         [&](std::int32_t op) { return names_module(layer.forward[at(op)].module, module.name); });
    if (!made_inside) continue;
    if (!module.discards_output && read_outside(layer, table, root, module.name)) continue;
    roots.push_back(root);
  }
  return roots;
}

std::vector<SlotIndex> slots_of_row(const LayerTemplate& layer, const SlotTable& table, const std::string& module_or_slot) {
  std::vector<SlotIndex> roots;
  for (SlotIndex root = 0; at(root) < layer.slots.size(); ++root) {
    if (table.root[at(root)] != root || !(table.saved[at(root)] || root == table.output)) continue;
    const Slot& slot = layer.slots[at(root)];
    const bool by_group = module_or_slot == "*" || names_module(slot.module, module_or_slot);
    if (slot.name == module_or_slot || (by_group && is_inner(table, root))) roots.push_back(root);
  }
  return roots;
}

std::vector<RecomputeGroup> groups_of_layer(const LayerTemplate& layer_template, const SlotTable& table, const PlacementPolicy& policy,
                                            const FrameworkPreset& framework, std::int64_t layer, std::int64_t layers) {
  std::vector<RecomputeGroup> groups;
  std::vector<std::int32_t> group_of(layer_template.slots.size(), -1);  // by root; a later choice replaces an earlier one
  const auto assign = [&](std::span<const SlotIndex> roots, std::int32_t group) {
    for (const SlotIndex root : roots) group_of[at(root)] = group;
  };
  if (policy.granularity == RecomputeGranularity::kSelective) {
    const std::vector<std::string> names = policy.modules.empty() ? std::vector<std::string>{"core_attn"} : policy.modules;
    for (const RecomputeModule& module : recompute_modules()) {
      if (std::find(names.begin(), names.end(), module.name) == names.end()) continue;
      const std::vector<SlotIndex> roots = slots_of_module(layer_template, table, module);
      if (!module.discards_output) {
        assign(roots, static_cast<std::int32_t>(groups.size()));
        groups.push_back({{}, ops_of_module(layer_template, module.name)});
        continue;
      }
      for (const SlotIndex root : roots) {  // each output just before its own first reader
        group_of[at(root)] = static_cast<std::int32_t>(groups.size());
        groups.emplace_back();
      }
    }
  }
  for (const PlacementRow& row : policy.rows) {
    const bool keeps = row.action == PlacementAction::kKeep;
    assign(selected(layer_template, table, row, layer, layers), keeps ? -1 : static_cast<std::int32_t>(groups.size()));
    if (!keeps) groups.emplace_back();
  }
  for (SlotIndex root = 0; at(root) < group_of.size(); ++root) {
    if (group_of[at(root)] >= 0) groups[at(group_of[at(root)])].dropped.push_back(root);
  }
  std::erase_if(groups, [](const RecomputeGroup& group) { return group.dropped.empty(); });
  for (RecomputeGroup& group : groups) {
    if (!framework.stops_after_last_saved) continue;
    std::int32_t last = -1;
    for (const SlotIndex root : group.dropped) {
      if (!table.makers[at(root)].empty()) last = std::max(last, table.makers[at(root)].back());
    }
    std::erase_if(group.ops, [last](std::int32_t op) { return op > last; });
  }
  return groups;
}

std::vector<std::int64_t> group_breaks(const PlacementPolicy& policy, std::int64_t layers) {
  std::vector<std::int64_t> breaks{0};
  for (const PlacementRow& row : policy.rows) {
    const std::int64_t end = row.last_layer == -1 ? layers : row.last_layer + 1;
    for (const std::int64_t layer : {row.first_layer, row.first_layer + 1, end, end + 1}) {  // + 1: where an output is the next input
      if (layer > 0 && layer < layers) breaks.push_back(layer);
    }
  }
  std::sort(breaks.begin(), breaks.end());
  breaks.erase(std::unique(breaks.begin(), breaks.end()), breaks.end());
  return breaks;
}

}  // namespace stepsim
