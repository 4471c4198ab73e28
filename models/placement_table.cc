#include "models/placement_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "models/offload_check.h"
#include "models/placement_rows.h"
#include "models/recompute_groups.h"
#include "models/slot_table.h"
#include "schema/nearest_name.h"
#include "sim/input_error.h"

namespace stepsim {

namespace {

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

[[noreturn]] void refuse(const std::string& flag, const std::string& problem) { throw InputError({flag, 0, 0}, problem); }

bool has_module(const LayerTemplate& layer, const std::string& module) {
  const auto named = [&module](const auto& part) { return names_module(part.module, module); };
  return std::any_of(layer.forward.begin(), layer.forward.end(), named) || std::any_of(layer.slots.begin(), layer.slots.end(), named);
}

std::vector<std::string> modules_present(const LayerTemplate& layer) {
  std::vector<std::string> names;
  for (const RecomputeModule& module : recompute_modules()) {
    if (has_module(layer, module.name)) names.push_back(module.name);
  }
  return names;
}

void check_modules(const PlacementPolicy& policy, const LayerTemplate& layer) {
  std::vector<std::string> known;
  for (const RecomputeModule& module : recompute_modules()) known.push_back(module.name);
  const std::vector<std::string> present = modules_present(layer);
  const std::vector<std::string> wanted = policy.modules.empty() ? std::vector<std::string>{"core_attn"} : policy.modules;
  for (const std::string& name : wanted) {
    if (std::find(present.begin(), present.end(), name) != present.end()) continue;
    const std::string choices = fmt::format("{}", fmt::join(present, ", "));
    if (std::find(known.begin(), known.end(), name) != known.end()) {
      refuse("--recompute-modules", fmt::format("found \"{}\", which this model has not, wanted some of {}", name, choices));
    }
    refuse("--recompute-modules", fmt::format("found \"{}\", wanted some of {}{}", name, choices, suggestion(name, present)));
  }
}

void check_sizes(const std::vector<std::int64_t>& sizes, std::int64_t layers) {
  std::int64_t left = layers;
  for (const std::int64_t size : sizes) {
    if (size < 1) refuse("--recompute-segments", fmt::format("found a segment of {} layers, wanted at least 1", size));
    if (size > left) {
      refuse("--recompute-segments", fmt::format("found sizes that add up to more than {}, wanted exactly the {} layers", layers, layers));
    }
    left -= size;
  }
  if (left != 0) {
    refuse("--recompute-segments", fmt::format("found sizes that add up to {}, wanted exactly the {} layers", layers - left, layers));
  }
}

void check_segments(const PlacementPolicy& policy, std::int64_t layers) {
  const int kinds = (policy.segments != 0) + !policy.segment_sizes.empty() + policy.halving;
  if (kinds == 0) return;
  if (kinds > 1) refuse("--recompute-segments", "found two of a count, sizes and halving, wanted one");
  if (policy.granularity == RecomputeGranularity::kSelective) {
    refuse("--recompute-segments", "found it with --recompute selective, wanted --recompute full or none of it");
  }
  if (policy.segments != 0 && (policy.segments < 1 || policy.segments > layers)) {
    refuse("--recompute-segments", fmt::format("found {}, wanted 1 to {} (the layers)", policy.segments, layers));
  }
  if (!policy.segment_sizes.empty()) check_sizes(policy.segment_sizes, layers);
}

std::vector<std::string> row_names(const LayerTemplate& layer, const SlotTable& table) {
  std::vector<std::string> names = modules_present(layer);
  for (SlotIndex root = 0; at(root) < layer.slots.size(); ++root) {
    if (table.saved[at(root)] || root == table.output) names.push_back(layer.slots[at(root)].name);
  }
  return names;
}

// For a row that selects nothing.
void check_row_name(const PlacementRow& row, const LayerTemplate& layer, const SlotTable& table) {
  if (row.module_or_slot == "*") return;
  for (SlotIndex slot = 0; at(slot) < layer.slots.size(); ++slot) {
    if (layer.slots[at(slot)].name != row.module_or_slot) continue;
    const SlotIndex root = table.root[at(slot)];
    if (root != slot) {
      refuse("--placement", fmt::format("found \"{}\", a view whose dropping frees nothing, wanted its storage \"{}\"", row.module_or_slot,
                                        layer.slots[at(root)].name));
    }
    refuse("--placement", fmt::format("found \"{}\", which backward does not read, wanted a saved tensor", row.module_or_slot));
  }
  const std::vector<std::string> names = row_names(layer, table);
  if (std::find(names.begin(), names.end(), row.module_or_slot) != names.end()) {
    refuse("--placement", fmt::format("found \"{}\", a module of which this layer saves nothing that {} could be said of, wanted another",
                                      row.module_or_slot, row.action == PlacementAction::kKeep ? "keep" : "recompute"));
  }
  refuse("--placement", fmt::format("found \"{}\", wanted \"*\", a module or a saved tensor of a layer{}", row.module_or_slot,
                                    suggestion(row.module_or_slot, names)));
}

void check_rows(const PlacementPolicy& policy, const LayerTemplate& layer, const SlotTable& table, std::int64_t layers) {
  if (policy.rows.size() > at(kMostPlacementRows)) {
    refuse("--placement", fmt::format("found {} rows, wanted at most {}", policy.rows.size(), kMostPlacementRows));
  }
  RowSlots row_slots(layer, table);
  for (const PlacementRow& row : policy.rows) {
    const std::int64_t last = row.last_layer == -1 ? layers - 1 : row.last_layer;
    if (row.first_layer < 0 || row.first_layer > last || last >= layers) {
      refuse("--placement", fmt::format("found layers {} to {}, wanted a range within 0 to {}", row.first_layer, last, layers - 1));
    }
    if (row.action == PlacementAction::kOffload) continue;
    const std::vector<SlotIndex>& roots = row_slots.of(row.module_or_slot);
    if (roots.empty()) check_row_name(row, layer, table);
    if (row.action != PlacementAction::kRecompute) continue;
    for (const SlotIndex root : roots) {
      const std::string& name = layer.slots[at(root)].name;
      if (root == table.input && row.first_layer == 0) {
        refuse("--placement",
               fmt::format("found recompute of \"{}\" of layer 0, wanted layers from 1 (the embedding is not run again)", name));
      }
      if (root == table.output && last == layers - 1) {
        refuse("--placement",
               fmt::format("found recompute of \"{}\" of the last layer, wanted layers to {} (the head reads it first)", name, layers - 2));
      }
    }
  }
}

}  // namespace

bool PlacementPolicy::offloads() const {
  return !offload.selection.names.empty() ||
         std::any_of(rows.begin(), rows.end(), [](const PlacementRow& row) { return row.action == PlacementAction::kOffload; });
}

bool PlacementPolicy::same_for_all_micro_batches() const {
  return std::all_of(rows.begin(), rows.end(),
                     [](const PlacementRow& row) { return row.first_micro_batch == 0 && row.last_micro_batch == -1; });
}

std::vector<RecomputeModule> recompute_modules() {
  // Megatron-LM@d98e8a64 --recompute-modules and which of them discard outputs: spec/placement_and_memory.md section 1. "act" is the dense
  // model's counterpart of moe_act: the activation's output is made again from the linear layer's.
  return {{"core_attn", false},   {"mlp", false},        {"layernorm", true},       {"act", true},
          {"moe_act", true},      {"moe", false},        {"shared_experts", false}, {"mla_up_proj", true},
          {"gdn_norm_out", true}, {"gdp_in_proj", true}, {"gdp_qkv", true},         {"mhc", true}};
}

std::vector<std::string> check_policy(const PlacementPolicy& policy, const LayerTemplate& layer, std::int64_t layers,
                                      AttentionKind attention) {
  const SlotTable table(layer);
  check_segments(policy, layers);
  const bool segmented = policy.segments != 0 || !policy.segment_sizes.empty() || policy.halving;
  const bool full = policy.granularity == RecomputeGranularity::kFull || segmented;
  if (full && !segmented && (policy.num_layers < 1 || policy.num_layers > layers)) {
    refuse("--recompute-num-layers", fmt::format("found {}, wanted 1 to {} (the layers)", policy.num_layers, layers));
  }
  if (full && std::any_of(policy.rows.begin(), policy.rows.end(),
                          [](const PlacementRow& row) { return row.action != PlacementAction::kOffload; })) {
    refuse("--placement", "found rows with full recompute, wanted --recompute none or selective, or rows that offload");
  }
  check_rows(policy, layer, table, layers);
  std::vector<std::string> warnings = check_offload(policy, layer, table, layers);
  if (policy.granularity != RecomputeGranularity::kSelective) return warnings;
  check_modules(policy, layer);
  const bool core_attention =
      policy.modules.empty() || std::find(policy.modules.begin(), policy.modules.end(), "core_attn") != policy.modules.end();
  if (core_attention && attention != AttentionKind::kUnfused) {
    std::int64_t dropped = 0, saved = 0;
    for (const SlotIndex root : slots_of_module(layer, table, {"core_attn", false})) dropped += layer.slots[at(root)].size.value;
    for (SlotIndex root = 0; at(root) < layer.slots.size(); ++root) saved += table.saved[at(root)] ? layer.slots[at(root)].size.value : 0;
    const double percent = saved == 0 ? 0.0 : 100.0 * static_cast<double>(dropped) / static_cast<double>(saved);
    warnings.push_back(
        fmt::format("--recompute selective: core_attn frees {:.1f} % of a layer's saved activations with a fused attention "
                    "kernel, which keeps no scores, and runs attention again",
                    percent));
  }
  return warnings;
}

}  // namespace stepsim
