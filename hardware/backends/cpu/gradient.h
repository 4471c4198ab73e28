// The norm of all gradients, and clipping by it.
#pragma once

#include "hardware/backends/kernel_calls.h"

namespace stepsim::cpu {

double squared_norm(const GradientNormCall& call, const StorageAddresses& addresses);
void clip(const GradientClipCall& call, const StorageAddresses& addresses, double norm);

}  // namespace stepsim::cpu
