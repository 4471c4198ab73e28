// A decoder layer of an encoder-decoder (T5): self-attention, attention over the encoder's output, MLP. The first one also ends the encoder
// (its final norm makes the shared "encoder output") and embeds the decoder's tokens.
#pragma once

#include "models/layer_template.h"

namespace stepsim {

// `kind.side` is kFirstDecoder or kDecoder. The input of the first one is the encoder's last hidden state.
LayerTemplate decoder_layer(const TemplateContext&, const LayerKind& kind);

}  // namespace stepsim
