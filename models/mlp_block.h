// The MLP half of a layer: one or two column-parallel products, the activation, the row-parallel product. Its input is a norm's output; the
// sum over the tensor-parallel group, bias and residual come after it.
#pragma once

#include <vector>

#include "models/linear_block.h"
#include "models/template_builder.h"

namespace stepsim {

struct MlpBlock {
  ColumnInput input;
  std::vector<Linear> first;               // fc1; or gate and up in one product or in two
  std::vector<SlotIndex> first_outputs;    // what the activation reads
  SlotIndex gate = kNoSlot, up = kNoSlot;  // gated: slots or views of the joint one
  SlotIndex activated_gate = kNoSlot;      // eager gated activation saves it for the product's backward
  SlotIndex activation_output = kNoSlot;
  Linear second;
  SlotIndex output = kNoSlot;  // this device's partial sum
};

MlpBlock mlp_forward(TemplateBuilder&, const ColumnInput& input);

// `output_gradient` is whole (gathered). Returns the gradient of the input, reduced over the group if `reduce`.
SlotIndex mlp_backward(TemplateBuilder&, const MlpBlock&, SlotIndex output_gradient, bool reduce);

}  // namespace stepsim
