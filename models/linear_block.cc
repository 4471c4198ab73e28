#include "models/linear_block.h"

#include <algorithm>

#include "models/low_precision.h"
#include "models/stored_format.h"
#include "models/tensor_overlap.h"
#include "models/trainable.h"
#include "sim/check.h"

namespace stepsim {

namespace {

std::int64_t rows_of(const TemplateBuilder& builder, const Linear& linear) {
  return linear.rows > 0 ? linear.rows : builder.shape().tokens;
}

// Rows of one of the groups' products.
std::int64_t group_rows(const TemplateBuilder& builder, const Linear& linear) {
  return std::max<std::int64_t>(1, rows_of(builder, linear) / linear.groups);
}

bool is_low(const TemplateBuilder& builder, const Linear& linear) { return linear.low_precision && builder.low_precision(); }

// Kernels of a cast of what a product reads: each group's rows are cast on their own where its product is.
std::int32_t cast_launches(const TemplateBuilder& builder, const Linear& linear) {
  return linear.in_flight > 0 ? grouped_cast_launches(builder.context().training, linear.groups) : 1;
}

DType product_dtype(const TemplateBuilder& builder, const Linear& linear) {
  return is_low(builder, linear) ? builder.shape().product : builder.shape().compute;
}

bool is_trained(const Linear& linear) { return linear.weight.gradient != kNoSlot; }

// What a product reads as the weight: itself, or the 16-bit copy that is made of a weight in 4 bits for each product (bitsandbytes
// autograd/_functions.py MatMul4Bit: dequantize_4bit in forward and in backward).
SlotIndex weight_operand(TemplateBuilder& builder, Direction direction, const Linear& linear) {
  if (builder.slot(linear.weight.value).dtype != DType::kUint8) return linear.weight.value;
  const std::string suffix = direction == kForwardOp ? ", dequantised" : ", dequantised again";
  std::vector<std::int64_t> shape = builder.slot(linear.weight.value).shape;
  const SlotIndex whole = builder.add({.name = linear.name + " weight" + suffix,
                                       .kind = SlotKind::kWorkspace,
                                       .size = {},
                                       .shape = std::move(shape),
                                       .dtype = builder.shape().compute,
                                       .role = Role::kWorkspace,
                                       .module = ""});
  builder.pass(direction, {.name = linear.name + " weight dequantisation",
                           .module = linear.module,
                           .reads = {linear.weight.value},
                           .writes = {whole},
                           .updates = {},
                           .holds = {}});
  return whole;
}

SlotIndex input_gradient(TemplateBuilder& builder, const Linear& linear, SlotIndex output_gradient) {
  const std::string name = linear.name + " input gradient";
  const SlotIndex weight = weight_operand(builder, kBackwardOp, linear);
  const SlotIndex gradient = builder.gradient(name, {rows_of(builder, linear), linear.inputs});
  const Gemm work{.m = group_rows(builder, linear),
                  .n = linear.inputs,
                  .k = linear.outputs,
                  .batch = linear.groups,
                  .dtype = product_dtype(builder, linear),
                  .in_flight = linear.in_flight};
  builder.gemm(kBackwardOp, name, linear.module, work, {output_gradient, weight}, gradient);
  return gradient;
}

struct WeightGradient {
  std::string name;
  std::int64_t outputs = 0, inputs = 0;
  DType dtype = DType::kBf16;
  SlotIndex output_gradient = kNoSlot, input = kNoSlot, gradient = kNoSlot;
};

void weight_gradient(TemplateBuilder& builder, const Linear& linear, const WeightGradient& product) {
  const Gemm work{.m = product.outputs,
                  .n = product.inputs,
                  .k = group_rows(builder, linear),
                  .batch = linear.groups,
                  .dtype = product.dtype,
                  .transpose_b = true,
                  .accumulate_fp32 = builder.shape().gradient == DType::kFp32,
                  .accumulate = builder.adds_to_gradients(),
                  .in_flight = linear.in_flight};
  TemplateOp op{.name = product.name,
                .module = linear.module,
                .work = work,
                .reads = {product.output_gradient, product.input},
                .writes = {},
                .updates = {product.gradient},
                .holds = {},
                .after = {}};
  // Of the head alone: those of the layers are kept (dummy_gradients.h).
  if (linear.name == "head" && builder.context().framework.dummy_gradients && product.gradient != kNoSlot) {
    op.writes.push_back(builder.add({.name = product.name + ", dummy",
                                     .kind = SlotKind::kWorkspace,
                                     .size = {},
                                     .shape = {product.outputs, product.inputs},
                                     .dtype = builder.shape().compute,
                                     .role = Role::kWorkspace,
                                     .module = ""}));
  }
  builder.op(kBackwardOp, std::move(op));
}

// An output's gradient as the two products of backward read it.
struct OutputGradient {
  SlotIndex whole = kNoSlot, rows = kNoSlot, columns = kNoSlot;
};

OutputGradient cast_gradient(TemplateBuilder& builder, const Linear& linear, SlotIndex gradient) {
  const bool gathered_low = builder.slot(gradient).dtype == builder.shape().product && builder.low_precision();
  STEPSIM_CHECK(!gathered_low || is_low(builder, linear));
  if (gathered_low) return {gradient, gradient, builder.by_columns(gradient)};
  if (!is_low(builder, linear)) return {gradient, gradient, gradient};
  // E5M2 where the recipe is hybrid: as many bytes (Transformer Engine: Format.HYBRID).
  const LowCopies copies = low_cast(builder, kBackwardOp,
                                    {.name = linear.name + " output gradient",
                                     .module = linear.module,
                                     .source = gradient,
                                     .by_rows = true,
                                     .by_columns = is_trained(linear),
                                     .launches = cast_launches(builder, linear)});
  return {gradient, copies.rows, copies.columns};
}

// DTensor tensor parallelism of layers in 8 bits with tensor-wide scales: torchao casts this device's part before the gather, of inputs and
// of output gradients (torchao/float8/float8_tensor_parallel.py PrepareFloat8ModuleInput, Float8RowwiseParallel; torchtitan
// parallelize_llama.py apply_tp with enable_float8_tensorwise_tp).
bool gathers_float8(const TemplateBuilder& builder) {
  const TrainingRecipe& training = builder.context().training;
  return builder.low_precision() && builder.context().framework.copies_token_shards && training.precision == Precision::kFp8 &&
         !has_block_scales(training) && training.trainable.kind != TrainableMask::Kind::kLora;
}

// Products that read one layout only take a transposed copy of what was gathered by rows (Transformer Engine pytorch/distributed.py
// _all_gather_fp8: _create_transpose).
SlotIndex transposed(TemplateBuilder& builder, const Linear& linear, SlotIndex gathered) {
  const Slot whole = builder.slot(gathered);
  const SlotIndex columns =
      low_slot(builder, whole.name + ", transposed", SlotKind::kWorkspace, whole.shape.front(), whole.shape.back(), "");
  builder.pass(kBackwardOp, {.name = whole.name + " transpose",
                             .module = linear.module,
                             .reads = {gathered},
                             .writes = {columns},
                             .updates = {},
                             .holds = {},
                             .kernel = MemoryKernel::kQuantize});
  builder.set_by_columns(gathered, columns);
  return columns;
}

void own_weight_gradient(TemplateBuilder& builder, const Linear& linear, SlotIndex input, OutputGradient gradient) {
  if (!is_trained(linear)) return;
  if (gradient.columns == kNoSlot) gradient.columns = transposed(builder, linear, gradient.whole);
  SlotIndex operand = linear.quantised_input != kNoSlot ? linear.quantised_input : input;
  if (operand == input && gathers_float8(builder) && builder.slot(input).dtype == builder.shape().product) {
    operand = builder.by_columns(input) != kNoSlot ? builder.by_columns(input) : transposed(builder, linear, input);
  }
  const bool cast_again = is_low(builder, linear) && builder.slot(operand).dtype != builder.shape().product;
  if (cast_again) {
    operand = low_cast(builder, kBackwardOp,
                       {.name = linear.name + " input",
                        .module = linear.module,
                        .source = input,
                        .by_rows = false,
                        .by_columns = true,
                        .launches = cast_launches(builder, linear)})
                  .columns;
  }
  weight_gradient(builder, linear,
                  {.name = linear.name + " weight gradient",
                   .outputs = linear.outputs,
                   .inputs = linear.inputs,
                   .dtype = product_dtype(builder, linear),
                   .output_gradient = gradient.columns,
                   .input = operand,
                   .gradient = linear.weight.gradient});
}

// output += scale (input down^T) up^T, each product and the scaled sum a kernel of its own (PEFT tuners/lora/layer.py Linear.forward).
void lora_forward(TemplateBuilder& builder, Linear& linear, SlotIndex input, SlotIndex output) {
  const std::int64_t rank = builder.context().training.trainable.rank;
  const std::int64_t rows = rows_of(builder, linear);
  const DType dtype = builder.shape().compute;
  linear.lora_inner = builder.activation(linear.name + " LoRA inner", {rows, rank}, linear.module);
  const Gemm down{
      .m = group_rows(builder, linear), .n = rank, .k = linear.inputs, .batch = linear.groups, .dtype = dtype, .transpose_a = true};
  builder.gemm(kForwardOp, linear.name + " LoRA down", linear.module, down, {input, linear.lora_down.value}, linear.lora_inner);
  const SlotIndex branch = builder.activation(linear.name + " LoRA output", {rows, linear.outputs}, linear.module);
  const Gemm up{
      .m = group_rows(builder, linear), .n = linear.outputs, .k = rank, .batch = linear.groups, .dtype = dtype, .transpose_a = true};
  builder.gemm(kForwardOp, linear.name + " LoRA up", linear.module, up, {linear.lora_inner, linear.lora_up.value}, branch);
  builder.pass(kForwardOp, {.name = linear.name + " LoRA sum",
                            .module = linear.module,
                            .reads = {branch},
                            .writes = {},
                            .updates = {output},
                            .holds = {},
                            .kernel = MemoryKernel::kUnfused,
                            .further_reads = builder.size(branch),  // the scale is a kernel before the sum
                            .further_writes = builder.size(branch)});
}

// Gradients of both factors; adds the branch's input gradient to `sum`.
void lora_backward(TemplateBuilder& builder, const Linear& linear, SlotIndex input, SlotIndex output_gradient, SlotIndex sum) {
  if (!linear.lora_up.present()) return;
  const std::int64_t rank = builder.context().training.trainable.rank;
  const std::int64_t rows = rows_of(builder, linear);
  const DType dtype = builder.shape().compute;
  const std::string name = linear.name + " LoRA ";
  const SlotIndex scaled = builder.gradient(name + "output gradient", {rows, linear.outputs});
  builder.pass(kBackwardOp, {.name = name + "scale backward",
                             .module = linear.module,
                             .reads = {output_gradient},
                             .writes = {scaled},
                             .updates = {},
                             .holds = {}});
  const SlotIndex inner = builder.gradient(name + "inner gradient", {rows, rank});
  const Gemm to_inner{.m = group_rows(builder, linear), .n = rank, .k = linear.outputs, .batch = linear.groups, .dtype = dtype};
  builder.gemm(kBackwardOp, name + "inner gradient", linear.module, to_inner, {scaled, linear.lora_up.value}, inner);
  weight_gradient(builder, linear,
                  {.name = name + "up weight gradient",
                   .outputs = linear.outputs,
                   .inputs = rank,
                   .dtype = dtype,
                   .output_gradient = scaled,
                   .input = linear.lora_inner,
                   .gradient = linear.lora_up.gradient});
  const SlotIndex branch = builder.gradient(name + "input gradient", {rows, linear.inputs});
  const Gemm to_input{.m = group_rows(builder, linear), .n = linear.inputs, .k = rank, .batch = linear.groups, .dtype = dtype};
  builder.gemm(kBackwardOp, name + "input gradient", linear.module, to_input, {inner, linear.lora_down.value}, branch);
  builder.pass(
      kBackwardOp,
      {.name = name + "input gradient sum", .module = linear.module, .reads = {branch}, .writes = {}, .updates = {sum}, .holds = {}});
  weight_gradient(builder, linear,
                  {.name = name + "down weight gradient",
                   .outputs = rank,
                   .inputs = linear.inputs,
                   .dtype = dtype,
                   .output_gradient = inner,
                   .input = input,
                   .gradient = linear.lora_down.gradient});
}

// DTensor shards tokens along the second dimension: torch's collectives join and split along the first one alone, and copy
// (torch/distributed/_functional_collectives.py all_gather_tensor, reduce_scatter_tensor: torch.cat of torch.chunk). Async tensor
// parallelism does not.
bool copies_shards(const TemplateContext& context) {
  return context.framework.copies_token_shards && !overlaps_tensor_collectives(context);
}

bool copies_gathered(const TemplateContext& context) {
  return copies_shards(context) && !(context.framework.views_single_sequence && context.training.micro_batch == 1);
}

// What a reduce-scatter reads: the tensor, or its copy with each rank's tokens together.
SlotIndex by_ranks(TemplateBuilder& builder, Direction direction, const std::string& module, SlotIndex whole) {
  if (!copies_shards(builder.context())) return whole;
  const Slot source = builder.slot(whole);
  const SlotIndex copy = builder.gathered(source.name + ", by ranks", source.shape);
  builder.pass(direction,
               {.name = source.name + " by ranks", .module = module, .reads = {whole}, .writes = {copy}, .updates = {}, .holds = {}});
  return copy;
}

// An all-gather into `whole`, by way of a tensor in the order of ranks where that is another.
void gather_tokens(TemplateBuilder& builder, Direction direction, const std::string& name, const std::string& module, SlotIndex local,
                   SlotIndex whole) {
  const bool copies = copies_gathered(builder.context());
  const Slot wanted = builder.slot(whole);
  const SlotIndex target = copies ? builder.add({.name = wanted.name + " by ranks",
                                                 .kind = SlotKind::kWorkspace,
                                                 .size = {},
                                                 .shape = wanted.shape,
                                                 .dtype = wanted.dtype,
                                                 .role = Role::kCommunication,
                                                 .module = ""})
                                  : whole;
  builder.collective(
      direction, {.name = name + " all-gather", .module = module, .kind = CollectiveKind::kAllGather, .input = local, .output = target});
  if (!copies) return;
  builder.pass(direction, {.name = name + " in order", .module = module, .reads = {target}, .writes = {whole}, .updates = {}, .holds = {}});
}

// What was cast and gathered.
SlotIndex float8_gathered(TemplateBuilder& builder, Direction direction, const std::string& name, const std::string& module,
                          SlotIndex local) {
  const LowCopies copies =
      low_cast(builder, direction, {.name = name, .module = module, .source = local, .by_rows = true, .by_columns = false});
  const std::vector<std::int64_t> part = builder.slot(copies.rows).shape;
  const bool forward = direction == kForwardOp;
  const SlotIndex whole = low_slot(builder, name + ", gathered", forward ? SlotKind::kForward : SlotKind::kWorkspace,
                                   part.front() * builder.shape().ranks, part.back(), forward ? builder.module_of(local) : "");
  gather_tokens(builder, direction, name, module, copies.rows, whole);
  if (!casts_both_ways(builder.context().training)) builder.set_by_columns(whole, whole);
  return whole;
}

SlotIndex reduced_gradient(TemplateBuilder& builder, const std::string& name, SlotIndex partial) {
  const DeviceShape& shape = builder.shape();
  const bool ring = builder.in_layer() && overlaps_tensor_collectives(builder.context());
  const bool beside = builder.context().framework.backward_all_reduce_overlaps_weight_gradient || ring;
  if (!shape.sequence_parallel) {
    builder.collective(kBackwardOp, {.name = name + " gradient all-reduce", .module = "", .input = partial, .beside_compute = beside});
    return partial;
  }
  const std::vector<std::int64_t> whole = builder.slot(partial).shape;
  const SlotIndex sent = by_ranks(builder, kBackwardOp, "", partial);
  const SlotIndex local = builder.gradient(name + " gradient, scattered", {whole.front() / shape.ranks, whole.back()});
  builder.collective(kBackwardOp, {.name = name + " gradient reduce-scatter",
                                   .module = "",
                                   .kind = CollectiveKind::kReduceScatter,
                                   .input = sent,
                                   .output = local,
                                   .beside_compute = beside});
  return local;
}

}  // namespace

// Weight, bias and LoRA's factors. A factor is whole on every rank but for the dimension that the base has a part of: no collectives of
// their own (Megatron-Bridge's ParallelLinearAdapter splits the rank or the outputs as well, and gathers them).
static void add_weights(TemplateBuilder& builder, Linear& linear, bool expert, bool bias) {
  const auto shape = [&](std::vector<std::int64_t> one) {
    if (expert) one.insert(one.begin(), linear.groups);
    return one;
  };
  linear.weight = builder.matrix(linear.name + " weight", shape({linear.outputs, linear.inputs}), expert, linear.low_precision);
  if (bias) linear.bias = builder.weight(linear.name + " bias", shape({linear.outputs}), expert);
  const TrainableMask& mask = builder.context().training.trainable;
  if (!is_lora_target(mask, linear.name)) return;
  linear.lora_down = builder.weight(linear.name + kLoraDownWeight, shape({mask.rank, linear.inputs}), expert);
  linear.lora_up = builder.weight(linear.name + " LoRA up weight", shape({linear.outputs, mask.rank}), expert);
}

Linear make_linear(TemplateBuilder& builder, const std::string& name, const std::string& module, std::int64_t inputs, std::int64_t outputs,
                   bool bias) {
  Linear linear{.name = name,
                .module = module,
                .inputs = inputs,
                .outputs = outputs,
                .rows = builder.shape().tokens,
                .weight = {},
                .bias = {},
                .lora_down = {},
                .lora_up = {}};
  add_weights(builder, linear, false, bias);
  return linear;
}

Linear make_expert_linear(TemplateBuilder& builder, const std::string& name, const std::string& module, std::int64_t inputs,
                          std::int64_t outputs, std::int64_t rows, bool bias) {
  const TemplateContext& context = builder.context();
  Linear linear{.name = name,
                .module = module,
                .inputs = inputs,
                .outputs = outputs,
                .rows = rows,
                .groups = context.model.experts.experts / context.parallel.expert,
                .weight = {},
                .bias = {},
                .lora_down = {},
                .lora_up = {}};
  add_weights(builder, linear, true, bias);
  return linear;
}

// What the product reads, and what stays for the weight's gradient.
static SlotIndex cast_input(TemplateBuilder& builder, Linear& linear, SlotIndex input, const Linear* cast) {
  if (!is_low(builder, linear)) return input;
  if (builder.slot(input).dtype == builder.shape().product) {
    linear.quantised_input = builder.by_columns(input);  // none: it is what stays itself
    return input;
  }
  if (cast != nullptr && cast->cast_input != kNoSlot) {
    linear.cast_input = cast->cast_input;
    linear.quantised_input = cast->quantised_input;
    return linear.cast_input;
  }
  // What is stored low is made into an operand again in backward.
  const FrameworkPreset& framework = builder.context().framework;
  const bool saves = framework.saves_quantised_inputs && !is_stored_low(framework, builder.slot(input).name) && is_trained(linear);
  const std::string name = builder.slot(input).name + " of " + linear.name;
  const LowCopies copies = low_cast(builder, kForwardOp,
                                    {.name = name,
                                     .module = linear.module,
                                     .source = input,
                                     .by_rows = true,
                                     .by_columns = saves,
                                     .launches = cast_launches(builder, linear)});
  linear.cast_input = copies.rows;
  linear.quantised_input = copies.columns;
  return copies.rows;
}

void linear_forward(TemplateBuilder& builder, Linear& linear, SlotIndex input, SlotIndex output, const Linear* cast) {
  const SlotIndex operand = cast_input(builder, linear, input, cast);
  const Gemm work{.m = group_rows(builder, linear),
                  .n = linear.outputs,
                  .k = linear.inputs,
                  .batch = linear.groups,
                  .dtype = product_dtype(builder, linear),
                  .transpose_a = true,
                  .in_flight = linear.in_flight};
  const SlotIndex weight = weight_operand(builder, kForwardOp, linear);
  builder.gemm(kForwardOp, linear.name, linear.module, work, {operand, weight}, output);
  if (linear.lora_up.present()) lora_forward(builder, linear, input, output);
}

// LoRA's branch reads 16 bits, so then it is not.
static bool gathers_low(const TemplateBuilder& builder) {
  const TemplateContext& context = builder.context();
  return builder.low_precision() && context.framework.saves_quantised_inputs &&
         context.training.trainable.kind != TrainableMask::Kind::kLora;
}

static ColumnInput gathered_low(TemplateBuilder& builder, const std::string& name, SlotIndex local, const std::string& module) {
  const LowCopies copies =
      low_cast(builder, kForwardOp, {.name = name, .module = module, .source = local, .by_rows = true, .by_columns = true});
  const std::vector<std::int64_t> shape = builder.slot(copies.rows).shape;
  const SlotIndex whole =
      low_slot(builder, name + ", gathered", SlotKind::kWorkspace, shape.front() * builder.shape().ranks, shape.back(), "");
  builder.collective(
      kForwardOp,
      {.name = name + " all-gather", .module = module, .kind = CollectiveKind::kAllGather, .input = copies.rows, .output = whole});
  return {.name = name, .product = whole, .saved = copies.columns, .gathered_again = true};
}

ColumnInput gathered_input(TemplateBuilder& builder, const std::string& name, SlotIndex local, const std::string& module) {
  const DeviceShape& shape = builder.shape();
  if (!shape.sequence_parallel) return {.name = name, .product = local, .saved = local};
  const bool again = builder.context().framework.sequence_parallel_gather_again;
  if (again && gathers_low(builder)) return gathered_low(builder, name, local, module);
  if (!again && gathers_float8(builder)) {
    const SlotIndex whole = float8_gathered(builder, kForwardOp, name, module, local);
    return {.name = name, .product = whole, .saved = whole};
  }
  const std::vector<std::int64_t> part = builder.slot(local).shape;
  const std::vector<std::int64_t> whole_shape = {part.front() * shape.ranks, part.back()};
  const std::string whole_name = name + ", gathered";
  const SlotIndex whole =
      again ? builder.gathered(whole_name, whole_shape) : builder.activation(whole_name, whole_shape, builder.module_of(local));
  gather_tokens(builder, kForwardOp, name, module, local, whole);
  return {.name = name, .product = whole, .saved = again ? local : whole, .gathered_again = again};
}

// Only the weight gradient needs it: gathered beside the input gradient (arXiv 2205.05198, section 4.2.2).
static SlotIndex gathered_for_weights(TemplateBuilder& builder, const ColumnInput& input, const std::string& first) {
  if (!input.gathered_again) return input.saved;
  const Slot part = builder.slot(input.saved);
  const std::string name = input.name + ", gathered for " + first;
  const std::int64_t rows = part.shape.front() * builder.shape().ranks;
  const bool low = part.dtype != builder.shape().compute;
  const SlotIndex whole =
      low ? low_slot(builder, name, SlotKind::kWorkspace, rows, part.shape.back(), "") : builder.gathered(name, {rows, part.shape.back()});
  builder.collective(kBackwardOp, {.name = input.name + " all-gather",
                                   .module = "",
                                   .kind = CollectiveKind::kAllGather,
                                   .input = input.saved,
                                   .output = whole,
                                   .beside_compute = true});
  return whole;
}

SlotIndex column_backward(TemplateBuilder& builder, const ColumnInput& input, std::span<const ColumnGradient> gradients, SlotIndex partial,
                          bool reduce) {
  const std::string& first = gradients.front().linear->name;
  std::vector<OutputGradient> casts;
  for (const ColumnGradient& gradient : gradients) casts.push_back(cast_gradient(builder, *gradient.linear, gradient.output_gradient));
  const SlotIndex whole = gathered_for_weights(builder, input, first);
  SlotIndex sum = partial;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const SlotIndex added = input_gradient(builder, *gradients[i].linear, casts[i].rows);
    lora_backward(builder, *gradients[i].linear, whole, casts[i].whole, added);
    if (sum != kNoSlot) {
      builder.pass(kBackwardOp,
                   {.name = "input gradient sum", .module = "", .reads = {sum}, .writes = {}, .updates = {added}, .holds = {}});
    }
    sum = added;
  }
  if (reduce) sum = reduced_gradient(builder, first, sum);
  for (std::size_t i = 0; i < gradients.size(); ++i) own_weight_gradient(builder, *gradients[i].linear, whole, casts[i]);
  return sum;
}

