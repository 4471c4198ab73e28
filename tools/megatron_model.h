// Megatron-LM's arguments as a model's dimensions. Knows no layout and no framework.
#pragma once

#include "models/model_spec.h"
#include "tools/megatron_run.h"

namespace stepsim {

// InputError with the arguments' place.
ModelSpec megatron_model(const MegatronRun& run);

// Dropout of hidden states, and of attention where it is another one. Megatron-LM's default of both is 0.1 (arguments.py).
inline constexpr double kMegatronDropout = 0.1;

}  // namespace stepsim
