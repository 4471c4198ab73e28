// Vocabulary-parallel cross entropy.
#pragma once

#include "hardware/backends/kernel_calls.h"

namespace stepsim::cpu {

void run(const LossMaximumCall& call, const StorageAddresses& addresses);
void run(const TargetMaskCall& call, const StorageAddresses& addresses);
void run(const LossNumeratorCall& call, const StorageAddresses& addresses);
void run(const LossCall& call, const StorageAddresses& addresses);
void run(const LossBackwardCall& call, const StorageAddresses& addresses);

}  // namespace stepsim::cpu
