// The loss from the head's input on: logits and vocabulary-parallel cross entropy in the ways that frameworks run it (plain in place or out
// of place, fused, in chunks), forward and backward. Lg below: the logits in the compute dtype, tokens x vocabulary / ranks.
#pragma once

#include "models/linear_block.h"
#include "models/template_builder.h"

namespace stepsim {

struct CrossEntropy {
  SlotIndex loss = kNoSlot;                                  // fp32, one per token
  SlotIndex saved = kNoSlot;                                 // softmax; fused: the gradient, or the logits where backward makes it of them
  SlotIndex target_mask = kNoSlot, masked_target = kNoSlot;  // plain
  SlotIndex statistics = kNoSlot, labels = kNoSlot;          // fused
  bool eager = false;                                        // torch's log_softmax and nll_loss: `labels` too
};

// Plain: logits in the compute dtype and an fp32 working copy, 3 Lg at once in place, 5 Lg out of place (spec: Megatron-LM
// cross_entropy.py); eager (log_softmax and nll_loss apart): 5 Lg, and in backward three fp32 tensors at once, 12 B a logit; where no rank
// shares the vocabulary it moves 36 B a logit, casts and kernels of forward 14, of backward 22. Fused: logits
// and their gradient, made in forward, 2 Lg (Transformer Engine); or the logits alone, which their gradient overwrites in backward, Lg
// (flash-attn). `logits` is written by the head's product.
CrossEntropy cross_entropy_forward(TemplateBuilder&, SlotIndex logits, SlotIndex labels);

// Returns the gradient of the logits in the compute dtype.
SlotIndex cross_entropy_backward(TemplateBuilder&, const CrossEntropy&);

// Head and loss over equal parts of the tokens (the first ones a token longer), Lg / chunks at once: forward makes the gradients of the
// head's input and weight, part by part (Liger-Kernel, ops/fused_linear_cross_entropy.py). InputError for more chunks than tokens or above
// 10000.
struct ChunkedHead {
  SlotIndex loss = kNoSlot, input_gradient = kNoSlot;  // not yet reduced over the group
};
ChunkedHead chunked_head_forward(TemplateBuilder&, const Linear& head, SlotIndex input, SlotIndex labels);

}  // namespace stepsim
