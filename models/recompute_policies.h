// Plans of the two families of policies: whole layers run again from a stored input (segments), and chosen storages made again (groups).
#pragma once

#include <vector>

#include "models/placement_plan.h"

namespace stepsim {

// The first layers in segments of these sizes, each run again from its input; layers after the last segment keep everything.
// With framework.stops_after_last_saved a segment's re-run ends with the last storage that backward reads.
PlacementPlan segment_plan(const LayerStack&, const std::vector<std::int64_t>& sizes, const FrameworkPreset&);

// Chen et al. 2016 (arXiv 1604.06174 section 4.3) with k = 1: forward to the middle, keeping only the middle's input; the right half, then
// the left half in the same way. The last layer is not run again: backward starts there. At most floor(log2 layers) + 1 stored inputs at a
// time; for layers = 2^k the layers run again layers k / 2 times.
PlacementPlan halving_plan(const LayerStack&, const FrameworkPreset&);

// kNone and kSelective with rows. A group is made again just before the first backward op that reads one of its storages, from what is
// there; storages of other groups that are made on the way stay until backward has read them.
PlacementPlan group_plan(const LayerStack&, const PlacementPolicy&, const FrameworkPreset&);

}  // namespace stepsim
