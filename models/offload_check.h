// Offload policies that cannot be, with the flag that says so.
#pragma once

#include <string>
#include <vector>

#include "models/layer_template.h"
#include "models/placement_table.h"
#include "models/slot_table.h"

namespace stepsim {

// Unknown names (with the nearest), numbers outside their range, slices that are none: InputError "--flag: found X, wanted Y". Returns
// warnings: choices that have no effect beside others.
std::vector<std::string> check_offload(const PlacementPolicy&, const LayerTemplate&, const SlotTable&, std::int64_t layers);

// Names that a row or --offload-modules may use: modules, then the saved tensors that can go.
std::vector<std::string> offload_names(const LayerTemplate&, const SlotTable&);

}  // namespace stepsim
