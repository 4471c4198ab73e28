// Linear layers on one device: the three matrix products, and the collectives of column- and row-parallel layers with or without sequence
// parallelism (Megatron-LM's f, f-bar, g, g-bar: arXiv 2205.05198 section 4.2.2). Knows no block that uses them.
//
// Below 16 bits Transformer Engine casts this device's part before a gather moves it: of a column-parallel layer's input, whose part's cast
// is what stays (module/layernorm_linear.py: ln_out is quantised, then gather_along_first_dim), and of a row-parallel layer's output
// gradient (module/base.py grad_output_preprocess: gather_along_first_dim with the quantizer, or fill_userbuffers_buffer_for_all_gather): 8
// bits move, not
// 16. Blocks with scales move twice, by rows and by columns (distributed.py _all_gather_mxfp8); tensor-wide scales once, and where products
// read one layout only the whole is transposed (_all_gather_fp8).
//
// DTensor (FrameworkPreset::copies_token_shards): gathered tokens are copied into their order, scattered ones by ranks first; of layers in
// 8 bits with tensor-wide scales this device's part is cast, gathered and saved in 8 bits, in forward and of output gradients in backward
// (torchao's Float8ColwiseParallel and its like).
#pragma once

#include <span>
#include <string>

#include "models/template_builder.h"

namespace stepsim {

struct Linear {  // this device's part: outputs x inputs, of each of `groups` experts
  std::string name, module;
  std::int64_t inputs = 0, outputs = 0;
  std::int64_t rows = 0;      // of the input; all experts' rows together
  std::int64_t groups = 1;    // 1: no experts
  std::int8_t in_flight = 0;  // 0: one kernel for all groups; n: a kernel for each group's product, n at a time, and for each's cast
  Weight weight, bias;
  bool low_precision = true;            // it runs in the recipe's precision where that is below 16 bits (heads and routers do not)
  Weight lora_down, lora_up;            // of LoRA; absent where it is no target
  SlotIndex lora_inner = kNoSlot;       // the down product's output
  SlotIndex cast_input = kNoSlot;       // below 16 bits: what the product reads,
  SlotIndex quantised_input = kNoSlot;  // and what the weight gradient reads; made by linear_forward
};
// `rows` is the template's tokens.
Linear make_linear(TemplateBuilder&, const std::string& name, const std::string& module, std::int64_t inputs, std::int64_t outputs,
                   bool bias);
// One product a local expert, `rows` rows together.
Linear make_expert_linear(TemplateBuilder&, const std::string& name, const std::string& module, std::int64_t inputs, std::int64_t outputs,
                          std::int64_t rows, bool bias);

// output = input weight^T, without the bias; with LoRA's branch, and below 16 bits with the cast of the input (`cast`: of another layer
// that reads the same input and has cast it; null: none).
void linear_forward(TemplateBuilder&, Linear&, SlotIndex input, SlotIndex output, const Linear* cast = nullptr);

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

// The reverse of reduced_output: the whole output gradient (gathered under sequence parallelism, otherwise itself), below 16 bits where
// Transformer Engine gathers it so. For row_backward alone.
SlotIndex gathered_gradient(TemplateBuilder&, const std::string& name, const std::string& module, SlotIndex local);

// Input and weight gradient of a row-parallel layer; returns the input gradient.
SlotIndex row_backward(TemplateBuilder&, const Linear&, SlotIndex input, SlotIndex output_gradient);

// The bias's gradient as a kernel of its own, of the linear's module; nothing without a bias.
void bias_backward(TemplateBuilder&, const Linear&, SlotIndex output_gradient);

}  // namespace stepsim
