#include "models/recompute_groups.h"

#include <algorithm>
#include <map>
#include <utility>

#include "models/placement_rows.h"
#include "sim/check.h"

namespace stepsim {

namespace {

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

namespace {

// Without rows, layers of one kind are alike.
LayerGroups groups_of_kinds(const LayerStack& stack, const std::vector<ModuleGroups>& of_modules, const FrameworkPreset& framework) {
  LayerGroups groups;
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
    groups.lists.push_back(group_list(stack.kind_table(kind), framework, of_modules[at(kind)].groups, of_modules[at(kind)].group_of));
  }
  for (std::int64_t layer = 0; layer < stack.layers(); ++layer) groups.list_of.push_back(stack.kind_of(layer));
  return groups;
}

}  // namespace

LayerGroups groups_of_layers(const LayerStack& stack, const PlacementPolicy& policy, const FrameworkPreset& framework) {
  std::vector<ModuleGroups> of_modules;  // by kind
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
    of_modules.push_back(groups_of_modules(stack.kind(kind), stack.kind_table(kind), policy));
  }
  if (policy.rows.empty()) return groups_of_kinds(stack, of_modules, framework);
  STEPSIM_CHECK(policy.rows.size() <= at(kMostPlacementRows));
  const LastRows last(stack, policy.rows);
  LayerGroups groups;
  std::map<std::pair<std::int32_t, std::vector<std::int32_t>>, std::int32_t> lists;  // by kind and group of each root
  for (std::int32_t layer = 0; layer < stack.layers(); ++layer) {
    const std::int32_t kind = stack.kind_of(layer);
    const auto first_row = static_cast<std::int32_t>(of_modules[at(kind)].groups.size());
    std::vector<std::int32_t> group_of = of_modules[at(kind)].group_of;
    for (std::size_t root = 0; root < group_of.size(); ++root) {
      const std::int32_t row = last.row(layer, static_cast<SlotIndex>(root));
      if (row == LastRows::kNone) continue;
      group_of[root] = policy.rows[at(row)].action == PlacementAction::kRecompute ? first_row + row : kNobody;
    }
    close_gaps(group_of, first_row);
    const auto [known, fresh] = lists.try_emplace(std::pair(kind, std::move(group_of)), static_cast<std::int32_t>(groups.lists.size()));
    if (fresh) groups.lists.push_back(group_list(stack.table(layer), framework, of_modules[at(kind)].groups, known->first.second));
    groups.list_of.push_back(known->second);
  }
  return groups;
}

}  // namespace stepsim
