// Attention proper, from query, key and value to context: unfused (scores in memory, fused or eager softmax, dropout) or one kernel that
// keeps log-sum-exps. Forward and backward. Knows neither the projections around it nor rotary embedding.
//
// How the one kernel's work is stated, exactly where nothing else is said (its FLOPs are 4 queries keys head_dim a head, half if causal):
// - keys and values of different widths: head_dim is their mean, (2 d_qk + 2 d_v) / 4, rounded up. Forward FLOPs and the traffic of either
//   pass are exact; backward is 2.5 times forward, where the products themselves are (3 d_qk + 2 d_v) / (d_qk + d_v) (MLA: 2.6).
// - a causal window of w < keys: queries s - w/2 by keys w, not causal: their product is s w - w^2/2, the pairs that w < s leaves of s^2/2
//   (odd w: w/2 pairs too many). A window on both sides: s w, without what the ends cut off.
// - context parallelism: queries of this rank, all keys; causal ones are balanced between the ranks, so half of the pairs again.
// Unfused kernels compute and mask all pairs, whatever the window.
#pragma once

#include <optional>

#include "models/template_builder.h"

namespace stepsim {

inline constexpr const char* kCoreAttention = "core_attn";

// What distinguishes one use of attention from another (an encoder's output: its own keys; TemplateBuilder::set_prefix tells their names
// apart).
struct AttentionForm {
  std::int64_t queries = 0;                  // of a sequence, on this device
  std::int64_t keys = 0;                     // of a sequence, on all context-parallel ranks
  std::int64_t kv_heads = 0;                 // on this device
  std::int64_t head_dim = 0, value_dim = 0;  // of queries and keys; of values and outputs
  std::int64_t window = 0;                   // keys that a query sees at most; 0: all
  bool causal = true;
  bool sinks = false;  // a learned logit a head
};
// Of a layer of this kind over its own tokens, with heads of the model's head_dim.
AttentionForm self_attention(const TemplateBuilder&, const LayerKind& kind);

struct CoreAttention {
  AttentionForm form;
  SlotIndex query = kNoSlot, key = kNoSlot, value = kNoSlot;  // as the products read them: repeated where unfused kernels need it
  bool repeated = false;
  SlotIndex softmax = kNoSlot, mask = kNoSlot, dropped = kNoSlot;  // unfused
  SlotIndex softmax_fp32 = kNoSlot;                                // of which `softmax` is a 16-bit copy; kNoSlot: it is none
  SlotIndex kernel_output = kNoSlot, log_sum_exp = kNoSlot;        // one kernel
  SlotIndex output = kNoSlot;                                      // what the projection reads and saves
  Weight sinks;
};

// Key and value are this device's tokens; under context parallelism they are gathered, here and again in backward.
CoreAttention core_attention_forward(TemplateBuilder&, const AttentionForm&, SlotIndex query, SlotIndex key, SlotIndex value);

// Gradients of query, key and value, of this device's tokens. One kernel can write them into a joint buffer: then `joint` is passed in and
// returned, the rest is none.
struct QkvGradients {
  SlotIndex query = kNoSlot, key = kNoSlot, value = kNoSlot, joint = kNoSlot;
};
QkvGradients core_attention_backward(TemplateBuilder&, const CoreAttention&, SlotIndex output_gradient, SlotIndex joint);

// The data loader's mask as a slot of the batch; none where the framework makes none, and for models that are not causal: their padding
// masks hold a byte a token.
std::optional<Slot> attention_mask(const TemplateBuilder&);

bool one_kernel(const TemplateContext&);
// Whether the backward kernel can write a joint buffer.
bool writes_joint_gradient(const TemplateContext&);

}  // namespace stepsim