SlotIndex reduced_output(TemplateBuilder& builder, const std::string& name, const std::string& module, SlotIndex partial) {
  const DeviceShape& shape = builder.shape();
  if (!shape.sequence_parallel) {
    builder.collective(kForwardOp, {.name = name + " all-reduce", .module = module, .input = partial});
    return partial;
  }
  const std::vector<std::int64_t> whole = builder.slot(partial).shape;
  const SlotIndex sent = by_ranks(builder, kForwardOp, module, partial);
  const SlotIndex local = builder.activation(name + ", scattered", {whole.front() / shape.ranks, whole.back()});
  builder.collective(
      kForwardOp,
      {.name = name + " reduce-scatter", .module = module, .kind = CollectiveKind::kReduceScatter, .input = sent, .output = local});
  return local;
}

// Blocks with scales along one dimension do not turn: they are gathered by columns too.
static SlotIndex gathered_low_gradient(TemplateBuilder& builder, const std::string& name, const std::string& module, SlotIndex local) {
  const TrainingRecipe& training = builder.context().training;
  const bool twice = has_block_scales(training), transposes = !twice && casts_both_ways(training);
  const LowCopies copies =
      low_cast(builder, kBackwardOp, {.name = name, .module = module, .source = local, .by_rows = true, .by_columns = twice});
  const std::vector<std::int64_t> part = builder.slot(local).shape;
  const auto gather = [&](const std::string& suffix, SlotIndex from, bool beside) {
    const SlotIndex whole =
        low_slot(builder, name + ", gathered" + suffix, SlotKind::kWorkspace, part.front() * builder.shape().ranks, part.back(), "");
    builder.collective(kBackwardOp, {.name = name + " all-gather" + suffix,
                                     .module = module,
                                     .kind = CollectiveKind::kAllGather,
                                     .input = from,
                                     .output = whole,
                                     .beside_compute = beside});
    return whole;
  };
  const SlotIndex rows = gather("", copies.rows, false);
  if (!transposes) {
    builder.set_by_columns(rows, twice ? gather(" by columns", copies.columns, overlaps_tensor_collectives(builder.context())) : rows);
  }
  return rows;
}

