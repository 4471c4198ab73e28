// The router of a mixture of experts: scores of all experts for each token, the selection of some, their probabilities. It works on this
// device's part of the tokens with weights that every rank has, in 16 bits with fp32 results (Megatron-LM moe/router.py,
// RouterGatingLinearFunction).
#pragma once

#include "models/linear_block.h"
#include "models/template_builder.h"

namespace stepsim {

struct Router {
  SlotIndex input = kNoSlot;
  Linear linear;
  SlotIndex scores = kNoSlot;         // fp32, all experts
  SlotIndex map = kNoSlot;            // a byte for each token and expert
  SlotIndex probabilities = kNoSlot;  // fp32, all experts, 0 where the token does not go
};

Router router_forward(TemplateBuilder&, SlotIndex input);

// Returns the gradient of the input.
SlotIndex router_backward(TemplateBuilder&, const Router&, SlotIndex probability_gradient);

}  // namespace stepsim
