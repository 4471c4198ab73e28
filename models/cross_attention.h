// A decoder's attention over the encoder's output: queries of the decoder's tokens, keys and values of the encoder's, every query sees all
// keys (Megatron-LM attention.py CrossAttention). The sum over the tensor-parallel group, bias and residual come after it.
#pragma once

#include "models/core_attention.h"
#include "models/linear_block.h"
#include "models/template_builder.h"

namespace stepsim {

struct CrossAttention {
  ColumnInput input, memory;  // a norm's output; the encoder's output
  std::int64_t memory_tokens = 0;
  Linear query, key_value, projection;
  SlotIndex mixed_key = kNoSlot, mixed_value = kNoSlot;  // views of what key_value made
  CoreAttention core;
  SlotIndex output = kNoSlot;  // this device's partial sum
};

// `memory_shape`: what the device holds of the encoder's tokens.
CrossAttention cross_attention_forward(TemplateBuilder&, const ColumnInput& input, SlotIndex memory, const DeviceShape& memory_shape);

struct CrossGradients {
  SlotIndex input = kNoSlot, memory = kNoSlot;  // reduced over the group
};
// `output_gradient` is whole (gathered).
CrossGradients cross_attention_backward(TemplateBuilder&, const CrossAttention&, SlotIndex output_gradient);

}  // namespace stepsim
