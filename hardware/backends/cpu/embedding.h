// Rows of tables: tokens and positions. Gradients are added token by token, in their order.
#pragma once

#include "hardware/backends/kernel_calls.h"

namespace stepsim::cpu {

void run(const EmbeddingCall& call, const StorageAddresses& addresses);
void run(const EmbeddingGradientCall& call, const StorageAddresses& addresses);
void run(const PositionCall& call, const StorageAddresses& addresses);
void run(const PositionGradientCall& call, const StorageAddresses& addresses);

}  // namespace stepsim::cpu
