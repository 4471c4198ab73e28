#include "models/offload_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/placement_rows.h"
#include "schema/nearest_name.h"
#include "sim/input_error.h"

namespace stepsim {

namespace {

void check_range(const std::string& flag, std::int64_t found, std::int64_t least, std::int64_t most, const std::string& why) {
  if (found < least || found > most) refuse(flag, fmt::format("found {}, wanted {} to {}{}", found, least, most, why));
}

void add_once(std::vector<std::string>& names, const std::string& name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

std::vector<std::string> module_names(const LayerStack& stack) {
  std::vector<std::string> names;
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
    for (const OffloadModule& module : offload_modules(stack.kind(kind), stack.kind_table(kind))) add_once(names, module.name);
  }
  return names;
}

std::vector<std::string> tensor_names(const LayerStack& stack) {
  std::vector<std::string> names;
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
    const LayerTemplate& layer = stack.kind(kind);
    const SlotTable& table = stack.kind_table(kind);
    for (SlotIndex root = 0; at(root) < layer.slots.size(); ++root) {
      const Slot& slot = layer.slots[at(root)];
      const bool stays = table.saved[at(root)] || root == table.input;
      if (stays && root != table.output && slot.kind != SlotKind::kBatch) add_once(names, slot.name);
    }
  }
  return names;
}

// `slots`: by kind; one of them has the name.
void check_name(const std::string& flag, const std::string& name, const LayerStack& stack, std::vector<RowSlots>& slots) {
  if (std::any_of(slots.begin(), slots.end(), [&](RowSlots& kind) { return !kind.of(name, true).empty(); })) return;
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
    const LayerTemplate& layer = stack.kind(kind);
    for (SlotIndex slot = 0; at(slot) < layer.slots.size(); ++slot) {
      const SlotIndex root = stack.kind_table(kind).root[at(slot)];
      if (layer.slots[at(slot)].name != name || root == slot) continue;
      refuse(flag,
             fmt::format("found \"{}\", a view whose copy frees nothing, wanted its storage \"{}\"", name, layer.slots[at(root)].name));
    }
  }
  const std::vector<std::string> modules = module_names(stack), tensors = tensor_names(stack);
  std::vector<std::string> names = modules;
  names.insert(names.end(), tensors.begin(), tensors.end());
  refuse(flag, fmt::format("found \"{}\", wanted \"*\", a module ({}) or a saved tensor of a layer{}", name, fmt::join(modules, ", "),
                           suggestion(name, names)));
}

void check_schedule(const OffloadSchedule& schedule) {
  constexpr std::int64_t kMany = 1'000'000;
  check_range("--prefetch-layers", schedule.lookahead, 0, kMany, " (0: when compute reaches the tensor)");
  if (schedule.in_flight) check_range("--max-in-flight", *schedule.in_flight, 0, kMany, " (0: compute waits for each copy)");
  check_range("--set placement.release_distance", schedule.release_distance, 0, kMany, "");
  check_range("--set placement.copy_streams", schedule.streams, 1, kMostCopyStreams, "");
  check_range("--set placement.copy_engines", schedule.engines, 1, 2, "");
  if (schedule.asynchronous_limit) check_range("--set placement.asynchronous_limit", *schedule.asynchronous_limit, 1, kMany, "");
}

void check_selection(const OffloadSelection& selection, std::int64_t layers) {
  check_range("--offload-layers", selection.first_layers, 0, layers, " (0: all)");
  check_range("--set placement.keep_last_layers", selection.keep_last_layers, 0, layers, "");
  check_range("--set placement.keep_last_groups", selection.keep_last_groups, 0, 1'000'000'000, "");
  if (!(selection.groups_fraction > 0 && selection.groups_fraction <= 1)) {
    refuse("--offload-groups-fraction", fmt::format("found {}, wanted above 0 and at most 1", selection.groups_fraction));
  }
}

}  // namespace

std::vector<std::string> check_offload(const PlacementPolicy& policy, const LayerStack& stack) {
  std::vector<RowSlots> slots;
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) slots.emplace_back(stack.kind(kind), stack.kind_table(kind));
  const OffloadPolicy& offload = policy.offload;
  for (const std::string& name : offload.selection.names) check_name("--offload-modules", name, stack, slots);
  for (const PlacementRow& row : policy.rows) {
    if (row.action == PlacementAction::kOffload) {
      check_name("--placement", row.module_or_slot, stack, slots);
      check_range("--placement", row.of_slices, 1, kMostSlices, " slices");
      check_range("--placement", row.slices, 1, row.of_slices, " slices of a tensor");
    } else if (row.of_slices != 1) {
      refuse("--placement", "found slices of a tensor that is not offloaded, wanted action offload");
    }
  }
  check_selection(offload.selection, stack.layers());
  check_schedule(offload.schedule);
  std::vector<std::string> warnings;
  if (!policy.offloads()) return warnings;
  if (offload.schedule.synchronous && offload.schedule.lookahead > 1) {
    warnings.push_back("offload: synchronous copies prefetch nothing: --prefetch-layers has no effect");
  }
  return warnings;
}

}  // namespace stepsim
