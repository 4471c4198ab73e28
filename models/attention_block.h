// The attention half of a layer: qkv projection, norms of q and k, rotary embedding, core attention, output projection. Its input is a
// norm's output; the sum over the tensor-parallel group, bias and residual come after it.
#pragma once

#include <vector>

#include "models/core_attention.h"
#include "models/linear_block.h"
#include "models/template_builder.h"

namespace stepsim {

// What core attention reads.
struct CoreHeads {
  SlotIndex query = kNoSlot, key = kNoSlot, value = kNoSlot;
};

struct AttentionBlock {
  ColumnInput input;
  Linear qkv, projection;
  std::vector<Linear> separate;  // query, key and value in place of qkv, where the framework has three products
  SlotIndex mixed = kNoSlot;     // qkv projection with bias; q, k, v are views of it or made from it
  SlotIndex mixed_query = kNoSlot, mixed_key = kNoSlot, mixed_value = kNoSlot;
  bool rotary = false;
  Weight query_norm, key_norm, query_norm_bias, key_norm_bias;
  SlotIndex norm_statistics = kNoSlot;
  CoreAttention core;
  SlotIndex output = kNoSlot;  // this device's partial sum
};

AttentionBlock attention_forward(TemplateBuilder&, const ColumnInput& input, const LayerKind& kind);

// Makes `pass` a rotation of built-up kernels where the framework has no fused one, `rotated` bytes of q and k together. Eager rotation of
// x is x * cos + cat(-x2, x1) * sin: negate half, concatenate, two products, one sum. Beyond the one read and one write of a fused kernel:
// reads 0.5 + 1 + 1 + 1 + 2 - 1 = 4.5, writes 0.5 + 1 + 1 + 1 + 1 - 1 = 3.5 of q and k.
void eager_rotary(TemplateBuilder&, KernelPass& pass, Bytes rotated);

// Adds to the backward pass of the norms of q and k what not every model or framework has: gradients of biases, saved statistics.
void add_qk_norm_operands(const AttentionBlock&, KernelPass& pass);

// `output_gradient` is whole (gathered); `partial` is an input gradient of a parallel branch to add (kNoSlot: none). Returns the gradient
// of the input, reduced over the group.
SlotIndex attention_backward(TemplateBuilder&, const AttentionBlock&, SlotIndex output_gradient, SlotIndex partial);

}  // namespace stepsim
