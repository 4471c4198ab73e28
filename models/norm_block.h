// LayerNorm or RMSNorm over the last dimension, forward and backward. Knows no block around it.
#pragma once

#include <string>

#include "models/template_builder.h"

namespace stepsim {

struct NormBlock {
  std::string name;
  SlotIndex input = kNoSlot, output = kNoSlot;
  SlotIndex statistics = kNoSlot;  // fp32 per token; none where the framework's accounting has none
  Weight weight, bias;
  SlotIndex copy = kNoSlot;        // the input in fp32, of an eager one or where the preset casts it; none in backward where it runs again
  SlotIndex normalised = kNoSlot;  // of an eager one: what the weight multiplies
};

// `output_module`: whose policies drop the output. The ops have no module: such a policy discards outputs and keeps the statistics that the
// same op makes.
NormBlock norm_forward(TemplateBuilder&, const std::string& name, const std::string& output_module, SlotIndex input);

// Returns the gradient of the norm's input, without the residual's.
SlotIndex norm_backward(TemplateBuilder&, const NormBlock&, SlotIndex output_gradient);

}  // namespace stepsim
