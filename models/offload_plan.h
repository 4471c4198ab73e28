// Puts the copies of an offload policy into a plan: where each is issued, where compute waits and lets go, where the tensor is copied back.
// Reads only the plan, whatever policy made it: what the plan drops is not moved, what it runs again is there in time for that.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/placement_plan.h"

namespace stepsim {

// A saved storage of one layer (of the chunk) that goes to the host, or the first `slices` of `of_slices` parts of it.
struct MovedTensor {
  std::int32_t layer = 0;
  SlotIndex root = kNoSlot;
  std::int32_t name = 0;  // index of its group's name in the policy (names, then rows)
  std::int32_t slices = 1, of_slices = 1;
};

// What the policy selects of what `plan` keeps until backward, in the order in which its copies out are issued. `stage` counts for
// less_per_stage.
std::vector<MovedTensor> moved_tensors(const PlacementPlan& plan, const LayerStack&, const PlacementPolicy&, std::int64_t stage);
inline std::vector<MovedTensor> moved_tensors(const PlacementPlan& plan, const LayerTemplate& layer, std::int64_t layers,
                                              const PlacementPolicy& policy, std::int64_t stage) {
  return moved_tensors(plan, LayerStack(layer, layers), policy, stage);
}

// The plan with copies. One that selects nothing is as it was.
PlacementPlan with_offload(PlacementPlan plan, const LayerStack&, const PlacementPolicy&, std::int64_t stage = 0);

}  // namespace stepsim
