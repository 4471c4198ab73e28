// Linear layers on one device: the three matrix products, and the collectives of column- and row-parallel layers with or without sequence
// parallelism (Megatron-LM's f, f-bar, g, g-bar: arXiv 2205.05198 section 4.2.2). Knows no block that uses them.
#pragma once

#include <span>
#include <string>

#include "models/template_builder.h"

namespace stepsim {

struct Linear {  // this device's part: outputs x inputs
  std::string name, module;
  std::int64_t inputs = 0, outputs = 0;
  Weight weight, bias;
};
Linear make_linear(TemplateBuilder&, const std::string& name, const std::string& module, std::int64_t inputs, std::int64_t outputs,
                   bool bias);

// output = input weight^T over `tokens` rows, without the bias.
void linear_forward(TemplateBuilder&, const Linear&, SlotIndex input, SlotIndex output);

// What a column-parallel layer multiplies (the gathered input under sequence parallelism) and what it keeps for its weight gradient.
struct ColumnInput {
  std::string name;
  SlotIndex product = kNoSlot;  // read in forward
  SlotIndex saved = kNoSlot;    // read in backward; this device's part where it is gathered again
  bool gathered_again = false;
};
ColumnInput gathered_input(TemplateBuilder&, const std::string& name, SlotIndex local, const std::string& module);

struct ColumnGradient {
  const Linear* linear = nullptr;
  SlotIndex output_gradient = kNoSlot;
};
// Input and weight gradients of column-parallel layers that share an input; `partial` (kNoSlot: none) is an input gradient to add. Returns
// the input gradient, reduced over the group (scattered under sequence parallelism) if `reduce`, else this device's sum.
SlotIndex column_backward(TemplateBuilder&, const ColumnInput& input, std::span<const ColumnGradient> gradients, SlotIndex partial,
                          bool reduce);

// The sum over the group of what a row-parallel layer made: all-reduced in place, or scattered under sequence parallelism.
SlotIndex reduced_output(TemplateBuilder&, const std::string& name, const std::string& module, SlotIndex partial);

// The reverse of reduced_output: the whole output gradient (gathered under sequence parallelism, otherwise itself).
SlotIndex gathered_gradient(TemplateBuilder&, const std::string& name, const std::string& module, SlotIndex local);

// Input and weight gradient of a row-parallel layer; returns the input gradient.
SlotIndex row_backward(TemplateBuilder&, const Linear&, SlotIndex input, SlotIndex output_gradient);

}  // namespace stepsim
