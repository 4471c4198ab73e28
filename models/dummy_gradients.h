// Tensors that frameworks hand to autograd in place of gradients which their products have already added to the buffer.
#pragma once

#include "models/step_memory.h"

namespace stepsim {

// Transformer Engine keeps one of each shape of the stage's linear layers, in the weights' dtype, from the first backward pass on
// (TransformerEngine 2.11 pytorch/module/base.py get_dummy_wgrad). 0 where the framework keeps none.
Bytes kept_dummy_gradients(const StepMemoryContext& context, std::int32_t stage);

}  // namespace stepsim
