// Matrix products, by CBLAS on one thread.
#pragma once

#include "hardware/backends/kernel_calls.h"

namespace stepsim::cpu {

void run(const ProductCall& call, const StorageAddresses& addresses);

}  // namespace stepsim::cpu
