// An MLP: one or two column-parallel products, the activation, the row-parallel product: the half of a dense layer, a mixture's shared
// experts, or its routed ones (a product for each, over rows that were permuted). Its input is a norm's output; sums over the
// tensor-parallel group, bias and residual come after it.
//
// fused_expert_mlp (Transformer Engine's op fuser, ops/fused/forward_grouped_mlp.py, ForwardGroupedMLP_CuTeGEMMSwiGLU_MXFP8 and its
// backward; MXFP8 alone): the first grouped product's end makes the activation, scales it by the probabilities and casts it by rows and by
// columns; that of the second's input gradient makes the gradient of the first's output and casts it. What they write beside their own
// result, and in backward the saved output that they read, are passes of their own here, without the reads and writes of the 16-bit tensors
// between, which are not made. Not modelled: such writes hidden behind the products.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/eager_expert_activation.h"
#include "models/linear_block.h"
#include "models/template_builder.h"

namespace stepsim {

// Which MLP it is.
struct MlpForm {
  std::string prefix;                 // of the names of slots and ops: "", "shared experts ", "experts "
  std::string module;                 // of its ops and of what they save
  std::string activation_module;      // of the activation's output: what policies that make it again drop
  std::int64_t ffn = 0;               // on this device
  std::int64_t rows = 0;              // of the input
  std::int64_t experts = 0;           // routed ones on this device; 0: it is none of them
  bool bias = false;                  // of either product
  SlotIndex probabilities = kNoSlot;  // fp32 by row: they scale what the last product reads
};
MlpForm dense_mlp(const TemplateBuilder&);

struct MlpBlock {
  MlpForm form;
  ColumnInput input;
  std::vector<Linear> first;               // fc1; or gate and up in one product or in two
  std::vector<SlotIndex> first_outputs;    // what the activation reads
  SlotIndex gate = kNoSlot, up = kNoSlot;  // gated: slots or views of the joint one
  SlotIndex activated_gate = kNoSlot;      // eager gated activation saves it for the product's backward
  SlotIndex activation_output = kNoSlot;
  SlotIndex weighted = kNoSlot;           // its product with the probabilities, where that is a kernel of its own
  std::optional<ExpertActivation> eager;  // of routed experts, where the framework runs it kernel by kernel
  bool in_products = false;               // of routed experts: activation, probabilities and casts ride on the products
  Linear second;
  SlotIndex output = kNoSlot;  // this device's partial sum
};

MlpBlock mlp_forward(TemplateBuilder&, const ColumnInput& input);  // of a dense layer
// Routed experts have their last bias added, where there is one; elsewhere it comes after the sum over the group.
MlpBlock mlp_forward(TemplateBuilder&, const MlpForm&, const ColumnInput& input);

// `output_gradient` is whole (gathered). Returns the gradient of the input, reduced over the group if `reduce`.
SlotIndex mlp_backward(TemplateBuilder&, const MlpBlock&, SlotIndex output_gradient, bool reduce);

struct ExpertGradients {
  SlotIndex input = kNoSlot;
  SlotIndex probabilities = kNoSlot;  // none where they scale nothing here
};
// Of routed experts.
ExpertGradients expert_mlp_backward(TemplateBuilder&, const MlpBlock&, SlotIndex output_gradient);

}  // namespace stepsim
