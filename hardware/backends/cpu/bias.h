// Biases, and sums over rows.
#pragma once

#include "hardware/backends/kernel_calls.h"

namespace stepsim::cpu {

void run(const BiasCall& call, const StorageAddresses& addresses);
void run(const BiasGradientCall& call, const StorageAddresses& addresses);

}  // namespace stepsim::cpu
