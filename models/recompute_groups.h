// Which saved storages of one layer a selective policy drops and what is run again for them. A group is made again at one time, just before
// the first backward op that reads one of its storages. Knows no order of layers: recompute_policies.cc places the groups.
#pragma once

#include <string>
#include <vector>

#include "models/framework_preset.h"
#include "models/layer_stack.h"
#include "models/placement_table.h"

namespace stepsim {

struct RecomputeGroup {
  std::vector<SlotIndex> dropped;  // roots, ascending; the layer's input stands for the boundary to the layer before
  std::vector<std::int32_t> ops;   // forward ops that run again in any case, ascending; empty: only what makes `dropped`
};

// Roots that the module's recomputation frees, ascending: for one that discards outputs, its saved outputs; for an ordinary one, what only
// the module itself saves (an output that a later op reads is kept by that op).
std::vector<SlotIndex> slots_of_module(const LayerTemplate&, const SlotTable&, const RecomputeModule&);

// The groups of every layer under kNone or kSelective with rows; layers of one kind with equal groups share a list. Every dropped root of a
// layer is in exactly one group.
struct LayerGroups {
  std::vector<std::vector<RecomputeGroup>> lists;
  std::vector<std::int32_t> list_of;  // by layer
  const std::vector<RecomputeGroup>& of(std::int32_t layer) const {
    return lists[static_cast<std::size_t>(list_of[static_cast<std::size_t>(layer)])];
  }
};

// The time grows with the rows and with the layers, not with their product.
LayerGroups groups_of_layers(const LayerStack&, const PlacementPolicy&, const FrameworkPreset&);

}  // namespace stepsim
