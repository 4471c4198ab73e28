#include "models/norm_block.h"

#include <vector>

#include "models/eager_norm.h"

namespace stepsim {

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
  KernelPass pass{.name = name,
                  .module = "",
                  .reads = {input, norm.weight.value},
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
  const SlotIndex gradient = builder.gradient(norm.name + " input gradient", builder.slot(norm.input).shape);
  KernelPass input_pass{.name = norm.name + " backward",
                        .module = "",
                        .reads = {output_gradient, norm.input, norm.weight.value},
                        .writes = {gradient},
                        .updates = {},
                        .holds = {},
                        .kernel = MemoryKernel::kNorm};
  // The sums over tokens are a pass of their own in apex and Transformer Engine: they read both operands again.
  KernelPass weight_pass{.name = norm.name + " weight gradient",
                         .module = "",
                         .reads = {output_gradient, norm.input},
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
  return gradient;
}

}  // namespace stepsim
