// Query, key and value as three products (torchtitan, Hugging Face) in place of one: no tensor is joined or split. Knows no core attention.
#pragma once

#include "models/attention_block.h"

namespace stepsim {

// The three products; their outputs are the block's `mixed` query, key and value.
void separate_forward(TemplateBuilder& builder, AttentionBlock& block);

// Rotated query and key as new tensors; the value stays.
CoreHeads separate_rotary_forward(TemplateBuilder& builder, const CoreHeads& heads);

// From the gradients of what core attention read to that of the block's input.
SlotIndex separate_backward(TemplateBuilder& builder, const AttentionBlock& block, const QkvGradients& gradients, SlotIndex partial);

}  // namespace stepsim
