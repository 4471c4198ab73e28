#include "models/eager_norm.h"

#include <utility>
#include <vector>

namespace stepsim {

namespace {

SlotIndex wide(TemplateBuilder& builder, const NormBlock& norm, SlotKind kind, const std::string& name) {
  return builder.add({.name = norm.name + " " + name,
                      .kind = kind,
                      .size = {},
                      .shape = builder.slot(norm.input).shape,
                      .dtype = DType::kFp32,
                      .role = kind == SlotKind::kGradient ? Role::kActivationGradients : Role::kActivations,
                      .module = ""});
}

// Whether the products work in another dtype than the norm.
bool casts(const TemplateBuilder& builder) { return builder.shape().compute != DType::kFp32; }

void kernel(TemplateBuilder& builder, Direction direction, const std::string& name, std::vector<SlotIndex> reads,
            std::vector<SlotIndex> writes) {
  builder.pass(direction, {.name = name,
                           .module = "",
                           .reads = std::move(reads),
                           .writes = std::move(writes),
                           .updates = {},
                           .holds = {},
                           .kernel = MemoryKernel::kUnfused});
}

}  // namespace

bool is_eager_norm(const TemplateContext& context) {
  return !context.framework.fused_norm && context.model.normalization == Normalization::kRmsNorm;
}

// x.float(); its squares; rsqrt of their mean; the product of the two; that in 16 bits; times the weight. Products save both factors. In
// fp32 casts do nothing: x.float() is x.
void eager_norm_forward(TemplateBuilder& builder, NormBlock& norm, const std::string& output_module) {
  const std::vector<std::int64_t> shape = builder.slot(norm.input).shape;
  norm.copy = norm.input;
  if (casts(builder)) {
    norm.copy = wide(builder, norm, SlotKind::kForward, "input, fp32");
    kernel(builder, kForwardOp, norm.name + " cast", {norm.input}, {norm.copy});
  }
  const SlotIndex squares = wide(builder, norm, SlotKind::kForward, "squares");
  kernel(builder, kForwardOp, norm.name + " squares", {norm.copy}, {squares});
  norm.statistics = builder.add({.name = norm.name + " statistics",
                                 .kind = SlotKind::kForward,
                                 .size = {},
                                 .shape = {1, shape.front()},
                                 .dtype = DType::kFp32,
                                 .module = ""});
  kernel(builder, kForwardOp, norm.name + " mean", {squares}, {norm.statistics});
  const SlotIndex product = casts(builder) ? wide(builder, norm, SlotKind::kForward, "normalised, fp32") : kNoSlot;
  norm.normalised = builder.activation(norm.name + " normalised", shape);
  kernel(builder, kForwardOp, norm.name + " product", {norm.copy, norm.statistics}, {product == kNoSlot ? norm.normalised : product});
  if (product != kNoSlot) kernel(builder, kForwardOp, norm.name + " cast back", {product}, {norm.normalised});
  norm.output = builder.activation(norm.name + " output", shape, output_module);
  kernel(builder, kForwardOp, norm.name, {norm.normalised, norm.weight.value}, {norm.output});
}

SlotIndex eager_norm_backward(TemplateBuilder& builder, const NormBlock& norm, SlotIndex output_gradient) {
  const std::vector<std::int64_t> shape = builder.slot(norm.input).shape;
  const SlotIndex normalised = builder.gradient(norm.name + " normalised gradient", shape);
  kernel(builder, kBackwardOp, norm.name + " backward", {output_gradient, norm.weight.value}, {normalised});
  if (norm.weight.gradient != kNoSlot) {
    const SlotIndex factors = builder.gradient(norm.name + " weight gradient by token", shape);
    kernel(builder, kBackwardOp, norm.name + " weight gradient product", {output_gradient, norm.normalised}, {factors});
    builder.pass(kBackwardOp, {.name = norm.name + " weight gradient",
                               .module = "",
                               .reads = {factors},
                               .writes = {},
                               .updates = {norm.weight.gradient},
                               .holds = {},
                               .kernel = MemoryKernel::kUnfused});
  }
  SlotIndex product = normalised;
  if (casts(builder)) {
    product = wide(builder, norm, SlotKind::kGradient, "normalised gradient, fp32");
    kernel(builder, kBackwardOp, norm.name + " cast back backward", {normalised}, {product});
  }
  const SlotIndex direct = wide(builder, norm, SlotKind::kGradient, "direct gradient");
  kernel(builder, kBackwardOp, norm.name + " product backward", {product, norm.statistics}, {direct});
  const SlotIndex by_token = wide(builder, norm, SlotKind::kGradient, "statistics gradient by value");
  kernel(builder, kBackwardOp, norm.name + " mean backward", {product, norm.copy}, {by_token});
  const SlotIndex squares = wide(builder, norm, SlotKind::kGradient, "squares gradient");
  kernel(builder, kBackwardOp, norm.name + " squares backward", {by_token, norm.copy, norm.statistics}, {squares});
  if (!casts(builder)) {
    const SlotIndex gradient = builder.gradient(norm.name + " input gradient", shape);
    kernel(builder, kBackwardOp, norm.name + " gradient sum", {direct, squares}, {gradient});
    return gradient;
  }
  const SlotIndex sum = wide(builder, norm, SlotKind::kGradient, "input gradient, fp32");
  kernel(builder, kBackwardOp, norm.name + " gradient sum", {direct, squares}, {sum});
  const SlotIndex gradient = builder.gradient(norm.name + " input gradient", shape);
  kernel(builder, kBackwardOp, norm.name + " cast backward", {sum}, {gradient});
  return gradient;
}

}  // namespace stepsim
