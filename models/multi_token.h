// One layer of multi-token prediction (Megatron-LM multi_token_prediction.py; DeepSeek-V3, arXiv 2412.19437 section 2.2): norms of the
// shifted tokens' embeddings and of the hidden states, a projection of both together, a Transformer layer, a norm. It stands in the head's
// template, on the last stage; the tables are the embedding's, or copies where that is on another stage. Knows no loss.
#pragma once

#include "models/embedding_block.h"
#include "models/layer_body.h"
#include "models/linear_block.h"
#include "models/norm_block.h"
#include "models/template_builder.h"

namespace stepsim {

struct MultiTokenLayer {
  EmbeddingBlock embedding;
  NormBlock embedding_norm, hidden_norm;
  Linear projection;
  ColumnInput joined;  // both norms' outputs, side by side
  LayerBody layer;
  NormBlock final_norm;
};

// `hidden`: this device's part of the hidden states behind the model's final norm, or of the layer before.
MultiTokenLayer multi_token_forward(TemplateBuilder&, SlotIndex hidden);

// From the gradient of the final norm's output to that of `hidden`.
SlotIndex multi_token_backward(TemplateBuilder&, const MultiTokenLayer&, SlotIndex output_gradient);

}  // namespace stepsim
