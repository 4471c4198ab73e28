// Dropout with masks of a byte an element.
#pragma once

#include "hardware/backends/kernel_calls.h"

namespace stepsim::cpu {

void run(const DropoutCall& call, const StorageAddresses& addresses);
void run(const DropoutBackwardCall& call, const StorageAddresses& addresses);

}  // namespace stepsim::cpu
