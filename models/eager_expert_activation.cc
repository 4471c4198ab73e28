#include "models/eager_expert_activation.h"

#include <utility>
#include <vector>

namespace stepsim {

namespace {

// Slots and kernels of one way.
class Kernels {
 public:
  Kernels(TemplateBuilder& builder, Direction direction, std::string prefix, std::string module, std::string slot_module)
      : builder_(builder),
        direction_(direction),
        prefix_(std::move(prefix)),
        module_(std::move(module)),
        slot_module_(std::move(slot_module)) {}

  SlotIndex slot(const std::string& name, std::vector<std::int64_t> shape, DType dtype) {
    const bool forward = direction_ == kForwardOp;
    return builder_.add({.name = prefix_ + name,
                         .kind = forward ? SlotKind::kForward : SlotKind::kGradient,
                         .size = {},
                         .shape = std::move(shape),
                         .dtype = dtype,
                         .role = forward ? Role::kActivations : Role::kActivationGradients,
                         .module = forward ? slot_module_ : ""});
  }

  // One elementwise kernel: each operand moves once.
  void run(const std::string& name, std::vector<SlotIndex> reads, SlotIndex written) {
    builder_.pass(direction_,
                  {.name = prefix_ + name, .module = module_, .reads = std::move(reads), .writes = {written}, .updates = {}, .holds = {}});
  }
  SlotIndex made(const std::string& name, std::vector<SlotIndex> reads, const std::string& slot_name, std::vector<std::int64_t> shape,
                 DType dtype) {
    const SlotIndex written = slot(slot_name, std::move(shape), dtype);
    run(name, std::move(reads), written);
    return written;
  }

