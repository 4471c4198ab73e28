// What BERT has between the final norm and its losses: dense, GeLU and norm before the head (Megatron-LM bert_lm_head.py), and a pooler
// with a classifier of two on the first token (pooler.py). Replicated over the tensor-parallel group.
#pragma once

#include "models/linear_block.h"
#include "models/norm_block.h"
#include "models/template_builder.h"

namespace stepsim {

struct HeadTransform {
  Linear dense;
  SlotIndex input = kNoSlot, product = kNoSlot;
  NormBlock norm;
};
HeadTransform head_transform_forward(TemplateBuilder&, SlotIndex input);
// From the gradient of the norm's output to that of the input.
SlotIndex head_transform_backward(TemplateBuilder&, const HeadTransform&, SlotIndex output_gradient);

struct Pooler {
  Linear dense, classifier;
  SlotIndex hidden = kNoSlot;  // whole sequences: gathered under sequence parallelism
  SlotIndex pooled = kNoSlot, classes = kNoSlot;
};
Pooler pooler_forward(TemplateBuilder&, SlotIndex hidden);
// Adds to `hidden_gradient`, of this device's part.
void pooler_backward(TemplateBuilder&, const Pooler&, SlotIndex hidden_gradient);

}  // namespace stepsim
