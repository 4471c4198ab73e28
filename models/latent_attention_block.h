// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 section 2.1) as Megatron-LM shards it (multi_latent_attention.py): queries,
// keys and values come from latents, whose products down are on every rank and work on its part of the tokens, and whose products up are
// column-parallel. Its input is a norm's output; the sum over the tensor-parallel group, bias and residual come after it.
//
// Modules: mla_up_proj drops queries, keys, values and what the products up read; latent_norm the latter alone. The rotary key is no saved
// tensor: where keys are made again it is too, from the layer's norm (Megatron-LM keeps its 2 rope_dim bytes a token then).
#pragma once

#include "models/core_attention.h"
#include "models/linear_block.h"
#include "models/norm_block.h"
#include "models/template_builder.h"

namespace stepsim {

struct Latent {
  Linear down, up;
  SlotIndex value = kNoSlot;  // this device's part of the tokens
  NormBlock norm;             // where the model has it; else its weight is not present
  ColumnInput up_input;
  SlotIndex output = kNoSlot;  // of the product up: all of the tokens, this device's heads
};

struct LatentAttentionBlock {
  SlotIndex input = kNoSlot;
  ColumnInput query_input;  // where queries have no latent: they are projected from the layer's norm
  Linear direct_query;
  Latent query, key_value;
  SlotIndex query_output = kNoSlot;  // before rotary embedding
  CoreAttention core;
  Linear projection;
  SlotIndex output = kNoSlot;  // this device's partial sum
};

LatentAttentionBlock latent_attention_forward(TemplateBuilder&, SlotIndex input, const LayerKind& kind);

// `output_gradient` is whole (gathered). Returns the gradient of the input, this device's part of the tokens.
SlotIndex latent_attention_backward(TemplateBuilder&, const LatentAttentionBlock&, SlotIndex output_gradient);

}  // namespace stepsim
