#include "models/separate_heads.h"

#include <array>
#include <utility>
#include <vector>

namespace stepsim {

namespace {

SlotIndex product_forward(TemplateBuilder& builder, const AttentionBlock& block, Linear& linear, std::int64_t heads) {
  const DeviceShape& shape = builder.shape();
  const std::vector<std::int64_t> whole = {shape.tokens, heads, shape.head_dim};
  // One cast serves all three where the cast is what is saved.
  const bool shares_cast = builder.context().framework.saves_quantised_inputs && &linear != &block.separate.front();
  const Linear* const cast = shares_cast ? &block.separate.front() : nullptr;
  const SlotIndex product = builder.activation(linear.name + (linear.bias.present() ? " product" : " output"), whole);
  linear_forward(builder, linear, block.input.product, product, cast);
  if (!linear.bias.present()) return product;
  const SlotIndex output = builder.activation(linear.name + " output", whole);
  builder.pass(
      kForwardOp,
      {.name = linear.name + " bias", .module = "", .reads = {product, linear.bias.value}, .writes = {output}, .updates = {}, .holds = {}});
  return output;
}

struct Pair {
  SlotIndex query = kNoSlot, key = kNoSlot;
};

Pair gradients_of(TemplateBuilder& builder, const AttentionBlock& block, const char* suffix) {
  return {builder.gradient(std::string("query") + suffix, builder.slot(block.mixed_query).shape),
          builder.gradient(std::string("key") + suffix, builder.slot(block.mixed_key).shape)};
}

Pair rotary_backward(TemplateBuilder& builder, const AttentionBlock& block, const Pair& gradients) {
  if (!block.rotary) return gradients;
  const Pair rotated = gradients_of(builder, block, block.query_norm.present() ? ", normalised gradient" : " output gradient");
  KernelPass pass{.name = "rotary backward",
                  .module = "",
                  .reads = {gradients.query, gradients.key},
                  .writes = {rotated.query, rotated.key},
                  .updates = {},
                  .holds = {}};
  eager_rotary(builder, pass, builder.size(gradients.query) + builder.size(gradients.key));
  builder.pass(kBackwardOp, std::move(pass));
  return rotated;
}

Pair qk_norm_backward(TemplateBuilder& builder, const AttentionBlock& block, const Pair& gradients) {
  if (!block.query_norm.present()) return gradients;
  const Pair outputs = gradients_of(builder, block, " output gradient");
  KernelPass pass{
      .name = "qk norm backward",
      .module = "",
      .reads = {gradients.query, gradients.key, block.mixed_query, block.mixed_key, block.query_norm.value, block.key_norm.value},
      .writes = {outputs.query, outputs.key},
      .updates = {block.query_norm.gradient, block.key_norm.gradient},
      .holds = {},
      .kernel = MemoryKernel::kNorm};
  add_qk_norm_operands(block, pass);
  builder.pass(kBackwardOp, std::move(pass));
  return outputs;
}

}  // namespace

void separate_forward(TemplateBuilder& builder, AttentionBlock& block) {
  const DeviceShape& shape = builder.shape();
  const ModelSpec& model = builder.context().model;
  const bool bias = model.linear_bias || model.qkv_bias;
  block.separate = {make_linear(builder, "query", "", shape.hidden, shape.query_width(), bias),
                    make_linear(builder, "key", "", shape.hidden, shape.kv_width(), bias),
                    make_linear(builder, "value", "", shape.hidden, shape.kv_width(), bias)};
  block.mixed_query = product_forward(builder, block, block.separate[0], shape.query_heads);
  block.mixed_key = product_forward(builder, block, block.separate[1], shape.kv_heads);
  block.mixed_value = product_forward(builder, block, block.separate[2], shape.kv_heads);
}

CoreHeads separate_rotary_forward(TemplateBuilder& builder, const CoreHeads& heads) {
  const CoreHeads rotated{.query = builder.activation("query", builder.slot(heads.query).shape),
                          .key = builder.activation("key", builder.slot(heads.key).shape),
                          .value = heads.value};
  KernelPass pass{.name = "rotary",
                  .module = "",
                  .reads = {heads.query, heads.key},
                  .writes = {rotated.query, rotated.key},
                  .updates = {},
                  .holds = {}};
  eager_rotary(builder, pass, builder.size(rotated.query) + builder.size(rotated.key));
  builder.pass(kForwardOp, std::move(pass));
  return rotated;
}

SlotIndex separate_backward(TemplateBuilder& builder, const AttentionBlock& block, const QkvGradients& gradients, SlotIndex partial) {
  const Pair pair = qk_norm_backward(builder, block, rotary_backward(builder, block, {gradients.query, gradients.key}));
  const std::array<SlotIndex, 3> outputs = {pair.query, pair.key, gradients.value};
  std::vector<ColumnGradient> columns;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Linear& linear = block.separate[i];
    if (linear.bias.present()) {
      builder.pass(kBackwardOp, {.name = linear.name + " bias gradient",
                                 .module = "",
                                 .reads = {outputs[i]},
                                 .writes = {},
                                 .updates = {linear.bias.gradient},
                                 .holds = {}});
    }
    columns.push_back({.linear = &linear, .output_gradient = outputs[i]});
  }
  return column_backward(builder, block.input, columns, partial, true);
}

}  // namespace stepsim
