// Layouts of heads.
#pragma once

#include "hardware/backends/kernel_calls.h"

namespace stepsim::cpu {

void run(const HeadsToTokensCall& call, const StorageAddresses& addresses);
void run(const JoinHeadsCall& call, const StorageAddresses& addresses);
void run(const RepeatHeadsCall& call, const StorageAddresses& addresses);
void run(const RepeatHeadsBackwardCall& call, const StorageAddresses& addresses);

}  // namespace stepsim::cpu
