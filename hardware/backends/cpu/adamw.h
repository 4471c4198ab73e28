// The optimizer.
#pragma once

#include "hardware/backends/kernel_calls.h"

namespace stepsim::cpu {

void run(const AdamWCall& call, const StorageAddresses& addresses, const AdamWSettings& settings, std::int64_t step);

}  // namespace stepsim::cpu