 private:
  TemplateBuilder& builder_;
  Direction direction_;
  std::string prefix_, module_, slot_module_;
};

// Whether the input was within the clamp: a mask of bytes, then the gradient where it is set.
SlotIndex clamp_backward(Kernels& kernels, const std::string& name, SlotIndex input, SlotIndex gradient, bool both_ends,
                         const std::vector<std::int64_t>& shape, DType dtype) {
  SlotIndex mask = kernels.made(name + " clamp, at most", {input}, name + " at most", shape, DType::kUint8);
  if (both_ends) {
    const SlotIndex least = kernels.made(name + " clamp, at least", {input}, name + " at least", shape, DType::kUint8);
    mask = kernels.made(name + " clamp, and", {mask, least}, name + " within", shape, DType::kUint8);
  }
  return kernels.made(name + " clamp backward", {mask, gradient}, name + " unclamped gradient", shape, dtype);
}

// The gradient of the probabilities, and that of what they scale.
struct ScaleGradients {
  SlotIndex scaled = kNoSlot, probabilities = kNoSlot;
};
ScaleGradients scale_backward(Kernels& kernels, const ExpertActivation& activation, SlotIndex gradient, DType dtype) {
  const std::vector<std::int64_t> shape = {activation.rows, activation.ffn};
  const SlotIndex wide = kernels.made("weighted cast backward", {gradient}, "weighted gradient, fp32", shape, DType::kFp32);
  const SlotIndex scaled =
      kernels.made("probability product backward", {wide, activation.probabilities}, "product gradient, fp32", shape, DType::kFp32);
  const SlotIndex narrow = kernels.made("product gradient cast", {scaled}, "product gradient", shape, dtype);
  const SlotIndex terms =
      kernels.made("probability gradient terms", {wide, activation.product}, "probability gradient terms", shape, DType::kFp32);
  const SlotIndex sum = kernels.made("probability gradient sum", {terms}, "probability gradient", {activation.rows}, DType::kFp32);
  return {narrow, sum};
}

}  // namespace

void eager_activation_forward(TemplateBuilder& builder, ExpertActivation& activation) {
  const DType dtype = builder.shape().compute;
  const std::vector<std::int64_t> shape = {activation.rows, activation.ffn};
  Kernels kernels(builder, kForwardOp, activation.prefix, activation.module, activation.activation_module);
  activation.clamped_gate = kernels.made("gate clamp", {activation.gate}, "clamped gate", shape, dtype);
  const SlotIndex clamped_up = kernels.made("up clamp", {activation.up}, "clamped up", shape, dtype);
  activation.activated_gate = kernels.made("gate activation", {activation.clamped_gate}, "activated gate", shape, dtype);
  activation.offset_up = kernels.made("up offset", {clamped_up}, "offset up", shape, dtype);
  activation.product = kernels.made("gate product", {activation.activated_gate, activation.offset_up}, "activation output", shape, dtype);
  activation.output = activation.product;
  if (activation.probabilities == kNoSlot) return;
  const SlotIndex wide =
      kernels.made("probability product", {activation.product, activation.probabilities}, "weighted output, fp32", shape, DType::kFp32);
  activation.output = kernels.made("weighted cast", {wide}, "weighted output", shape, dtype);
}

ExpertActivationGradients eager_activation_backward(TemplateBuilder& builder, const ExpertActivation& activation,
                                                    SlotIndex output_gradient) {
  const DType dtype = builder.shape().compute;
  const std::vector<std::int64_t> shape = {activation.rows, activation.ffn};
  Kernels kernels(builder, kBackwardOp, activation.prefix, activation.module, "");
  ExpertActivationGradients gradients;
  SlotIndex product = output_gradient;
  if (activation.probabilities != kNoSlot) {
    const ScaleGradients scale = scale_backward(kernels, activation, output_gradient, dtype);
    product = scale.scaled;
    gradients.probabilities = scale.probabilities;
  }
  const SlotIndex up = kernels.made("gate product backward, up", {product, activation.activated_gate}, "offset up gradient", shape, dtype);
  const SlotIndex activated =
      kernels.made("gate product backward, gate", {product, activation.offset_up}, "activated gate gradient", shape, dtype);
  const SlotIndex gate =
      kernels.made("gate activation backward", {activated, activation.clamped_gate}, "clamped gate gradient", shape, dtype);
  gradients.up = clamp_backward(kernels, "up", activation.up, up, true, shape, dtype);
  gradients.gate = clamp_backward(kernels, "gate", activation.gate, gate, false, shape, dtype);
  if (activation.joint == kNoSlot) return gradients;
  gradients.joint = kernels.made("gate and up gradient concatenation", {gradients.gate, gradients.up}, "gate and up gradient",
                                 {activation.rows, 2 * activation.ffn}, dtype);
  return gradients;
}

SlotIndex eager_bias_forward(TemplateBuilder& builder, const ExpertBias& bias, SlotIndex product) {
  const std::vector<std::int64_t> shape = builder.slot(product).shape;
  Kernels kernels(builder, kForwardOp, bias.name + " ", bias.module, "");
  const SlotIndex scaled = kernels.made("bias product", {bias.bias.value, bias.probabilities}, "scaled bias", shape, DType::kFp32);
  const SlotIndex sum = kernels.made("bias", {product, scaled}, "biased output, fp32", shape, DType::kFp32);
  const SlotIndex joined = kernels.made("bias concatenation", {sum}, "biased output, joined", shape, DType::kFp32);
  return kernels.made("bias cast", {joined}, "biased output", shape, builder.shape().compute);
}

ExpertBiasGradients eager_bias_backward(TemplateBuilder& builder, const ExpertBias& bias, SlotIndex output_gradient) {
  const std::vector<std::int64_t> shape = builder.slot(output_gradient).shape;
  const DType dtype = builder.shape().compute;
  Kernels kernels(builder, kBackwardOp, bias.name + " ", bias.module, "");
  ExpertBiasGradients gradients;
  const SlotIndex wide = kernels.made("bias cast backward", {output_gradient}, "biased output gradient, fp32", shape, DType::kFp32);
  const SlotIndex terms = kernels.made("bias gradient terms", {wide, bias.probabilities}, "bias gradient terms", shape, DType::kFp32);
  builder.pass(kBackwardOp, {.name = bias.name + " bias gradient",
                             .module = bias.module,
                             .reads = {terms},
                             .writes = {},
                             .updates = {bias.bias.gradient},
                             .holds = {}});
  const SlotIndex products = kernels.made("bias probability terms", {wide, bias.bias.value}, "bias probability terms", shape, DType::kFp32);
  gradients.probabilities = kernels.made("bias probability sum", {products}, "bias probability gradient", {shape.front()}, DType::kFp32);
  const SlotIndex narrow = kernels.made("bias backward cast", {wide}, "product gradient", shape, dtype);
  gradients.product = kernels.made("bias backward concatenation", {narrow}, "product gradient, joined", shape, dtype);
  return gradients;
}

}  // namespace stepsim
