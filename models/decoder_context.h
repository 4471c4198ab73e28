// The context of templates that work on the decoder's tokens: those of an encoder-decoder's decoder and head; of other models the context
// itself. Owns what differs, so it must outlive its use.
#pragma once

#include "models/layer_template.h"

namespace stepsim {

class DecoderContext {
 public:
  explicit DecoderContext(const TemplateContext& given)
      : model_(given.model), training_(given.training), context_{model_, training_, given.parallel, given.framework} {
    if (model_.encoder_layers == 0) return;
    model_.causal = true;
    training_.sequence = training_.decoder_sequence;
  }
  DecoderContext(const DecoderContext&) = delete;
  DecoderContext& operator=(const DecoderContext&) = delete;

  const TemplateContext& context() const { return context_; }

 private:
  ModelSpec model_;
  TrainingRecipe training_;
  TemplateContext context_;
};

}  // namespace stepsim
