// Kernels of one pass over their operands.
#pragma once

#include "hardware/backends/kernel_calls.h"

namespace stepsim::cpu {

void run(const AddCall& call, const StorageAddresses& addresses);
void run(const ActivationCall& call, const StorageAddresses& addresses);
void run(const ActivationBackwardCall& call, const StorageAddresses& addresses);
void run(const GateProductCall& call, const StorageAddresses& addresses);
void run(const GateProductBackwardCall& call, const StorageAddresses& addresses);

}  // namespace stepsim::cpu
