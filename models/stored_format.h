// Saved tensors that are kept in fewer bits than they are computed in: cast behind their making, cast back before backward's first use.
#pragma once

#include <string>

#include "models/layer_template.h"

namespace stepsim {

// Whether the preset keeps this slot in another format.
bool is_stored_low(const FrameworkPreset&, const std::string& slot);

// Puts the casts of the preset's stored formats into a template; slots that backward does not read stay as they are.
void store_low(LayerTemplate& layer, const FrameworkPreset& framework);

// Slots of framework.kept_for_reruns live until the layer's backward ends and are of module kKeptModule; names of none are no slots.
void keep_for_reruns(LayerTemplate& layer, const FrameworkPreset& framework);

}  // namespace stepsim
