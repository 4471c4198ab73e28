// Where backward ends when nothing before the layers is trained.
#pragma once

#include "models/step_builder.h"

namespace stepsim {

// The model's first layer gets a kind of its own that makes no gradient of its input, unless the embedding is trained, or the layer is run
// again from its input: a checkpoint's input must require a gradient, or nothing behind it would have one (PEFT
// enable_input_require_grads, Megatron-Bridge's LoRA with recompute).
void end_backward_at_first_layer(StepTemplates& templates, const StepRequest& request);

}  // namespace stepsim
