#include "models/norm_block.h"

#include <vector>

#include "models/eager_norm.h"

namespace stepsim {

namespace {

bool casts_input(const TemplateBuilder& builder) {
  return builder.context().framework.casts_norm_input && builder.shape().compute != DType::kFp32;
}

bool runs_again(const TemplateBuilder& builder) { return builder.context().framework.reruns_norms && builder.in_layer(); }

// The kernel's input in fp32 (InternLM modeling_internlm.py: norm1(residual.float()) of apex's MixedFusedRMSNorm).
SlotIndex cast_input(TemplateBuilder& builder, Direction direction, const NormBlock& norm, const std::string& suffix) {
  const bool saved = direction == kForwardOp && !runs_again(builder);
  const SlotIndex copy = builder.add({.name = norm.name + " input, fp32" + suffix,
                                      .kind = saved ? SlotKind::kForward : SlotKind::kWorkspace,
                                      .size = {},
                                      .shape = builder.slot(norm.input).shape,
                                      .dtype = DType::kFp32,
                                      .role = saved ? Role::kActivations : Role::kWorkspace,
                                      .module = ""});
  builder.pass(
      direction,
      {.name = norm.name + " input cast" + suffix, .module = "", .reads = {norm.input}, .writes = {copy}, .updates = {}, .holds = {}});
  return copy;
}

// A checkpoint of the norm alone: its kernels run again, from its input. What reads its output has saved that.
SlotIndex norm_again(TemplateBuilder& builder, const NormBlock& norm) {
  const SlotIndex input = casts_input(builder) ? cast_input(builder, kBackwardOp, norm, " again") : norm.input;
  const SlotIndex output = builder.add({.name = norm.name + " output again",
                                        .kind = SlotKind::kWorkspace,
                                        .size = {},
                                        .shape = builder.slot(norm.input).shape,
                                        .dtype = builder.shape().compute,
                                        .role = Role::kWorkspace,
                                        .module = ""});
  builder.pass(kBackwardOp, {.name = norm.name + " again",
                             .module = "",
                             .reads = {input, norm.weight.value},
                             .writes = {output},
                             .updates = {},
                             .holds = {},
                             .kernel = MemoryKernel::kNorm});
  return input;
}

}  // namespace

NormBlock norm_forward(TemplateBuilder& builder, const std::string& name, const std::string& output_module, SlotIndex input) {
  const std::vector<std::int64_t> shape = builder.slot(input).shape;
  const ModelSpec& model = builder.context().model;
  const bool centred = model.normalization == Normalization::kLayerNorm;
  NormBlock norm{.name = name, .input = input, .output = kNoSlot, .statistics = kNoSlot, .weight = {}, .bias = {}};
  norm.weight = builder.weight(name + " weight", {shape.back()});
  if (centred && model.norm_bias) norm.bias = builder.weight(name + " bias", {shape.back()});
  if (is_eager_norm(builder.context())) {
    eager_norm_forward(builder, norm, output_module);
    return norm;
  }
  norm.output = builder.activation(name + " output", shape, output_module);
  if (casts_input(builder)) norm.copy = cast_input(builder, kForwardOp, norm, "");
  KernelPass pass{.name = name,
                  .module = "",
                  .reads = {norm.copy == kNoSlot ? input : norm.copy, norm.weight.value},
                  .writes = {norm.output},
                  .updates = {},
                  .holds = {},
                  .kernel = MemoryKernel::kNorm};
  if (norm.bias.present()) pass.reads.push_back(norm.bias.value);
  if (builder.context().framework.saves_norm_statistics) {
    // Reciprocal standard deviation, with LayerNorm the mean too. No module: recomputing a norm's output keeps its statistics.
    norm.statistics = builder.add({.name = name + " statistics",
                                   .kind = SlotKind::kForward,
                                   .size = {},
                                   .shape = {centred ? 2 : 1, shape.front()},
                                   .dtype = DType::kFp32,
                                   .module = ""});
    pass.writes.push_back(norm.statistics);
  }
  builder.pass(Direction::kForward, std::move(pass));
  return norm;
}

SlotIndex norm_backward(TemplateBuilder& builder, const NormBlock& norm, SlotIndex output_gradient) {
  if (is_eager_norm(builder.context())) return eager_norm_backward(builder, norm, output_gradient);
  const std::vector<std::int64_t> shape = builder.slot(norm.input).shape;
  const SlotIndex saved = norm.copy == kNoSlot ? norm.input : norm.copy;
  const SlotIndex input = runs_again(builder) ? norm_again(builder, norm) : saved;
  const SlotIndex gradient = builder.gradient(norm.name + " input gradient", shape);
  const SlotIndex wide = casts_input(builder) ? builder.add({.name = norm.name + " input gradient, fp32",
                                                             .kind = SlotKind::kGradient,
                                                             .size = {},
                                                             .shape = shape,
                                                             .dtype = DType::kFp32,
                                                             .role = Role::kActivationGradients,
                                                             .module = ""})
                                              : kNoSlot;
  KernelPass input_pass{.name = norm.name + " backward",
                        .module = "",
                        .reads = {output_gradient, input, norm.weight.value},
                        .writes = {wide == kNoSlot ? gradient : wide},
                        .updates = {},
                        .holds = {},
                        .kernel = MemoryKernel::kNorm};
  // The sums over tokens are a pass of their own in apex and Transformer Engine: they read both operands again.
  KernelPass weight_pass{.name = norm.name + " weight gradient",
                         .module = "",
                         .reads = {output_gradient, input},
                         .writes = {},
                         .updates = {norm.weight.gradient},
                         .holds = {},
                         .kernel = MemoryKernel::kNorm};
  if (norm.bias.present()) weight_pass.updates.push_back(norm.bias.gradient);
  if (norm.statistics != kNoSlot) {
    input_pass.reads.push_back(norm.statistics);
    weight_pass.reads.push_back(norm.statistics);
  }
  builder.pass(Direction::kBackward, std::move(input_pass));
  builder.pass(Direction::kBackward, std::move(weight_pass));
  if (wide != kNoSlot) {
    builder.pass(
        kBackwardOp,
        {.name = norm.name + " input gradient cast", .module = "", .reads = {wide}, .writes = {gradient}, .updates = {}, .holds = {}});
  }
  return gradient;
}

}  // namespace stepsim
