// The field's name of a number format.
#pragma once

#include <string>

#include "sim/op_work.h"

namespace stepsim {

std::string dtype_name(DType dtype);  // "bf16", "fp8", "int64"

}  // namespace stepsim
