// The activation of routed experts as Megatron-LM runs it without bias_activation_fusion, kernel by kernel (megatron/core/transformer/moe/
// experts.py, TEGroupedMLP.forward, bias_act_func): gpt-oss's clamped SwiGLU,
//   gate, up = chunk(x);  gate = gate.clamp(max);  up = up.clamp(-max, max);  y = quick_gelu(gate) * (up + 1);  y = (y *
//   probabilities).to(bf16)
// and the bias of the experts' last product (_apply_bias): (t + b * p), concatenated, in fp32, then .to(bf16). quick_gelu is compiled
// (fusions/fused_bias_geglu.py, @jit_fuser): one kernel. Autograd keeps the factors of each product, quick_gelu's input and the product of
// fc1; clamp's backward compares that anew (torch derivatives.yaml clamp_backward: where((x >= min).logical_and_(x <= max), gradient, 0)).
// 7 kernels forward and 15 backward, 4 and 7 of the bias. Not modelled: _apply_bias launches its first two kernels once an expert.
#pragma once

#include <string>

#include "models/template_builder.h"

namespace stepsim {

struct ExpertActivation {
  std::string prefix, module, activation_module;
  std::int64_t rows = 0, ffn = 0;
  SlotIndex joint = kNoSlot, gate = kNoSlot, up = kNoSlot;  // joint: fc1's output, of which gate and up are views; none: two products
  SlotIndex probabilities = kNoSlot;                        // none: they scale nothing here
  // Made in forward:
  SlotIndex clamped_gate = kNoSlot, activated_gate = kNoSlot, offset_up = kNoSlot;
  SlotIndex product = kNoSlot;  // of both, before the probabilities
  SlotIndex output = kNoSlot;   // what the last product reads
};

void eager_activation_forward(TemplateBuilder&, ExpertActivation&);

struct ExpertActivationGradients {
  SlotIndex joint = kNoSlot, gate = kNoSlot, up = kNoSlot;  // joint or both others
  SlotIndex probabilities = kNoSlot;
};
ExpertActivationGradients eager_activation_backward(TemplateBuilder&, const ExpertActivation&, SlotIndex output_gradient);

// Of the experts' last product.
struct ExpertBias {
  std::string name, module;  // "experts down"
  Weight bias;
  SlotIndex probabilities = kNoSlot;  // by row: they scale the bias
};
// Returns the product with the bias.
SlotIndex eager_bias_forward(TemplateBuilder&, const ExpertBias&, SlotIndex product);
struct ExpertBiasGradients {
  SlotIndex product = kNoSlot;
  SlotIndex probabilities = kNoSlot;  // to be added to the activation's
};
ExpertBiasGradients eager_bias_backward(TemplateBuilder&, const ExpertBias&, SlotIndex output_gradient);

}  // namespace stepsim
