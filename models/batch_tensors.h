// What a data loader puts on the device beside the tensors that the ops of the two ends read. Knows no op.
#pragma once

#include <string>

#include "models/template_builder.h"

namespace stepsim {

// Adds the tensors of the batch that live through a forward pass though neither the embedding nor the head reads them there. `read`: the
// one that the template adds itself, `read_too`: another one.
void add_held_batch(TemplateBuilder&, const std::string& read, const std::string& read_too = "");

}  // namespace stepsim
