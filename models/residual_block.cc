#include "models/residual_block.h"

namespace stepsim {

namespace {

SlotIndex dropout_mask(TemplateBuilder& builder, const std::string& name) {
  const DeviceShape& shape = builder.shape();
  return builder.add({.name = name + " dropout mask",
                      .kind = SlotKind::kForward,
                      .size = {},
                      .shape = {shape.local_tokens, shape.hidden},
                      .dtype = DType::kUint8,
                      .module = ""});
}

}  // namespace

ResidualBlock residual_forward(TemplateBuilder& builder, const std::string& name, const std::string& output_name, SlotIndex branch,
                               SlotIndex residual, const std::vector<Weight>& biases) {
  const DeviceShape& shape = builder.shape();
  const TemplateContext& context = builder.context();
  const bool dropout = context.training.dropout > 0;
  ResidualBlock block{.name = name, .biases = {}, .output = kNoSlot, .mask = kNoSlot};
  block.output = builder.activation(output_name, {shape.local_tokens, shape.hidden});
  KernelPass pass{
      .name = name, .module = "", .reads = {branch, residual}, .writes = {block.output}, .updates = {}, .holds = {}, .random = dropout};
  for (const Weight& bias : biases) {
    if (!bias.present()) continue;
    block.biases.push_back(bias);
    pass.reads.push_back(bias.value);
  }
  if (dropout && context.framework.saves_dropout_masks) {
    block.mask = dropout_mask(builder, name);
    pass.writes.push_back(block.mask);
  }
  const std::int64_t separate = static_cast<std::int64_t>(block.biases.size()) + (dropout ? 1 : 0);  // kernels before the add
  if (!context.framework.fused_bias_dropout_add && separate > 0) {
    pass.kernel = MemoryKernel::kUnfused;
    pass.further_reads = builder.size(branch) * separate;
    pass.further_writes = builder.size(branch) * separate;
  }
  builder.pass(Direction::kForward, std::move(pass));
  return block;
}

SlotIndex residual_backward(TemplateBuilder& builder, const ResidualBlock& block, SlotIndex output_gradient) {
  const DeviceShape& shape = builder.shape();
  const bool dropout = builder.context().training.dropout > 0;
  std::vector<SlotIndex> bias_gradients;
  for (const Weight& bias : block.biases) bias_gradients.push_back(bias.gradient);
  if (!dropout) {
    if (bias_gradients.empty()) return output_gradient;
    builder.pass(Direction::kBackward, {.name = block.name + " bias gradient",
                                        .module = "",
                                        .reads = {output_gradient},
                                        .writes = {},
                                        .updates = bias_gradients,
                                        .holds = {}});
    return output_gradient;
  }
  const SlotIndex gradient = builder.gradient(block.name + " branch gradient", {shape.local_tokens, shape.hidden});
  KernelPass pass{.name = block.name + " backward",
                  .module = "",
                  .reads = {output_gradient},
                  .writes = {gradient},
                  .updates = bias_gradients,
                  .holds = {}};
  if (block.mask != kNoSlot) pass.reads.push_back(block.mask);
  if (!bias_gradients.empty()) pass.further_reads = builder.size(gradient);  // the sum over tokens reads what was just written
  builder.pass(Direction::kBackward, std::move(pass));
  return gradient;
}

}  // namespace stepsim
