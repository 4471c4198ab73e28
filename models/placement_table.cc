#include "models/placement_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "models/offload_check.h"
#include "models/placement_rows.h"
#include "models/recompute_groups.h"
#include "schema/nearest_name.h"
#include "sim/input_error.h"

namespace stepsim {

namespace {

bool has_module(const LayerTemplate& layer, const std::string& module) {
  const auto named = [&module](const auto& part) { return names_module(part.module, module); };
  return std::any_of(layer.forward.begin(), layer.forward.end(), named) || std::any_of(layer.slots.begin(), layer.slots.end(), named);
}

bool has_module(const LayerStack& stack, const std::string& module) {
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
    if (has_module(stack.kind(kind), module)) return true;
  }
  return false;
}

std::vector<std::string> modules_present(const LayerStack& stack) {
  std::vector<std::string> names;
  for (const RecomputeModule& module : recompute_modules()) {
    if (has_module(stack, module.name)) names.push_back(module.name);
  }
  return names;
}

void check_modules(const PlacementPolicy& policy, const LayerStack& stack) {
  std::vector<std::string> known;
  for (const RecomputeModule& module : recompute_modules()) known.push_back(module.name);
  const std::vector<std::string> present = modules_present(stack);
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

std::vector<std::string> row_names(const LayerStack& stack) {
  std::vector<std::string> names = modules_present(stack);
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
    const SlotTable& table = stack.kind_table(kind);
    for (SlotIndex root = 0; at(root) < table.root.size(); ++root) {
      const std::string& name = stack.kind(kind).slots[at(root)].name;
      const bool known = kind > 0 && std::find(names.begin(), names.end(), name) != names.end();
      if ((table.saved[at(root)] || root == table.output) && !known) names.push_back(name);
    }
  }
  return names;
}

// Of a slot by that name in a kind of layer where no row can say anything of it.
void check_row_slot(const std::string& name, const LayerTemplate& layer, const SlotTable& table) {
  for (SlotIndex slot = 0; at(slot) < layer.slots.size(); ++slot) {
    if (layer.slots[at(slot)].name != name) continue;
    const SlotIndex root = table.root[at(slot)];
    if (root != slot) {
      refuse("--placement",
             fmt::format("found \"{}\", a view whose dropping frees nothing, wanted its storage \"{}\"", name, layer.slots[at(root)].name));
    }
    if (layer.slots[at(slot)].kind == SlotKind::kShared) {
      refuse("--placement", fmt::format("found \"{}\", which other layers read too and is always kept, wanted another tensor", name));
    }
    refuse("--placement", fmt::format("found \"{}\", which backward does not read, wanted a saved tensor", name));
  }
}

// For a row that selects nothing in any kind of layer.
void check_row_name(const PlacementRow& row, const LayerStack& stack) {
  if (row.module_or_slot == "*") return;
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) check_row_slot(row.module_or_slot, stack.kind(kind), stack.kind_table(kind));
  const std::vector<std::string> names = row_names(stack);
  if (std::find(names.begin(), names.end(), row.module_or_slot) != names.end()) {
    refuse("--placement", fmt::format("found \"{}\", a module of which this layer saves nothing that {} could be said of, wanted another",
                                      row.module_or_slot, row.action == PlacementAction::kKeep ? "keep" : "recompute"));
  }
  refuse("--placement", fmt::format("found \"{}\", wanted \"*\", a module or a saved tensor of a layer{}", row.module_or_slot,
                                    suggestion(row.module_or_slot, names)));
}

// Inputs and outputs at the ends of the stack come from and go to what is not run again.
void check_ends(const PlacementRow& row, std::int64_t last, const LayerStack& stack, std::vector<RowSlots>& row_slots) {
  const auto has = [&](std::int64_t layer, SlotIndex root) {
    const std::vector<SlotIndex>& roots = row_slots[at(stack.kind_of(layer))].of(row.module_or_slot);
    return std::binary_search(roots.begin(), roots.end(), root);
  };
  const std::int64_t end = stack.layers() - 1;
  const SlotIndex input = stack.table(0).input, output = stack.table(end).output;
  if (row.first_layer == 0 && has(0, input)) {
    refuse("--placement", fmt::format("found recompute of \"{}\" of layer 0, wanted layers from 1 (the embedding is not run again)",
                                      stack.layer(0).slots[at(input)].name));
  }
  if (last == end && has(end, output)) {
    refuse("--placement", fmt::format("found recompute of \"{}\" of the last layer, wanted layers to {} (the head reads it first)",
                                      stack.layer(end).slots[at(output)].name, end - 1));
  }
}

