// Attention proper, from query, key and value to context: unfused (scores in memory, fused or eager softmax, dropout) or one kernel that
// keeps log-sum-exps. Forward and backward. Knows neither the projections around it nor rotary embedding.
#pragma once

#include <optional>

#include "models/template_builder.h"

namespace stepsim {

inline constexpr const char* kCoreAttention = "core_attn";

struct CoreAttention {
  SlotIndex query = kNoSlot, key = kNoSlot, value = kNoSlot;  // as the products read them: repeated where unfused kernels need it
  bool repeated = false;
  SlotIndex softmax = kNoSlot, mask = kNoSlot, dropped = kNoSlot;  // unfused
  SlotIndex kernel_output = kNoSlot, log_sum_exp = kNoSlot;        // one kernel
  SlotIndex output = kNoSlot;                                      // what the projection reads and saves
};

CoreAttention core_attention_forward(TemplateBuilder&, SlotIndex query, SlotIndex key, SlotIndex value);

// Gradients of query, key and value. One kernel can write them into a joint buffer: then `joint` is passed in and returned, the rest is
// none.
struct QkvGradients {
  SlotIndex query = kNoSlot, key = kNoSlot, value = kNoSlot, joint = kNoSlot;
};
QkvGradients core_attention_backward(TemplateBuilder&, const CoreAttention&, SlotIndex output_gradient, SlotIndex joint);

// The data loader's mask as a slot of the batch; none where the framework makes none.
std::optional<Slot> attention_mask(const TemplateBuilder&);

// Whether the backward kernel can write a joint buffer.
bool one_kernel(const TemplateContext&);

}  // namespace stepsim