SlotIndex gathered_gradient(TemplateBuilder& builder, const std::string& name, const std::string& module, SlotIndex local) {
  const DeviceShape& shape = builder.shape();
  if (!shape.sequence_parallel) return local;
  if (gathers_low(builder)) return gathered_low_gradient(builder, name + " gradient", module, local);
  if (gathers_float8(builder)) return float8_gathered(builder, kBackwardOp, name + " gradient", module, local);
  const std::vector<std::int64_t> part = builder.slot(local).shape;
  const SlotIndex whole = builder.gathered(name + " gradient, gathered", {part.front() * shape.ranks, part.back()});
  gather_tokens(builder, kBackwardOp, name + " gradient", module, local, whole);
  return whole;
}

SlotIndex row_backward(TemplateBuilder& builder, const Linear& linear, SlotIndex input, SlotIndex output_gradient) {
  const OutputGradient cast = cast_gradient(builder, linear, output_gradient);
  const SlotIndex gradient = input_gradient(builder, linear, cast.rows);
  lora_backward(builder, linear, input, output_gradient, gradient);
  own_weight_gradient(builder, linear, input, cast);
  return gradient;
}

void bias_backward(TemplateBuilder& builder, const Linear& linear, SlotIndex output_gradient) {
  if (!linear.bias.present()) return;
  builder.pass(kBackwardOp, {.name = linear.name + " bias gradient",
                             .module = linear.module,
                             .reads = {output_gradient},
                             .writes = {},
                             .updates = {linear.bias.gradient},
                             .holds = {}});
}

}  // namespace stepsim