void check_rows(const PlacementPolicy& policy, const LayerStack& stack) {
  if (policy.rows.size() > at(kMostPlacementRows)) {
    refuse("--placement", fmt::format("found {} rows, wanted at most {}", policy.rows.size(), kMostPlacementRows));
  }
  const std::int64_t layers = stack.layers();
  std::vector<RowSlots> row_slots;  // by kind
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) row_slots.emplace_back(stack.kind(kind), stack.kind_table(kind));
  for (const PlacementRow& row : policy.rows) {
    const std::int64_t last = row.last_layer == -1 ? layers - 1 : row.last_layer;
    if (row.first_layer < 0 || row.first_layer > last || last >= layers) {
      refuse("--placement", fmt::format("found layers {} to {}, wanted a range within 0 to {}", row.first_layer, last, layers - 1));
    }
    if (row.action == PlacementAction::kOffload) continue;
    const bool nothing =
        std::all_of(row_slots.begin(), row_slots.end(), [&](RowSlots& kind) { return kind.of(row.module_or_slot).empty(); });
    if (nothing) check_row_name(row, stack);
    if (row.action == PlacementAction::kRecompute) check_ends(row, last, stack, row_slots);
  }
}

// Rows of which no layer in their range has the tensor: of an expert's in dense layers.
void warn_of_idle_rows(const PlacementPolicy& policy, const LayerStack& stack, std::vector<std::string>& warnings) {
  if (stack.kinds() == 1 || policy.rows.empty()) return;
  std::vector<std::vector<std::int64_t>> before;  // by kind and layer: layers of the kind before it
  std::vector<RowSlots> row_slots;
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
    row_slots.emplace_back(stack.kind(kind), stack.kind_table(kind));
    before.emplace_back(1, 0);
    for (std::int64_t layer = 0; layer < stack.layers(); ++layer)
      before.back().push_back(before.back().back() + (stack.kind_of(layer) == kind));
  }
  for (const PlacementRow& row : policy.rows) {
    const auto first = static_cast<std::size_t>(row.first_layer);
    const auto end = static_cast<std::size_t>(row.last_layer == -1 ? stack.layers() : row.last_layer + 1);
    bool idle = true;
    for (std::size_t kind = 0; kind < before.size(); ++kind) {
      const bool selects = !row_slots[kind].of(row.module_or_slot, row.action == PlacementAction::kOffload).empty();
      idle = idle && !(selects && before[kind][end] > before[kind][first]);
    }
    if (!idle) continue;
    warnings.push_back(
        fmt::format("placement: no layer from {} to {} has \"{}\": its row has no effect", first, end - 1, row.module_or_slot));
    return;
  }
}

// A layer that makes what other layers read is run once: backward of those others needs it before its own re-run.
void check_shared(const PlacementPolicy& policy, bool full, bool segmented, const LayerStack& stack) {
  if (!full) return;
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
    const std::vector<bool>& shared = stack.kind_table(kind).shared;
    const auto found = std::find(shared.begin(), shared.end(), true);
    if (found == shared.end()) continue;
    std::int64_t layer = 0;
    while (layer < stack.layers() && stack.kind_of(layer) != kind) ++layer;
    const bool block = !segmented && policy.method == RecomputeMethod::kBlock;
    if (layer == stack.layers() || (block && policy.num_layers <= layer)) continue;
    const std::string& name = stack.kind(kind).slots[static_cast<std::size_t>(found - shared.begin())].name;
    const std::string wanted = layer == 0
                                   ? "wanted --recompute none or selective"
                                   : fmt::format("wanted --recompute selective, or --recompute-method block with at most {} layers", layer);
    refuse(segmented ? "--recompute-segments" : "--recompute",
           fmt::format("found full recompute of layer {}, which makes \"{}\" for other layers and cannot be run again, {}", layer, name,
                       wanted));
  }
}

// Of what all layers save, the part that recomputing core_attn frees.
double percent_of_core_attention(const LayerStack& stack) {
  double dropped = 0, saved = 0;
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
    const LayerTemplate& layer = stack.kind(kind);
    const SlotTable& table = stack.kind_table(kind);
    const double layers = stack.kinds() == 1 ? 1 : static_cast<double>(stack.layers_of_kinds()[at(kind)]);
    const auto add = [&](double& sum, SlotIndex root) { sum += layers * static_cast<double>(layer.slots[at(root)].size.value); };
    for (const SlotIndex root : slots_of_module(layer, table, {"core_attn", false})) add(dropped, root);
    for (SlotIndex root = 0; at(root) < layer.slots.size(); ++root) {
      if (table.saved[at(root)]) add(saved, root);
    }
  }
  return saved == 0 ? 0.0 : 100.0 * dropped / saved;
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

std::vector<std::string> check_policy(const PlacementPolicy& policy, const LayerStack& stack, AttentionKind attention) {
  const std::int64_t layers = stack.layers();
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
  check_shared(policy, full, segmented, stack);
  check_rows(policy, stack);
  std::vector<std::string> warnings = check_offload(policy, stack);
  warn_of_idle_rows(policy, stack, warnings);
  if (policy.granularity != RecomputeGranularity::kSelective) return warnings;
  check_modules(policy, stack);
  const bool core_attention =
      policy.modules.empty() || std::find(policy.modules.begin(), policy.modules.end(), "core_attn") != policy.modules.end();
  if (core_attention && attention != AttentionKind::kUnfused) {
    warnings.push_back(
        fmt::format("--recompute selective: core_attn frees {:.1f} % of a layer's saved activations with a fused attention "
                    "kernel, which keeps no scores, and runs attention again",
                    percent_of_core_attention(stack)));
  }
  return warnings;
}

}  // namespace stepsim
