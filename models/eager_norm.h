// RMSNorm as PyTorch composes it from several kernels around an fp32 copy of its input (aten rms_norm before 2.9; Hugging Face's modules).
#pragma once

#include <string>

#include "models/norm_block.h"
#include "models/template_builder.h"

namespace stepsim {

// Whether the framework's norms are made so: LayerNorm is one kernel in PyTorch too.
bool is_eager_norm(const TemplateContext& context);

// As norm_forward() and norm_backward(), whose block's name, input and weight are given.
void eager_norm_forward(TemplateBuilder& builder, NormBlock& norm, const std::string& output_module);
SlotIndex eager_norm_backward(TemplateBuilder& builder, const NormBlock& norm, SlotIndex output_gradient);

}  // namespace stepsim
