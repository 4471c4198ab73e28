#include "models/training_metrics.h"

#include <string>

namespace stepsim {

bool has_metrics(const TemplateContext& context) { return context.framework.metric_passes > 0 || context.framework.measures_accuracy; }

bool metrics_follow_backward(const TemplateContext& context) {
  const bool one_sequence = context.model.encoder_layers == 0;  // the embedding's tokens are the head's
  return context.framework.metric_passes > 0 && one_sequence && context.parallel.pipeline == 1 && context.training.trainable.trains_all();
}

SlotIndex metric_logits(TemplateBuilder& builder) {
  const DeviceShape& shape = builder.shape();
  return builder.add({.name = "logits",
                      .kind = SlotKind::kShared,
                      .size = {},
                      .shape = {shape.tokens, shape.vocab},
                      .dtype = shape.compute,
                      .role = Role::kLogits,
                      .module = ""});
}

namespace {

SlotIndex workspace(TemplateBuilder& builder, const std::string& name, std::vector<std::int64_t> shape) {
  return builder.add({.name = name,
                      .kind = SlotKind::kWorkspace,
                      .size = {},
                      .shape = std::move(shape),
                      .dtype = DType::kFp32,
                      .role = Role::kLogits,
                      .module = ""});
}

}  // namespace

void add_metrics(TemplateBuilder& builder, Direction direction, SlotIndex logits, SlotIndex labels) {
  const DeviceShape& shape = builder.shape();
  for (std::int64_t pass = 1; pass <= builder.context().framework.metric_passes; ++pass) {
    const std::string name = "metric " + std::to_string(pass) + " ";
    SlotIndex values = logits;
    if (shape.compute != DType::kFp32) {  // autocast runs log_softmax in fp32
      values = workspace(builder, name + "logits, fp32", {shape.tokens, shape.vocab});
      builder.pass(direction,
                   {.name = "metric logits to fp32", .module = "", .reads = {logits}, .writes = {values}, .updates = {}, .holds = {}});
    }
    const SlotIndex probabilities = workspace(builder, name + "log-softmax", {shape.tokens, shape.vocab});
    builder.pass(direction, {.name = "metric log-softmax",
                             .module = "",
                             .reads = {values},
                             .writes = {probabilities},
                             .updates = {},
                             .holds = {logits},
                             .kernel = MemoryKernel::kSoftmax});
    const SlotIndex loss = workspace(builder, name + "loss", {shape.tokens});
    // Of each row the target's alone is read.
    builder.pass(direction, {.name = "metric loss",
                             .module = "",
                             .reads = {labels},
                             .writes = {loss},
                             .updates = {},
                             .holds = {logits, probabilities},
                             .kernel = MemoryKernel::kGather});
  }
}

void add_accuracy(TemplateBuilder& builder, SlotIndex logits, SlotIndex labels) {
  if (!builder.context().framework.measures_accuracy) return;
  const std::vector<std::int64_t> tokens = {builder.shape().tokens};
  const Bytes size = builder.size(logits);
  const SlotIndex loss = workspace(builder, "metric loss", tokens);
  builder.pass(kForwardOp, {.name = "metric cross entropy",
                            .module = "",
                            .reads = {logits, labels},
                            .writes = {loss},
                            .updates = {},
                            .holds = {},
                            .kernel = MemoryKernel::kSoftmax});
  const SlotIndex maxima = workspace(builder, "metric maxima", tokens);
  builder.pass(kForwardOp, {.name = "metric maxima",  // max, max again, argmax
                            .module = "",
                            .reads = {logits, labels},
                            .writes = {maxima},
                            .updates = {},
                            .holds = {},
                            .kernel = MemoryKernel::kUnfused,
                            .further_reads = size * 2});
  const SlotIndex shifted = builder.add({.name = "metric shifted logits",
                                         .kind = SlotKind::kWorkspace,
                                         .size = {},
                                         .shape = builder.slot(logits).shape,
                                         .dtype = builder.slot(logits).dtype,
                                         .role = Role::kLogits,
                                         .module = ""});
  builder.pass(kForwardOp, {.name = "metric shift",
                            .module = "",
                            .reads = {logits, maxima},
                            .writes = {shifted},
                            .updates = {},
                            .holds = {},
                            .kernel = MemoryKernel::kUnfused});
  const SlotIndex sums = workspace(builder, "metric sums", tokens);
  builder.pass(kForwardOp, {.name = "metric perplexity",  // exp_ in place, sum
                            .module = "",
                            .reads = {labels},
                            .writes = {sums},
                            .updates = {shifted},
                            .holds = {loss, maxima},
                            .kernel = MemoryKernel::kUnfused,
                            .further_reads = size});
}

}  // namespace stepsim
