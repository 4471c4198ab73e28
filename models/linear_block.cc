#include "models/linear_block.h"

namespace stepsim {

namespace {

constexpr Direction kForward = Direction::kForward, kBackward = Direction::kBackward;

SlotIndex input_gradient(TemplateBuilder& builder, const Linear& linear, SlotIndex output_gradient) {
  const DeviceShape& shape = builder.shape();
  const std::string name = linear.name + " input gradient";
  const SlotIndex gradient = builder.gradient(name, {shape.tokens, linear.inputs});
  const Gemm work{.m = shape.tokens, .n = linear.inputs, .k = linear.outputs, .dtype = shape.compute};
  builder.gemm(kBackward, name, linear.module, work, {output_gradient, linear.weight.value}, gradient);
  return gradient;
}

void weight_gradient(TemplateBuilder& builder, const Linear& linear, SlotIndex input, SlotIndex output_gradient) {
  const DeviceShape& shape = builder.shape();
  const Gemm work{.m = linear.outputs,
                  .n = linear.inputs,
                  .k = shape.tokens,
                  .dtype = shape.compute,
                  .transpose_b = true,
                  .accumulate_fp32 = shape.gradient == DType::kFp32,
                  .accumulate = builder.adds_to_gradients()};
  builder.gemm(kBackward, linear.name + " weight gradient", linear.module, work, {output_gradient, input}, linear.weight.gradient);
}

SlotIndex reduced_gradient(TemplateBuilder& builder, const std::string& name, SlotIndex partial) {
  const DeviceShape& shape = builder.shape();
  const bool beside = builder.context().framework.backward_all_reduce_overlaps_weight_gradient;
  if (!shape.sequence_parallel) {
    builder.collective(kBackward, {.name = name + " gradient all-reduce", .module = "", .input = partial, .beside_compute = beside});
    return partial;
  }
  const SlotIndex local = builder.gradient(name + " gradient, scattered", {shape.local_tokens, shape.hidden});
  builder.collective(kBackward, {.name = name + " gradient reduce-scatter",
                                 .module = "",
                                 .kind = CollectiveKind::kReduceScatter,
                                 .input = partial,
                                 .output = local,
                                 .beside_compute = beside});
  return local;
}

}  // namespace

Linear make_linear(TemplateBuilder& builder, const std::string& name, const std::string& module, std::int64_t inputs, std::int64_t outputs,
                   bool bias) {
  Linear linear{.name = name, .module = module, .inputs = inputs, .outputs = outputs, .weight = {}, .bias = {}};
  linear.weight = builder.weight(name + " weight", {outputs, inputs});
  if (bias) linear.bias = builder.weight(name + " bias", {outputs});
  return linear;
}

void linear_forward(TemplateBuilder& builder, const Linear& linear, SlotIndex input, SlotIndex output) {
  const DeviceShape& shape = builder.shape();
  const Gemm work{.m = shape.tokens, .n = linear.outputs, .k = linear.inputs, .dtype = shape.compute, .transpose_a = true};
  builder.gemm(kForward, linear.name, linear.module, work, {input, linear.weight.value}, output);
}

ColumnInput gathered_input(TemplateBuilder& builder, const std::string& name, SlotIndex local, const std::string& module) {
  const DeviceShape& shape = builder.shape();
  if (!shape.sequence_parallel) return {.name = name, .product = local, .saved = local};
  const bool again = builder.context().framework.sequence_parallel_gather_again;
  const std::vector<std::int64_t> whole_shape = {shape.tokens, shape.hidden};
  const std::string whole_name = name + ", gathered";
  const SlotIndex whole =
      again ? builder.gathered(whole_name, whole_shape) : builder.activation(whole_name, whole_shape, builder.module_of(local));
  builder.collective(kForward,
                     {.name = name + " all-gather", .module = module, .kind = CollectiveKind::kAllGather, .input = local, .output = whole});
  return {.name = name, .product = whole, .saved = again ? local : whole, .gathered_again = again};
}

SlotIndex column_backward(TemplateBuilder& builder, const ColumnInput& input, std::span<const ColumnGradient> gradients, SlotIndex partial,
                          bool reduce) {
  const DeviceShape& shape = builder.shape();
  const std::string& first = gradients.front().linear->name;
  SlotIndex whole = input.saved;
  if (input.gathered_again) {
    // Only the weight gradient needs it: gathered beside the input gradient (arXiv 2205.05198, section 4.2.2).
    whole = builder.gathered(input.name + ", gathered for " + first, {shape.tokens, shape.hidden});
    builder.collective(kBackward, {.name = input.name + " all-gather",
                                   .module = "",
                                   .kind = CollectiveKind::kAllGather,
                                   .input = input.saved,
                                   .output = whole,
                                   .beside_compute = true});
  }
  SlotIndex sum = partial;
  for (const ColumnGradient& gradient : gradients) {
    const SlotIndex added = input_gradient(builder, *gradient.linear, gradient.output_gradient);
    if (sum != kNoSlot) {
      builder.pass(kBackward, {.name = "input gradient sum", .module = "", .reads = {sum}, .writes = {}, .updates = {added}, .holds = {}});
    }
    sum = added;
  }
  if (reduce) sum = reduced_gradient(builder, first, sum);
  for (const ColumnGradient& gradient : gradients) weight_gradient(builder, *gradient.linear, whole, gradient.output_gradient);
  return sum;
}

SlotIndex reduced_output(TemplateBuilder& builder, const std::string& name, const std::string& module, SlotIndex partial) {
  const DeviceShape& shape = builder.shape();
  if (!shape.sequence_parallel) {
    builder.collective(kForward, {.name = name + " all-reduce", .module = module, .input = partial});
    return partial;
  }
  const SlotIndex local = builder.activation(name + ", scattered", {shape.local_tokens, shape.hidden});
  builder.collective(
      kForward,
      {.name = name + " reduce-scatter", .module = module, .kind = CollectiveKind::kReduceScatter, .input = partial, .output = local});
  return local;
}

SlotIndex gathered_gradient(TemplateBuilder& builder, const std::string& name, const std::string& module, SlotIndex local) {
  const DeviceShape& shape = builder.shape();
  if (!shape.sequence_parallel) return local;
  const SlotIndex whole = builder.gathered(name + " gradient, gathered", {shape.tokens, shape.hidden});
  builder.collective(
      kBackward,
      {.name = name + " gradient all-gather", .module = module, .kind = CollectiveKind::kAllGather, .input = local, .output = whole});
  return whole;
}

SlotIndex row_backward(TemplateBuilder& builder, const Linear& linear, SlotIndex input, SlotIndex output_gradient) {
  const SlotIndex gradient = input_gradient(builder, linear, output_gradient);
  weight_gradient(builder, linear, input, output_gradient);
  return gradient;
}

}  // namespace stepsim
