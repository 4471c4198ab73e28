#include "models/training_metrics.h"

#include <string>

namespace stepsim {

bool has_metrics(const TemplateContext& context) { return context.framework.metric_passes > 0; }

bool metrics_follow_backward(const TemplateContext& context) {
  const bool one_sequence = context.model.encoder_layers == 0;  // the embedding's tokens are the head's
  return has_metrics(context) && one_sequence && context.parallel.pipeline == 1 && context.training.trainable.trains_all();
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

}  // namespace stepsim
