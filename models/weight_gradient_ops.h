// Backward ops of a template that only weight gradients depend on: they may run later, in a pass of their own.
#pragma once

#include <vector>

#include "models/template_stamp.h"

namespace stepsim {

// By backward op.
std::vector<bool> weight_gradient_ops(const TemplateStamp& stamp);

}  // namespace stepsim
