#include "models/cross_attention.h"

#include <array>

namespace stepsim {

namespace {

// A product, and its bias in a kernel of its own (Megatron-LM layers.py: output = matmul + bias).
SlotIndex product_forward(TemplateBuilder& builder, Linear& linear, SlotIndex input) {
  const std::string output_name = linear.name + " output";
  if (!linear.bias.present()) {
    const SlotIndex output = builder.activation(output_name, {linear.rows, linear.outputs});
    linear_forward(builder, linear, input, output);
    return output;
  }
  const SlotIndex product = builder.activation(linear.name + " product", {linear.rows, linear.outputs});
  linear_forward(builder, linear, input, product);
  const SlotIndex output = builder.activation(output_name, {linear.rows, linear.outputs});
  builder.pass(
      kForwardOp,
      {.name = linear.name + " bias", .module = "", .reads = {product, linear.bias.value}, .writes = {output}, .updates = {}, .holds = {}});
  return output;
}

SlotIndex linear_gradient(TemplateBuilder& builder, const ColumnInput& input, const Linear& linear, SlotIndex output_gradient) {
  bias_backward(builder, linear, output_gradient);
  const std::array<ColumnGradient, 1> columns = {ColumnGradient{.linear = &linear, .output_gradient = output_gradient}};
  return column_backward(builder, input, columns, kNoSlot, true);
}

}  // namespace

CrossAttention cross_attention_forward(TemplateBuilder& builder, const ColumnInput& input, SlotIndex memory,
                                       const DeviceShape& memory_shape) {
  const DeviceShape& shape = builder.shape();
  const ModelSpec& model = builder.context().model;
  const bool bias = model.linear_bias || model.qkv_bias;
  CrossAttention cross;
  cross.input = input;
  cross.memory = gathered_input(builder, "encoder output of cross attention", memory, "");
  cross.memory_tokens = memory_shape.tokens;
  cross.query = make_linear(builder, "cross query", "", shape.hidden, shape.query_width(), bias);
  const SlotIndex query = product_forward(builder, cross.query, input.product);
  cross.key_value = make_linear(builder, "cross key and value", "", shape.hidden, 2 * shape.kv_width(), bias);
  cross.key_value.rows = memory_shape.tokens;
  const SlotIndex mixed = product_forward(builder, cross.key_value, cross.memory.product);
  const std::vector<std::int64_t> part = {memory_shape.tokens, shape.kv_heads, shape.head_dim};
  cross.mixed_key = builder.view("cross key", mixed, part);
  cross.mixed_value = builder.view("cross value", mixed, part);
  const AttentionForm form{.queries = shape.sequence,
                           .keys = memory_shape.keys,
                           .heads = shape.query_heads,
                           .kv_heads = shape.kv_heads,
                           .head_dim = shape.head_dim,
                           .value_dim = shape.head_dim,
                           .causal = false};
  builder.set_prefix("cross ");
  cross.core = core_attention_forward(builder, form, query, cross.mixed_key, cross.mixed_value);
  builder.set_prefix("");
  cross.projection = make_linear(builder, "cross attention projection", "", shape.query_width(), shape.hidden, false);
  // Replicated, added after the sum over the group.
  if (model.linear_bias) cross.projection.bias = builder.weight("cross attention projection bias", {shape.hidden});
  cross.output = builder.activation("cross attention projection output", {shape.tokens, shape.hidden});
  linear_forward(builder, cross.projection, cross.core.output, cross.output);
  return cross;
}

CrossGradients cross_attention_backward(TemplateBuilder& builder, const CrossAttention& cross, SlotIndex output_gradient) {
  const DeviceShape& shape = builder.shape();
  const SlotIndex context_gradient = row_backward(builder, cross.projection, cross.core.output, output_gradient);
  builder.set_prefix("cross ");
  const QkvGradients gradients = core_attention_backward(builder, cross.core, context_gradient, kNoSlot);
  builder.set_prefix("");
  const SlotIndex mixed = builder.gradient("cross key and value output gradient", {cross.memory_tokens, 2 * shape.kv_width()});
  builder.pass(kBackwardOp, {.name = "cross key and value gradient concatenation",  // backward of the split
                             .module = "",
                             .reads = {gradients.key, gradients.value},
                             .writes = {mixed},
                             .updates = {},
                             .holds = {}});
  CrossGradients ends;
  ends.memory = linear_gradient(builder, cross.memory, cross.key_value, mixed);
  ends.input = linear_gradient(builder, cross.input, cross.query, gradients.query);
  return ends;
}

}  // namespace stepsim
