// A mixture of experts in place of an MLP: router, dispatch, a product for each of this rank's experts, combination, shared experts beside
// them. From a norm's output to this device's part of the sum; it has its own collectives. Shared experts run before the routed ones on the
// same stream (Megatron-LM without --moe-shared-expert-overlap).
//
// The router's probabilities scale what the experts' last products read: weighted SwiGLU saves a probability a row, other activations their
// product too where the framework copies_expert_probabilities. Where it unpermutes_with_probabilities they scale the experts' outputs on
// the way back, which are saved for it.
//
// Modules: moe is the routed way with its router, moe_act the activations' outputs, shared_experts the shared ones.
#pragma once

#include "models/experts_block_dispatch.h"
#include "models/experts_block_router.h"
#include "models/mlp_block.h"
#include "models/template_builder.h"

namespace stepsim {

struct SharedExperts {
  MlpBlock mlp;
  SlotIndex output = kNoSlot;  // this device's part, before the gate
  Linear gate;                 // no weight: the model has none
  SlotIndex logits = kNoSlot;  // of the gate
};

struct ExpertsBlock {
  bool probabilities_by_row = false;  // within the experts
  Dispatch dispatch;
  MlpBlock mlp;
  bool has_shared = false;
  SharedExperts shared;
  SlotIndex input = kNoSlot, output = kNoSlot;
};

ExpertsBlock experts_forward(TemplateBuilder&, SlotIndex input);

// Returns the gradient of the input, this device's part of the tokens.
SlotIndex experts_backward(TemplateBuilder&, const ExpertsBlock&, SlotIndex output_gradient);

}  // namespace stepsim
