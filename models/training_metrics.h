// What a trainer measures on the logits of every micro-batch, without gradients: for each metric an fp32 copy and a log-softmax of its own
// (composer's LanguageCrossEntropy and LanguagePerplexity under autocast: 14 B a logit each, spec accuracy.md B.1).
#pragma once

#include "models/template_builder.h"

namespace stepsim {

bool has_metrics(const TemplateContext&);

// Composer evaluates them on the outputs that it kept, when backward is over (trainer.py _train_microbatch): in the embedding's template,
// behind all of its backward. Where the embedding is on another stage, not trained or an encoder's, behind the loss: in the head's.
bool metrics_follow_backward(const TemplateContext&);

// The logits, as the head makes them and the embedding finds them where its metrics follow backward.
SlotIndex metric_logits(TemplateBuilder&);

// One pass after another; what one makes is gone before the next one starts. `labels`: of the batch.
void add_metrics(TemplateBuilder&, Direction, SlotIndex logits, SlotIndex labels);

// InternEvo's AccPerplex (model/metrics.py), eager, on the logits as the loss reads them, in the head's forward: a fused cross entropy, the
// largest logit twice and its place, the differences to it, their exponentials in place and the sums: 9 times the logits, 36 B of an fp32
// one. Nothing where the preset does not measure.
void add_accuracy(TemplateBuilder&, SlotIndex logits, SlotIndex labels);

}  // namespace stepsim
