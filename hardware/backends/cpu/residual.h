// Residual additions, with bias and dropout.
#pragma once

#include "hardware/backends/kernel_calls.h"

namespace stepsim::cpu {

void run(const ResidualCall& call, const StorageAddresses& addresses);
void run(const ResidualBackwardCall& call, const StorageAddresses& addresses);

}  // namespace stepsim::cpu
