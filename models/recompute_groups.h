// Which saved storages of one layer a selective policy drops and what is run again for them. A group is made again at one time, just before
// the first backward op that reads one of its storages. Knows no order of layers: recompute_policies.cc places the groups.
#pragma once

#include <vector>

#include "models/framework_preset.h"
#include "models/layer_template.h"
#include "models/placement_table.h"
#include "models/slot_table.h"

namespace stepsim {

struct RecomputeGroup {
  std::vector<SlotIndex> dropped;  // roots, ascending; the layer's input stands for the boundary to the layer before
  std::vector<std::int32_t> ops;   // forward ops that run again in any case, ascending; empty: only what makes `dropped`
};

// Roots that the module's recomputation frees, ascending: for one that discards outputs, its saved outputs; for an ordinary one, what only
// the module itself saves (an output that a later op reads is kept by that op).
std::vector<SlotIndex> slots_of_module(const LayerTemplate&, const SlotTable&, const RecomputeModule&);

// Saved roots that a row's name selects in a layer, ascending; without the layer's input and output for "*" and modules.
std::vector<SlotIndex> slots_of_row(const LayerTemplate&, const SlotTable&, const std::string& module_or_slot);

// The groups of layer `layer` of `layers` under kNone or kSelective with rows. Every dropped root is in exactly one group.
std::vector<RecomputeGroup> groups_of_layer(const LayerTemplate&, const SlotTable&, const PlacementPolicy&, const FrameworkPreset&,
                                            std::int64_t layer, std::int64_t layers);

// Layers at which groups_of_layer may change, ascending, the first 0.
std::vector<std::int64_t> group_breaks(const PlacementPolicy&, std::int64_t layers);

}  // namespace stepsim
