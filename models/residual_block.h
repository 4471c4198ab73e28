// output = residual + dropout(branch + biases): Megatron-LM's bias-dropout-add, or the plain add of models without bias and dropout.
#pragma once

#include <string>
#include <vector>

#include "models/template_builder.h"

namespace stepsim {

struct ResidualBlock {
  std::string name;  // "attention residual"
  std::vector<Weight> biases;
  SlotIndex output = kNoSlot;
  SlotIndex mask = kNoSlot;
};

// Biases that the model lacks are left out.
ResidualBlock residual_forward(TemplateBuilder&, const std::string& name, const std::string& output_name, SlotIndex branch,
                               SlotIndex residual, const std::vector<Weight>& biases);

// Returns the gradient of the branch: `output_gradient` itself where there is no dropout.
SlotIndex residual_backward(TemplateBuilder&, const ResidualBlock&, SlotIndex output_gradient);

}  // namespace stepsim
