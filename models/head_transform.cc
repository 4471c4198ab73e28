#include "models/head_transform.h"

#include <string>

namespace stepsim {

namespace {

constexpr std::int64_t kClasses = 2;  // the next sentence follows, or not

Linear head_linear(TemplateBuilder& builder, const std::string& name, std::int64_t outputs, std::int64_t rows) {
  Linear linear = make_linear(builder, name, "", builder.shape().hidden, outputs, true);
  linear.rows = rows;
  linear.low_precision = false;
  return linear;
}

}  // namespace

HeadTransform head_transform_forward(TemplateBuilder& builder, SlotIndex input) {
  const DeviceShape& shape = builder.shape();
  HeadTransform transform;
  transform.input = input;
  transform.dense = head_linear(builder, "head transform", shape.hidden, shape.local_tokens);
  transform.product = builder.activation("head transform product", {shape.local_tokens, shape.hidden});
  linear_forward(builder, transform.dense, input, transform.product);
  const SlotIndex activated = builder.activation("head transform activation output", {shape.local_tokens, shape.hidden});
  // torch.nn.Linear adds the bias in the product's epilogue: its few bytes are counted here.
  builder.pass(kForwardOp, {.name = "head transform activation",
                            .module = "",
                            .reads = {transform.product, transform.dense.bias.value},
                            .writes = {activated},
                            .updates = {},
                            .holds = {}});
  transform.norm = norm_forward(builder, "head norm", "", activated);
  return transform;
}

SlotIndex head_transform_backward(TemplateBuilder& builder, const HeadTransform& transform, SlotIndex output_gradient) {
  const DeviceShape& shape = builder.shape();
  const SlotIndex activated = norm_backward(builder, transform.norm, output_gradient);
  const SlotIndex product = builder.gradient("head transform product gradient", {shape.local_tokens, shape.hidden});
  builder.pass(kBackwardOp, {.name = "head transform activation backward",
                             .module = "",
                             .reads = {activated, transform.product},
                             .writes = {product},
                             .updates = {},
                             .holds = {}});
  bias_backward(builder, transform.dense, product);
  return row_backward(builder, transform.dense, transform.input, product);
}

Pooler pooler_forward(TemplateBuilder& builder, SlotIndex hidden) {
  const DeviceShape& shape = builder.shape();
  Pooler pooler{.dense = {}, .classifier = {}, .hidden = hidden};
  if (shape.sequence_parallel) {
    pooler.hidden = builder.activation("hidden states, gathered for the pooler", {shape.tokens, shape.hidden});
    builder.collective(
        kForwardOp,
        {.name = "pooler all-gather", .module = "", .kind = CollectiveKind::kAllGather, .input = hidden, .output = pooler.hidden});
  }
  pooler.dense = head_linear(builder, "pooler", shape.hidden, shape.micro_batch);
  const SlotIndex product = builder.activation("pooler product", {shape.micro_batch, shape.hidden});
  linear_forward(builder, pooler.dense, pooler.hidden, product);
  pooler.pooled = builder.activation("pooled", {shape.micro_batch, shape.hidden});
  builder.pass(kForwardOp, {.name = "pooler activation",
                            .module = "",
                            .reads = {product, pooler.dense.bias.value},
                            .writes = {pooler.pooled},
                            .updates = {},
                            .holds = {}});
  pooler.classifier = head_linear(builder, "classifier", kClasses, shape.micro_batch);
  pooler.classes = builder.activation("classes", {shape.micro_batch, kClasses});
  linear_forward(builder, pooler.classifier, pooler.pooled, pooler.classes);
  const SlotIndex loss = builder.add({.name = "next sentence loss",
                                      .kind = SlotKind::kForward,
                                      .size = {},
                                      .shape = {shape.micro_batch},
                                      .dtype = DType::kFp32,
                                      .module = ""});
  builder.pass(kForwardOp, {.name = "next sentence loss",
                            .module = "",
                            .reads = {pooler.classes, pooler.classifier.bias.value},
                            .writes = {loss},
                            .updates = {},
                            .holds = {}});
  return pooler;
}

void pooler_backward(TemplateBuilder& builder, const Pooler& pooler, SlotIndex hidden_gradient) {
  const DeviceShape& shape = builder.shape();
  const SlotIndex classes = builder.gradient("classes gradient", {shape.micro_batch, kClasses});
  builder.pass(
      kBackwardOp,
      {.name = "next sentence loss backward", .module = "", .reads = {pooler.classes}, .writes = {classes}, .updates = {}, .holds = {}});
  bias_backward(builder, pooler.classifier, classes);
  const SlotIndex pooled = row_backward(builder, pooler.classifier, pooler.pooled, classes);
  const SlotIndex product = builder.gradient("pooler product gradient", {shape.micro_batch, shape.hidden});
  builder.pass(kBackwardOp, {.name = "pooler activation backward",
                             .module = "",
                             .reads = {pooled, pooler.pooled},
                             .writes = {product},
                             .updates = {},
                             .holds = {}});
  bias_backward(builder, pooler.dense, product);
  const SlotIndex first = row_backward(builder, pooler.dense, pooler.hidden, product);
  // torch select_backward: zeros of the whole tensor, with the first tokens' gradients in their place.
  const SlotIndex spread = builder.gradient("pooler gradient of the hidden states", {shape.local_tokens, shape.hidden});
  builder.pass(kBackwardOp,
               {.name = "pooler selection backward", .module = "", .reads = {first}, .writes = {spread}, .updates = {}, .holds = {}});
  builder.pass(kBackwardOp,
               {.name = "hidden gradient sum", .module = "", .reads = {spread}, .writes = {}, .updates = {hidden_gradient}, .holds = {}});
}

}  // namespace stepsim
