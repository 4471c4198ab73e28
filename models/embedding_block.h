// Token rows of the vocabulary-parallel table, learned positions, token types and dropout: the embedding's, and those that a decoder's
// first layer and multi-token prediction make of the same tables.
#pragma once

#include <string>

#include "models/template_builder.h"

namespace stepsim {

struct EmbeddingBlock {
  SlotIndex tokens = kNoSlot, token_types = kNoSlot;  // of the batch
  Weight words, positions, types;
  SlotIndex mask = kNoSlot;    // of dropout
  SlotIndex output = kNoSlot;  // this device's part
};

struct EmbeddingParts {
  std::string tokens = "token ids";  // in the batch
  bool owns_tables = true;           // false: they are the embedding's, by name
  bool words_alone = false;          // no positions, no token types
};

EmbeddingBlock embedding_forward(TemplateBuilder&, const EmbeddingParts&);

// From the gradient of this device's part of the output to those of the tables.
void embedding_backward(TemplateBuilder&, const EmbeddingBlock&, SlotIndex output_gradient);

}  // namespace stepsim
