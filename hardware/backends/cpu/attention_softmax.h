// Softmax of attention scores.
#pragma once

#include "hardware/backends/kernel_calls.h"

namespace stepsim::cpu {

void run(const AttentionSoftmaxCall& call, const StorageAddresses& addresses);
void run(const AttentionSoftmaxBackwardCall& call, const StorageAddresses& addresses);

}  // namespace stepsim::cpu
