// Attention proper, from query, key and value to context: unfused (scores in memory, fused or eager softmax, dropout) or one kernel that
// keeps log-sum-exps. Forward and backward. Knows neither the projections around it nor rotary embedding.
//
// Unfused kernels compute and mask all pairs, whatever the window and however documents are packed; so they have no ring either.
#pragma once

#include <optional>

#include "models/attention_kernel.h"
#include "models/template_builder.h"

namespace stepsim {

// Of a layer of this kind over its own tokens, with heads of the model's head_dim.
AttentionForm self_attention(const TemplateBuilder&, const LayerKind& kind);

struct CoreAttention {
  AttentionForm form;                                         // as the products see it: under an all-to-all all tokens, fewer heads
  ContextExchange exchange = ContextExchange::kAllGather;     // of context-parallel ranks
  SlotIndex query = kNoSlot, key = kNoSlot, value = kNoSlot;  // as the products read them: repeated where unfused kernels need it,
                                                              // in 8 bits, exchanged; a ring saves both in `key`, of its last step
  bool repeated = false;
  SlotIndex softmax = kNoSlot, mask = kNoSlot, dropped = kNoSlot;  // unfused
  SlotIndex softmax_fp32 = kNoSlot;                                // of which `softmax` is a 16-bit copy; kNoSlot: it is none
  SlotIndex kernel_output = kNoSlot, log_sum_exp = kNoSlot;        // one kernel
  SlotIndex output = kNoSlot;                                      // what the projection reads and saves
  Weight sinks;

  KernelOperands operands() const { return {query, key, value, kernel_output, log_sum_exp, sinks}; }
};

// Key and value are this device's tokens; context-parallel ranks exchange them here and again in backward.
CoreAttention core_attention_forward(TemplateBuilder&, const AttentionForm&, SlotIndex query, SlotIndex key, SlotIndex value);

// What the projection saves is a copy of the kernel's output.
void copy_kernel_output(TemplateBuilder&, const CoreAttention&);

// Gradients of query, key and value, of this device's tokens. One kernel can write them into a joint buffer: then `joint` is passed in and
// returned, the rest is none.
struct QkvGradients {
  SlotIndex query = kNoSlot, key = kNoSlot, value = kNoSlot, joint = kNoSlot;
};
QkvGradients core_attention_backward(TemplateBuilder&, const CoreAttention&, SlotIndex output_gradient, SlotIndex joint);

// The data loader's mask as a slot of the batch; none where the framework makes none, and for models that are not causal: their padding
// masks hold a byte a token; nor for packed documents, where a kernel is told their begins.
std::optional<Slot> attention_mask(const TemplateBuilder&);

// Whether the backward kernel can write a joint buffer.
bool writes_joint_gradient(const TemplateContext&);

}  // namespace stepsim
