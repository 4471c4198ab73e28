#include "models/recompute_groups.h"

#include <algorithm>
#include <optional>

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

constexpr std::int32_t kNobody = -1;

// For one root, the last row that says something about it in each layer. Rows come from the last to the first; a layer keeps the first
// one that comes. Layers that have a row are jumped over, so that a row costs no more than the layers that it is the first to reach.
class LastRow {
 public:
  explicit LastRow(std::int64_t layers) : row_(static_cast<std::size_t>(layers), kNobody) {
    for (std::int64_t layer = 0; layer <= layers; ++layer) open_.push_back(static_cast<std::int32_t>(layer));
  }

  void add(std::int64_t first, std::int64_t last, std::int32_t row) {
    const auto end = static_cast<std::int64_t>(row_.size());
    if (first >= end) return;
    for (std::int32_t layer = next_open(static_cast<std::int32_t>(first)); layer <= last && layer < end; layer = next_open(layer)) {
      row_[at(layer)] = row;
      open_[at(layer)] = layer + 1;
    }
  }
  std::int32_t row(std::int32_t layer) const { return row_[at(layer)]; }

 private:
  std::int32_t next_open(std::int32_t layer) {
    while (open_[at(layer)] != layer) {
      open_[at(layer)] = open_[at(open_[at(layer)])];  // halves the way for the next time
      layer = open_[at(layer)];
    }
    return layer;
  }

  std::vector<std::int32_t> row_;   // by layer
  std::vector<std::int32_t> open_;  // by layer: itself without a row, else a later one on the way to the next without
};

// By root; none for roots that no row names. A layer's output is the next one's input: the layer that reads it has it.
std::vector<std::optional<LastRow>> last_rows(const LayerTemplate& layer, const SlotTable& table, const std::vector<PlacementRow>& rows,
                                              std::int64_t layers) {
  RowSlots row_slots(layer, table);
  std::vector<std::optional<LastRow>> last(layer.slots.size());
  for (std::size_t index = rows.size(); index-- > 0;) {
    const PlacementRow& row = rows[index];
    const std::int64_t end = row.last_layer == -1 ? layers - 1 : row.last_layer;
    for (const SlotIndex selected : row_slots.of(row.module_or_slot)) {
      const bool hands_on = selected == table.output;
      const SlotIndex root = hands_on ? table.input : selected;
      if (root == kNoSlot) continue;
      if (!last[at(root)]) last[at(root)].emplace(layers);
      last[at(root)]->add(row.first_layer + hands_on, end + hands_on, static_cast<std::int32_t>(index));
    }
  }
  return last;
}

// What a policy's modules drop in every layer alike: a group each, and for every root its group or kNobody.
struct ModuleGroups {
  std::vector<RecomputeGroup> groups;  // without `dropped`
  std::vector<std::int32_t> group_of;  // by root; a later module replaces an earlier one
};

ModuleGroups groups_of_modules(const LayerTemplate& layer, const SlotTable& table, const PlacementPolicy& policy) {
  ModuleGroups of{{}, std::vector<std::int32_t>(layer.slots.size(), kNobody)};
  if (policy.granularity != RecomputeGranularity::kSelective) return of;
  const std::vector<std::string> names = policy.modules.empty() ? std::vector<std::string>{"core_attn"} : policy.modules;
  for (const RecomputeModule& module : recompute_modules()) {
    if (std::find(names.begin(), names.end(), module.name) == names.end()) continue;
    const auto group = static_cast<std::int32_t>(of.groups.size());
    if (!module.discards_output) of.groups.push_back({{}, ops_of_module(layer, module.name)});
    for (const SlotIndex root : slots_of_module(layer, table, module)) {
      of.group_of[at(root)] = module.discards_output ? static_cast<std::int32_t>(of.groups.size()) : group;
      if (module.discards_output) of.groups.emplace_back();  // each output just before its own first reader
    }
  }
  return of;
}

// The groups of a layer in which root r is in group_of[r], numbered as the modules' groups and then in the order of the rows.
std::vector<RecomputeGroup> group_list(const SlotTable& table, const FrameworkPreset& framework,
                                       const std::vector<RecomputeGroup>& of_modules, const std::vector<std::int32_t>& group_of) {
  std::vector<RecomputeGroup> groups = of_modules;
  for (SlotIndex root = 0; at(root) < group_of.size(); ++root) {
    if (group_of[at(root)] == kNobody) continue;
    if (at(group_of[at(root)]) >= groups.size()) groups.resize(at(group_of[at(root)]) + 1);
    groups[at(group_of[at(root)])].dropped.push_back(root);
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

// Numbers of rows, from `first` on in `group_of`, become the next numbers after it without gaps and in the same order.
void close_gaps(std::vector<std::int32_t>& group_of, std::int32_t first) {
  std::vector<std::int32_t> rows;
  for (const std::int32_t group : group_of) {
    if (group >= first) rows.push_back(group);
  }
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  for (std::int32_t& group : group_of) {
    if (group >= first) group = first + static_cast<std::int32_t>(std::lower_bound(rows.begin(), rows.end(), group) - rows.begin());
  }
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

const std::vector<SlotIndex>& RowSlots::of(const std::string& module_or_slot) {
  const auto [known, fresh] = known_.try_emplace(module_or_slot);
  if (!fresh) return known->second;
  for (SlotIndex root = 0; at(root) < layer_.slots.size(); ++root) {
    if (table_.root[at(root)] != root || !(table_.saved[at(root)] || root == table_.output)) continue;
    const Slot& slot = layer_.slots[at(root)];
    const bool by_group = module_or_slot == "*" || names_module(slot.module, module_or_slot);
    if (slot.name == module_or_slot || (by_group && is_inner(table_, root))) known->second.push_back(root);
  }
  return known->second;
}

LayerGroups groups_of_layers(const LayerTemplate& layer_template, const SlotTable& table, const PlacementPolicy& policy,
                             const FrameworkPreset& framework, std::int64_t layers) {
  const ModuleGroups of_modules = groups_of_modules(layer_template, table, policy);
  LayerGroups groups;
  if (policy.rows.empty()) {
    groups.lists.push_back(group_list(table, framework, of_modules.groups, of_modules.group_of));
    groups.list_of.assign(static_cast<std::size_t>(layers), 0);
    return groups;
  }
  STEPSIM_CHECK(policy.rows.size() <= at(kMostPlacementRows));
  const std::vector<std::optional<LastRow>> last = last_rows(layer_template, table, policy.rows, layers);
  const auto first_row = static_cast<std::int32_t>(of_modules.groups.size());
  std::map<std::vector<std::int32_t>, std::int32_t> lists;  // by group of each root
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    std::vector<std::int32_t> group_of = of_modules.group_of;
    for (std::size_t root = 0; root < group_of.size(); ++root) {
      const std::int32_t row = last[root] ? last[root]->row(layer) : kNobody;
      if (row == kNobody) continue;
      group_of[root] = policy.rows[at(row)].action == PlacementAction::kKeep ? kNobody : first_row + row;
    }
    close_gaps(group_of, first_row);
    const auto [known, fresh] = lists.try_emplace(std::move(group_of), static_cast<std::int32_t>(groups.lists.size()));
    if (fresh) groups.lists.push_back(group_list(table, framework, of_modules.groups, known->first));
    groups.list_of.push_back(known->second);
  }
  return groups;
}

}  // namespace stepsim
