// Machine files as text: read before they are written, and facts as the lines that say them.
#pragma once

#include <string>

#include "hardware/machine_spec.h"

namespace stepsim {

// As load_gpu reads a file of that text. `file` is only named in errors.
GpuSpec gpu_from_text(const std::string& name, const std::string& file, const std::string& text);

// The lines of a machine file that set the fields, in the order of the schema. InputError ("--set") for an unknown path.
std::string machine_fields_text(FieldValues facts);

}  // namespace stepsim
