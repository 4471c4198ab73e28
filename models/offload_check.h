// Offload policies that cannot be, with the flag that says so.
#pragma once

#include <string>
#include <vector>

#include "models/layer_stack.h"
#include "models/placement_table.h"

namespace stepsim {

// Unknown names (with the nearest), numbers outside their range, slices that are none: InputError "--flag: found X, wanted Y". Returns
// warnings: choices that have no effect beside others.
std::vector<std::string> check_offload(const PlacementPolicy&, const LayerStack&);

}  // namespace stepsim
