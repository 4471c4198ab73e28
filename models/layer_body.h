// A Transformer layer's ops over a builder: alone in its template (transformer_layer), or inside another (the head's multi-token
// prediction). Knows no policy and no ends of a template.
#pragma once

#include <functional>

#include "models/template_builder.h"

namespace stepsim {

struct LayerBody {
  SlotIndex output = kNoSlot;
  // Adds the backward ops; from the gradient of the output to that of the input, with the residual's.
  std::function<SlotIndex(TemplateBuilder&, SlotIndex output_gradient)> backward;
};

// Adds the forward ops of a layer that reads `input` (this device's part of the hidden states). The builder must outlive the body's use.
LayerBody append_layer(TemplateBuilder&, const LayerKind&, SlotIndex input);

}  // namespace stepsim
