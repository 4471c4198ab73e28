#include "models/mlp_block.h"

#include <utility>

#include "models/low_precision.h"
#include "sim/check.h"

namespace stepsim {

namespace {

bool eager_activation(const TemplateContext& context) { return !context.framework.fused_bias_activation; }
bool is_routed(const MlpForm& form) { return form.experts > 0; }

bool rides_on_products(const TemplateBuilder& builder, const MlpForm& form) {
  const TemplateContext& context = builder.context();
  return is_routed(form) && context.framework.fused_expert_mlp && context.training.precision == Precision::kMxFp8 &&
         builder.low_precision() && context.framework.groups_expert_products &&
         context.training.trainable.kind != TrainableMask::Kind::kLora;
}

// Of the experts' products: how many kernels at a time, 0 where they are one.
std::int8_t products_in_flight(const TemplateBuilder& builder, const MlpForm& form) {
  const TemplateContext& context = builder.context();
  const FrameworkPreset& framework = context.framework;
  if (!framework.groups_expert_products) return 1;
  // A graph of a whole step has no counts on the host: Transformer Engine's grouped kernels, which read them on the device.
  const bool on_device = context.training.cuda_graph.value_or(framework.cuda_graph) == CudaGraph::kFull;
  return rides_on_products(builder, form) || on_device ? std::int8_t{0} : static_cast<std::int8_t>(framework.expert_streams);
}

Linear product(TemplateBuilder& builder, const MlpForm& form, const std::string& name, std::int64_t inputs, std::int64_t outputs) {
  const std::string whole = form.prefix + name;
  if (is_routed(form)) {
    Linear linear = make_expert_linear(builder, whole, form.module, inputs, outputs, form.rows, form.bias);
    linear.in_flight = products_in_flight(builder, form);
    return linear;
  }
  return make_linear(builder, whole, form.module, inputs, outputs, form.bias);
}

// A product and, where the activation does not add it, its bias. `cast`: of the other product of the same input.
SlotIndex product_forward(TemplateBuilder& builder, const MlpForm& form, Linear& linear, SlotIndex input, const Linear* cast) {
  const bool separate_bias = linear.bias.present() && eager_activation(builder.context());
  const std::string output_name = linear.name + " output";
  if (!separate_bias) {
    const SlotIndex output = builder.activation(output_name, {form.rows, linear.outputs}, form.module);
    linear_forward(builder, linear, input, output, cast);
    return output;
  }
  const SlotIndex product = builder.activation(linear.name + " product", {form.rows, linear.outputs}, form.module);
  linear_forward(builder, linear, input, product, cast);
  const SlotIndex output = builder.activation(output_name, {form.rows, linear.outputs}, form.module);
  builder.pass(kForwardOp, {.name = linear.name + " bias",
                            .module = form.module,
                            .reads = {product, linear.bias.value},
                            .writes = {output},
                            .updates = {},
                            .holds = {}});
  return output;
}

void first_forward(TemplateBuilder& builder, MlpBlock& block) {
  const TemplateContext& context = builder.context();
  const MlpForm& form = block.form;
  const std::int64_t hidden = builder.shape().hidden;
  if (!context.model.gated()) {
    block.first = {product(builder, form, "fc1", hidden, form.ffn)};
  } else if (context.framework.fused_gate_up) {
    block.first = {product(builder, form, "gate and up", hidden, 2 * form.ffn)};
  } else {
    block.first.push_back(product(builder, form, "gate", hidden, form.ffn));
    block.first.push_back(product(builder, form, "up", hidden, form.ffn));
  }
  for (Linear& linear : block.first) {
    const Linear* const cast = &linear == &block.first.front() ? nullptr : &block.first.front();
    block.first_outputs.push_back(product_forward(builder, form, linear, block.input.product, cast));
  }
  if (!context.model.gated()) return;
  if (block.first.size() == 2) {
    block.gate = block.first_outputs[0];
    block.up = block.first_outputs[1];
  } else {
    block.gate = builder.view(form.prefix + "gate output", block.first_outputs[0], {form.rows, form.ffn});
    block.up = builder.view(form.prefix + "up output", block.first_outputs[0], {form.rows, form.ffn});
  }
}

// Whether one kernel scales by the probabilities too: Megatron-LM's fused_bias_swiglu.py weighted_bias_swiglu_impl; of other activations
// since 2025-04 it makes the product in a kernel of its own (moe/experts.py).
bool scales_in_activation(const TemplateContext& context, const MlpForm& form) {
  const bool fused = context.model.gated() ? !eager_activation(context) : !context.framework.copies_expert_probabilities;
  return form.probabilities != kNoSlot && fused;
}

// See eager_expert_activation.h.
bool runs_eagerly(const TemplateContext& context, const MlpForm& form) {
  return is_routed(form) && context.framework.eager_expert_activation && context.model.gated();
}

// What the first product writes beside its output: the activation, cast by rows and by columns.
void fused_forward(TemplateBuilder& builder, MlpBlock& block) {
  const MlpForm& form = block.form;
  const auto copy = [&](const char* suffix) {
    return low_slot(builder, form.prefix + "activation output" + suffix, SlotKind::kForward, form.rows, form.ffn, form.activation_module);
  };
  block.activation_output = copy("");
  const SlotIndex columns = copy(" by columns");
  builder.set_by_columns(block.activation_output, columns);
  KernelPass pass{.name = form.prefix + "activation in the product",
                  .module = form.module,
                  .reads = {},
                  .writes = {block.activation_output, columns},
                  .updates = {},
                  .holds = block.first_outputs,
                  .kernel = MemoryKernel::kQuantize};
  if (form.probabilities != kNoSlot) pass.reads.push_back(form.probabilities);
  builder.pass(kForwardOp, std::move(pass));
}

void eager_forward(TemplateBuilder& builder, MlpBlock& block) {
  const MlpForm& form = block.form;
  block.eager = ExpertActivation{.prefix = form.prefix,
                                 .module = form.module,
                                 .activation_module = form.activation_module,
                                 .rows = form.rows,
                                 .ffn = form.ffn,
                                 .joint = block.first.size() == 1 ? block.first_outputs.front() : kNoSlot,
                                 .gate = block.gate,
                                 .up = block.up,
                                 .probabilities = form.probabilities};
  eager_activation_forward(builder, *block.eager);
  block.activation_output = block.eager->output;
}

// act(gate) * up: the product's backward needs both factors.
void eager_gated_forward(TemplateBuilder& builder, MlpBlock& block) {
  const MlpForm& form = block.form;
  block.activated_gate = builder.activation(form.prefix + "activated gate", {form.rows, form.ffn}, form.activation_module);
  builder.pass(kForwardOp, {.name = form.prefix + "gate activation",
                            .module = form.module,
                            .reads = {block.gate},
                            .writes = {block.activated_gate},
                            .updates = {},
                            .holds = {}});
  builder.pass(kForwardOp, {.name = form.prefix + "gate product",
                            .module = form.module,
                            .reads = {block.activated_gate, block.up},
                            .writes = {block.activation_output},
                            .updates = {},
                            .holds = {}});
}

void activation_forward(TemplateBuilder& builder, MlpBlock& block) {
  const TemplateContext& context = builder.context();
  const MlpForm& form = block.form;
  block.in_products = rides_on_products(builder, form);
  if (block.in_products) return fused_forward(builder, block);
  if (runs_eagerly(context, form)) return eager_forward(builder, block);
  block.activation_output = builder.activation(form.prefix + "activation output", {form.rows, form.ffn}, form.activation_module);
  if (context.model.gated() && eager_activation(context)) {
    eager_gated_forward(builder, block);
    return;
  }
  KernelPass pass{.name = form.prefix + "activation",
                  .module = form.module,
                  .reads = block.first_outputs,
                  .writes = {block.activation_output},
                  .updates = {},
                  .holds = {}};
  for (const Linear& linear : block.first) {
    if (linear.bias.present() && !eager_activation(context)) pass.reads.push_back(linear.bias.value);
  }
  if (scales_in_activation(context, form)) pass.reads.push_back(form.probabilities);
  builder.pass(kForwardOp, std::move(pass));
}

// Returns what the last product reads.
SlotIndex weighted_forward(TemplateBuilder& builder, MlpBlock& block) {
  const MlpForm& form = block.form;
  const bool scaled = block.in_products || block.eager || scales_in_activation(builder.context(), form);
  if (form.probabilities == kNoSlot || scaled) return block.activation_output;
  block.weighted = builder.activation(form.prefix + "weighted output", {form.rows, form.ffn}, form.activation_module);
  builder.pass(kForwardOp, {.name = form.prefix + "probability product",
                            .module = form.module,
                            .reads = {block.activation_output, form.probabilities},
                            .writes = {block.weighted},
                            .updates = {},
                            .holds = {}});
  return block.weighted;
}

// Gradients of the two factors, then of the gate, then their concatenation where gate and up are one product.
std::vector<SlotIndex> eager_gated_backward(TemplateBuilder& builder, const MlpBlock& block, SlotIndex gradient) {
  const MlpForm& form = block.form;
  const SlotIndex activated = builder.gradient(form.prefix + "activated gate gradient", {form.rows, form.ffn});
  const SlotIndex up = builder.gradient(form.prefix + "up gradient", {form.rows, form.ffn});
  builder.pass(kBackwardOp, {.name = form.prefix + "gate product backward",
                             .module = form.module,
                             .reads = {gradient, block.activated_gate, block.up},
                             .writes = {activated, up},
                             .updates = {},
                             .holds = {}});
  const SlotIndex gate = builder.gradient(form.prefix + "gate gradient", {form.rows, form.ffn});
  builder.pass(kBackwardOp, {.name = form.prefix + "gate activation backward",
                             .module = form.module,
                             .reads = {activated, block.gate},
                             .writes = {gate},
                             .updates = {},
                             .holds = {}});
  if (block.first.size() == 2) return {gate, up};
  const SlotIndex joint = builder.gradient(form.prefix + "gate and up gradient", {form.rows, 2 * form.ffn});
  builder.pass(kBackwardOp, {.name = form.prefix + "gate and up gradient concatenation",
                             .module = form.module,
                             .reads = {gate, up},
                             .writes = {joint},
                             .updates = {},
                             .holds = {}});
  return {joint};
}

SlotIndex add_probability_gradient(TemplateBuilder& builder, const MlpForm& form) {
  return builder.add({.name = form.prefix + "probability gradient",
                      .kind = SlotKind::kGradient,
                      .size = {},
                      .shape = {form.rows},
                      .dtype = DType::kFp32,
                      .role = Role::kActivationGradients,
                      .module = ""});
}

struct ActivationGradients {
  std::vector<SlotIndex> first;  // of the first products' outputs
  SlotIndex probabilities = kNoSlot;
};

void fused_backward(TemplateBuilder& builder, const MlpBlock& block, SlotIndex gradient, ActivationGradients& gradients) {
  const TemplateContext& context = builder.context();
  const MlpForm& form = block.form;
  KernelPass pass{.name = form.prefix + "activation backward",
                  .module = form.module,
                  .reads = block.first_outputs,
                  .writes = {},
                  .updates = {},
                  .holds = {}};
  pass.reads.push_back(gradient);
  for (const Linear& linear : block.first) {
    gradients.first.push_back(builder.gradient(linear.name + " gradient", {form.rows, linear.outputs}));
    if (!linear.bias.present() || eager_activation(context)) continue;
    pass.reads.push_back(linear.bias.value);
    pass.updates.push_back(linear.bias.gradient);
    pass.further_reads += builder.size(gradients.first.back());  // the sum over tokens reads what was just written
  }
  pass.writes = gradients.first;
  if (scales_in_activation(context, form)) {
    gradients.probabilities = add_probability_gradient(builder, form);
    pass.reads.push_back(form.probabilities);
    pass.writes.push_back(gradients.probabilities);
    // torch.compile makes two kernels of it: the concatenated gradient of gate and up, and the sum over features, which reads both inputs
    // again (Megatron-LM fusions/fused_bias_swiglu.py weighted_swiglu_back, jit_fuser).
    if (context.model.gated() && block.first.size() == 1) {
      pass.further_reads += builder.size(gradient) + builder.size(block.first_outputs.front());
      pass.launches = 2;
    }
  }
  builder.pass(kBackwardOp, std::move(pass));
}

// What the second product's input gradient reads and writes beside its own: the gradient of the first's output, cast.
ActivationGradients in_products_backward(TemplateBuilder& builder, const MlpBlock& block, SlotIndex gradient) {
  const MlpForm& form = block.form;
  ActivationGradients gradients;
  KernelPass pass{.name = form.prefix + "activation backward in the product",
                  .module = form.module,
                  .reads = block.first_outputs,
                  .writes = {},
                  .updates = {},
                  .holds = {gradient},
                  .kernel = MemoryKernel::kQuantize};
  for (const Linear& linear : block.first) {
    const auto copy = [&](const char* suffix) {
      return low_slot(builder, linear.name + " gradient" + suffix, SlotKind::kGradient, form.rows, linear.outputs, "");
    };
    gradients.first.push_back(copy(", quantised"));
    const SlotIndex columns = copy(", quantised by columns");
    builder.set_by_columns(gradients.first.back(), columns);
    pass.writes.push_back(gradients.first.back());
    pass.writes.push_back(columns);
    if (linear.bias.present()) pass.updates.push_back(linear.bias.gradient);
  }
  if (form.probabilities != kNoSlot) {
    gradients.probabilities = add_probability_gradient(builder, form);
    pass.reads.push_back(form.probabilities);
    pass.writes.push_back(gradients.probabilities);
  }
  builder.pass(kBackwardOp, std::move(pass));
  return gradients;
}

ActivationGradients eager_backward(TemplateBuilder& builder, const MlpBlock& block, SlotIndex gradient) {
  const ExpertActivationGradients made = eager_activation_backward(builder, *block.eager, gradient);
  ActivationGradients gradients;
  gradients.probabilities = made.probabilities;
  if (made.joint != kNoSlot) {
    gradients.first = {made.joint};
  } else {
    gradients.first = {made.gate, made.up};
  }
  for (std::size_t i = 0; i < block.first.size(); ++i) bias_backward(builder, block.first[i], gradients.first[i]);
  return gradients;
}

ActivationGradients activation_backward(TemplateBuilder& builder, const MlpBlock& block, SlotIndex gradient) {
  const TemplateContext& context = builder.context();
  const MlpForm& form = block.form;
  if (block.in_products) return in_products_backward(builder, block, gradient);
  if (block.eager) return eager_backward(builder, block, gradient);
  const bool eager = eager_activation(context);
  ActivationGradients gradients;
  if (block.weighted != kNoSlot) {
    const SlotIndex unscaled = builder.gradient(form.prefix + "activation gradient, unscaled", {form.rows, form.ffn});
    gradients.probabilities = add_probability_gradient(builder, form);
    builder.pass(kBackwardOp, {.name = form.prefix + "probability product backward",
                               .module = form.module,
                               .reads = {gradient, block.activation_output, form.probabilities},
                               .writes = {unscaled, gradients.probabilities},
                               .updates = {},
                               .holds = {}});
    gradient = unscaled;
  }
  if (eager && context.model.gated()) {
    gradients.first = eager_gated_backward(builder, block, gradient);
  } else {
    fused_backward(builder, block, gradient, gradients);
  }
  if (eager) {
    for (std::size_t i = 0; i < block.first.size(); ++i) bias_backward(builder, block.first[i], gradients.first[i]);
  }
  return gradients;
}

SlotIndex last_input(const MlpBlock& block) { return block.weighted != kNoSlot ? block.weighted : block.activation_output; }

// Of routed experts whose last bias is added kernel by kernel.
bool has_eager_bias(const MlpBlock& block) { return block.eager && block.second.bias.present() && block.form.probabilities != kNoSlot; }
ExpertBias eager_bias(const MlpBlock& block) {
  return {.name = block.second.name, .module = block.form.module, .bias = block.second.bias, .probabilities = block.form.probabilities};
}

struct BlockGradients {
  SlotIndex input = kNoSlot, probabilities = kNoSlot;
};

BlockGradients block_backward(TemplateBuilder& builder, const MlpBlock& block, SlotIndex output_gradient, bool reduce) {
  const SlotIndex activation_gradient = row_backward(builder, block.second, last_input(block), output_gradient);
  const ActivationGradients gradients = activation_backward(builder, block, activation_gradient);
  std::vector<ColumnGradient> columns;
  for (std::size_t i = 0; i < gradients.first.size(); ++i) {
    columns.push_back({.linear = &block.first[i], .output_gradient = gradients.first[i]});
  }
  return {column_backward(builder, block.input, columns, kNoSlot, reduce), gradients.probabilities};
}

}  // namespace

MlpForm dense_mlp(const TemplateBuilder& builder) {
  const TemplateContext& context = builder.context();
  STEPSIM_CHECK(context.model.ffn_hidden % context.parallel.tensor == 0);
  return {.prefix = "",
          .module = "mlp",
          .activation_module = "mlp,act",
          .ffn = builder.shape().ffn,
          .rows = builder.shape().tokens,
          .bias = context.model.linear_bias};
}

MlpBlock mlp_forward(TemplateBuilder& builder, const ColumnInput& input) { return mlp_forward(builder, dense_mlp(builder), input); }

MlpBlock mlp_forward(TemplateBuilder& builder, const MlpForm& form, const ColumnInput& input) {
  MlpBlock block{.form = form, .input = input, .first = {}, .first_outputs = {}, .eager = {}, .second = {}};
  first_forward(builder, block);
  activation_forward(builder, block);
  const std::string name = builder.context().model.gated() ? "down" : "fc2";
  const SlotIndex operand = weighted_forward(builder, block);
  block.second = product(builder, form, name, form.ffn, builder.shape().hidden);  // bias: replicated, added after the sum
  block.output =
      builder.activation(form.prefix + name + " output", {form.rows, builder.shape().hidden}, is_routed(form) ? form.module : "");
  linear_forward(builder, block.second, operand, block.output);
  if (!is_routed(form) || !block.second.bias.present()) return block;
  if (has_eager_bias(block)) {
    block.output = eager_bias_forward(builder, eager_bias(block), block.output);
    return block;
  }
  KernelPass pass{.name = form.prefix + name + " bias",
                  .module = form.module,
                  .reads = {block.second.bias.value},
                  .writes = {},
                  .updates = {block.output},
                  .holds = {}};
  if (form.probabilities != kNoSlot) pass.reads.push_back(form.probabilities);
  builder.pass(kForwardOp, std::move(pass));
  return block;
}

SlotIndex mlp_backward(TemplateBuilder& builder, const MlpBlock& block, SlotIndex output_gradient, bool reduce) {
  STEPSIM_CHECK(!is_routed(block.form));
  return block_backward(builder, block, output_gradient, reduce).input;
}

ExpertGradients expert_mlp_backward(TemplateBuilder& builder, const MlpBlock& block, SlotIndex output_gradient) {
  STEPSIM_CHECK(is_routed(block.form));
  if (!has_eager_bias(block)) {
    bias_backward(builder, block.second, output_gradient);
    const BlockGradients gradients = block_backward(builder, block, output_gradient, false);
    return {gradients.input, gradients.probabilities};
  }
  const ExpertBiasGradients bias = eager_bias_backward(builder, eager_bias(block), output_gradient);
  const BlockGradients gradients = block_backward(builder, block, bias.product, false);
  builder.pass(kBackwardOp, {.name = block.form.prefix + "probability gradient of both",
                             .module = block.form.module,
                             .reads = {bias.probabilities},
                             .writes = {},
                             .updates = {gradients.probabilities},
                             .holds = {}});
  return {gradients.input, gradients.probabilities};
}

}  // namespace stepsim
