// The fields of a Framework message (framework.proto) and where each goes in a FrameworkPreset. Knows no catalog.
#pragma once

#include <functional>
#include <string>

#include "models/framework_preset.h"
#include "sim/input_error.h"

namespace stepsim {

namespace files {
class Framework;
}

// Where a field of the message stands, for errors.
using PlaceOfField = std::function<SourceLocation(const std::string& field)>;

// InputError for a value out of range among those that are set.
void check_framework_fields(const files::Framework&, const PlaceOfField&);

// The first field that every preset has and this message has not; "" if it is complete. name, version, source, base and stored are not
// among them.
std::string missing_framework_field(const files::Framework&);

// Of a complete message with checked values.
FrameworkPreset preset_of_fields(const files::Framework&);

}  // namespace stepsim
