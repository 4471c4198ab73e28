// LayerNorm and RMSNorm. Sums of a row are taken in fp64.
#pragma once

#include "hardware/backends/kernel_calls.h"

namespace stepsim::cpu {

void run(const NormCall& call, const StorageAddresses& addresses);
void run(const NormBackwardCall& call, const StorageAddresses& addresses);
void run(const NormWeightGradientCall& call, const StorageAddresses& addresses);

}  // namespace stepsim::cpu
