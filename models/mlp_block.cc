#include "models/mlp_block.h"

namespace stepsim {

namespace {

constexpr Direction kForward = Direction::kForward, kBackward = Direction::kBackward;
constexpr const char* kMlp = "mlp";
constexpr const char* kActivation = "mlp,act";  // policies that drop the activation's output

bool eager_activation(const TemplateContext& context) { return !context.framework.fused_bias_activation; }

// A product and, where the activation does not add it, its bias.
SlotIndex product_forward(TemplateBuilder& builder, const Linear& linear, SlotIndex input) {
  const DeviceShape& shape = builder.shape();
  const bool separate_bias = linear.bias.present() && eager_activation(builder.context());
  const std::string output_name = linear.name + " output";
  if (!separate_bias) {
    const SlotIndex output = builder.activation(output_name, {shape.tokens, linear.outputs}, kMlp);
    linear_forward(builder, linear, input, output);
    return output;
  }
  const SlotIndex product = builder.activation(linear.name + " product", {shape.tokens, linear.outputs}, kMlp);
  linear_forward(builder, linear, input, product);
  const SlotIndex output = builder.activation(output_name, {shape.tokens, linear.outputs}, kMlp);
  builder.pass(kForward, {.name = linear.name + " bias",
                          .module = kMlp,
                          .reads = {product, linear.bias.value},
                          .writes = {output},
                          .updates = {},
                          .holds = {}});
  return output;
}

void first_forward(TemplateBuilder& builder, MlpBlock& block) {
  const DeviceShape& shape = builder.shape();
  const TemplateContext& context = builder.context();
  const bool bias = context.model.linear_bias;
  if (!context.model.gated()) {
    block.first = {make_linear(builder, "fc1", kMlp, shape.hidden, shape.ffn, bias)};
  } else if (context.framework.fused_gate_up) {
    block.first = {make_linear(builder, "gate and up", kMlp, shape.hidden, 2 * shape.ffn, bias)};
  } else {
    block.first = {make_linear(builder, "gate", kMlp, shape.hidden, shape.ffn, bias),
                   make_linear(builder, "up", kMlp, shape.hidden, shape.ffn, bias)};
  }
  for (const Linear& linear : block.first) block.first_outputs.push_back(product_forward(builder, linear, block.input.product));
  if (!context.model.gated()) return;
  if (block.first.size() == 2) {
    block.gate = block.first_outputs[0];
    block.up = block.first_outputs[1];
  } else {
    block.gate = builder.view("gate output", block.first_outputs[0], {shape.tokens, shape.ffn});
    block.up = builder.view("up output", block.first_outputs[0], {shape.tokens, shape.ffn});
  }
}

void activation_forward(TemplateBuilder& builder, MlpBlock& block) {
  const DeviceShape& shape = builder.shape();
  const TemplateContext& context = builder.context();
  block.activation_output = builder.activation("activation output", {shape.tokens, shape.ffn}, kActivation);
  if (context.model.gated() && eager_activation(context)) {
    // act(gate) * up: the product's backward needs both factors.
    block.activated_gate = builder.activation("activated gate", {shape.tokens, shape.ffn}, kActivation);
    builder.pass(
        kForward,
        {.name = "gate activation", .module = kMlp, .reads = {block.gate}, .writes = {block.activated_gate}, .updates = {}, .holds = {}});
    builder.pass(kForward, {.name = "gate product",
                            .module = kMlp,
                            .reads = {block.activated_gate, block.up},
                            .writes = {block.activation_output},
                            .updates = {},
                            .holds = {}});
    return;
  }
  KernelPass pass{
      .name = "activation", .module = kMlp, .reads = block.first_outputs, .writes = {block.activation_output}, .updates = {}, .holds = {}};
  for (const Linear& linear : block.first) {
    if (linear.bias.present() && !eager_activation(context)) pass.reads.push_back(linear.bias.value);
  }
  builder.pass(kForward, std::move(pass));
}

void bias_backward(TemplateBuilder& builder, const Linear& linear, SlotIndex output_gradient) {
  if (!linear.bias.present()) return;
  builder.pass(kBackward, {.name = linear.name + " bias gradient",
                           .module = kMlp,
                           .reads = {output_gradient},
                           .writes = {},
                           .updates = {linear.bias.gradient},
                           .holds = {}});
}

// Gradients of the two factors, then of the gate, then their concatenation where gate and up are one product.
std::vector<SlotIndex> eager_gated_backward(TemplateBuilder& builder, const MlpBlock& block, SlotIndex gradient) {
  const DeviceShape& shape = builder.shape();
  const SlotIndex activated = builder.gradient("activated gate gradient", {shape.tokens, shape.ffn});
  const SlotIndex up = builder.gradient("up gradient", {shape.tokens, shape.ffn});
  builder.pass(kBackward, {.name = "gate product backward",
                           .module = kMlp,
                           .reads = {gradient, block.activated_gate, block.up},
                           .writes = {activated, up},
                           .updates = {},
                           .holds = {}});
  const SlotIndex gate = builder.gradient("gate gradient", {shape.tokens, shape.ffn});
  builder.pass(
      kBackward,
      {.name = "gate activation backward", .module = kMlp, .reads = {activated, block.gate}, .writes = {gate}, .updates = {}, .holds = {}});
  if (block.first.size() == 2) return {gate, up};
  const SlotIndex joint = builder.gradient("gate and up gradient", {shape.tokens, 2 * shape.ffn});
  builder.pass(
      kBackward,
      {.name = "gate and up gradient concatenation", .module = kMlp, .reads = {gate, up}, .writes = {joint}, .updates = {}, .holds = {}});
  return {joint};
}

// Gradients of the first products' outputs.
std::vector<SlotIndex> activation_backward(TemplateBuilder& builder, const MlpBlock& block, SlotIndex gradient) {
  const DeviceShape& shape = builder.shape();
  const TemplateContext& context = builder.context();
  const bool eager = eager_activation(context);
  std::vector<SlotIndex> gradients;
  if (eager && context.model.gated()) {
    gradients = eager_gated_backward(builder, block, gradient);
  } else {
    KernelPass pass{.name = "activation backward", .module = kMlp, .reads = block.first_outputs, .writes = {}, .updates = {}, .holds = {}};
    pass.reads.push_back(gradient);
    for (const Linear& linear : block.first) {
      gradients.push_back(builder.gradient(linear.name + " gradient", {shape.tokens, linear.outputs}));
      if (!linear.bias.present() || eager) continue;
      pass.reads.push_back(linear.bias.value);
      pass.updates.push_back(linear.bias.gradient);
      pass.further_reads += builder.size(gradients.back());  // the sum over tokens reads what was just written
    }
    pass.writes = gradients;
    builder.pass(kBackward, std::move(pass));
  }
  if (eager) {
    for (std::size_t i = 0; i < block.first.size(); ++i) bias_backward(builder, block.first[i], gradients[i]);
  }
  return gradients;
}

}  // namespace

MlpBlock mlp_forward(TemplateBuilder& builder, const ColumnInput& input) {
  const DeviceShape& shape = builder.shape();
  const ModelSpec& model = builder.context().model;
  MlpBlock block;
  block.input = input;
  first_forward(builder, block);
  activation_forward(builder, block);
  const std::string name = model.gated() ? "down" : "fc2";
  block.second = make_linear(builder, name, kMlp, shape.ffn, shape.hidden, model.linear_bias);  // bias: replicated, added after the sum
  block.output = builder.activation(name + " output", {shape.tokens, shape.hidden});
  linear_forward(builder, block.second, block.activation_output, block.output);
  return block;
}

SlotIndex mlp_backward(TemplateBuilder& builder, const MlpBlock& block, SlotIndex output_gradient, bool reduce) {
  const SlotIndex activation_gradient = row_backward(builder, block.second, block.activation_output, output_gradient);
  const std::vector<SlotIndex> gradients = activation_backward(builder, block, activation_gradient);
  std::vector<ColumnGradient> columns;
  for (std::size_t i = 0; i < gradients.size(); ++i) columns.push_back({.linear = &block.first[i], .output_gradient = gradients[i]});
  return column_backward(builder, block.input, columns, kNoSlot, reduce);
}

}  // namespace stepsim
