#include "models/core_attention.h"

#include <string>
#include <utility>
#include <vector>

#include "models/context_exchange.h"
#include "models/context_ring.h"
#include "models/low_precision.h"
#include "sim/check.h"

namespace stepsim {

namespace {

std::vector<std::int64_t> score_shape(const DeviceShape& shape, const AttentionForm& form) {
  return {shape.micro_batch, form.heads, form.queries, form.keys};
}

std::int64_t query_tokens(const DeviceShape& shape, const AttentionForm& form) { return shape.micro_batch * form.queries; }

// One product of batched matrices, a matrix for each sequence and head: [queries, keys] or [queries or keys, head_dim].
struct MatrixShape {
  std::int64_t m = 0, n = 0, k = 0;
};
Gemm batched(const DeviceShape& shape, std::int64_t heads, const MatrixShape& matrix, bool transpose_a, bool transpose_b) {
  return {.m = matrix.m,
          .n = matrix.n,
          .k = matrix.k,
          .batch = shape.micro_batch * heads,
          .dtype = shape.compute,
          .transpose_a = transpose_a,
          .transpose_b = transpose_b};
}

std::vector<std::int64_t> output_shape(const DeviceShape& shape, const AttentionForm& form) {
  return {query_tokens(shape, form), form.heads * form.value_dim};
}

// Of the kernel or product; under an all-to-all this rank's heads alone, of all tokens.
SlotIndex add_output(TemplateBuilder& builder, const CoreAttention& core) {
  const std::vector<std::int64_t> shape = output_shape(builder.shape(), core.form);
  if (core.exchange == ContextExchange::kAllToAll) return builder.activation("attention output, all tokens", shape, kCoreAttention);
  return builder.activation("attention output", shape);
}

// Unfused products need as many key and value heads as queries (Transformer Engine, Megatron-LM: repeat_interleave).
void repeat_heads(TemplateBuilder& builder, CoreAttention& core) {
  const DeviceShape& shape = builder.shape();
  const AttentionForm& form = core.form;
  if (form.kv_heads == form.heads) return;
  const std::int64_t tokens = shape.micro_batch * form.keys;
  const SlotIndex key = builder.activation("key, repeated", {tokens, form.heads, form.head_dim}, kCoreAttention);
  const SlotIndex value = builder.activation("value, repeated", {tokens, form.heads, form.value_dim}, kCoreAttention);
  builder.pass(kForwardOp, {.name = "repeat key and value heads",
                            .module = kCoreAttention,
                            .reads = {core.key, core.value},
                            .writes = {key, value},
                            .updates = {},
                            .holds = {}});
  core.key = key;
  core.value = value;
  core.repeated = true;
}

// Megatron-LM's local attention makes the scores in its global buffer (dot_product_attention.py:189), which a step holds anyway.
bool scores_in_global_buffer(const TemplateContext& context) {
  return context.framework.global_buffers && !context.framework.transformer_engine;
}

// kNoSlot where they are in the global buffer.
SlotIndex scores_forward(TemplateBuilder& builder, const CoreAttention& core) {
  const DeviceShape& shape = builder.shape();
  const AttentionForm& form = core.form;
  const Gemm work = batched(shape, form.heads, {form.queries, form.keys, form.head_dim}, true, false);
  if (scores_in_global_buffer(builder.context())) {
    builder.op(kForwardOp, {.name = "attention scores",
                            .module = kCoreAttention,
                            .work = work,
                            .reads = {core.query, core.key},
                            .writes = {},
                            .updates = {},
                            .holds = {},
                            .after = {}});
    return kNoSlot;
  }
  const SlotIndex scores = builder.activation("attention scores", score_shape(shape, form), kCoreAttention);
  builder.gemm(kForwardOp, "attention scores", kCoreAttention, work, {core.query, core.key}, scores);
  return scores;
}

// The fp32 output of an eager softmax as the products read it.
void cast_softmax(TemplateBuilder& builder, const CoreAttention& core) {
  if (core.softmax_fp32 == kNoSlot) return;
  builder.pass(kForwardOp, {.name = "attention softmax cast",
                            .module = kCoreAttention,
                            .reads = {core.softmax_fp32},
                            .writes = {core.softmax},
                            .updates = {},
                            .holds = {}});
}

void softmax_forward(TemplateBuilder& builder, CoreAttention& core, SlotIndex scores) {
  const FrameworkPreset& framework = builder.context().framework;
  core.softmax = builder.activation("attention softmax", score_shape(builder.shape(), core.form), kCoreAttention);
  if (!framework.fused_softmax && framework.softmax_in_fp32 && builder.shape().compute != DType::kFp32) {
    core.softmax_fp32 = builder.add({.name = "attention softmax, fp32",
                                     .kind = SlotKind::kForward,
                                     .size = {},
                                     .shape = score_shape(builder.shape(), core.form),
                                     .dtype = DType::kFp32,
                                     .module = kCoreAttention});
  }
  const Bytes size = builder.size(core.softmax);
  KernelPass pass{.name = "attention softmax",
                  .module = kCoreAttention,
                  .reads = {},
                  .writes = {core.softmax_fp32 == kNoSlot ? core.softmax : core.softmax_fp32},
                  .updates = {},
                  .holds = held_batch(builder, core.form),
                  .kernel = MemoryKernel::kSoftmax};
  if (scores != kNoSlot) {
    pass.reads = {scores};
  } else {
    pass.further_reads = size;
  }
  if (core.sinks.present()) pass.reads.push_back(core.sinks.value);
  if (!framework.fused_softmax) {
    // Eager: scale, mask fill, softmax: two more passes over the scores.
    pass.kernel = MemoryKernel::kUnfused;
    pass.further_reads += size * 2;
    pass.further_writes = size * 2;
  }
  builder.pass(kForwardOp, std::move(pass));
  cast_softmax(builder, core);
}

// Returns what multiplies the values.
SlotIndex dropout_forward(TemplateBuilder& builder, CoreAttention& core) {
  const TemplateContext& context = builder.context();
  if (context.training.attention_dropout.value_or(context.training.dropout) <= 0) return core.softmax;
  core.dropped = builder.activation("attention dropped softmax", score_shape(builder.shape(), core.form), kCoreAttention);
  KernelPass pass{.name = "attention dropout",
                  .module = kCoreAttention,
                  .reads = {core.softmax},
                  .writes = {core.dropped},
                  .updates = {},
                  .holds = {},
                  .random = true};
  if (context.framework.saves_dropout_masks) {
    core.mask = builder.add({.name = "attention dropout mask",
                             .kind = SlotKind::kForward,
                             .size = {},
                             .shape = score_shape(builder.shape(), core.form),
                             .dtype = DType::kUint8,
                             .module = kCoreAttention});
    pass.writes.push_back(core.mask);
  }
  builder.pass(kForwardOp, std::move(pass));
  return core.dropped;
}

void unfused_forward(TemplateBuilder& builder, CoreAttention& core) {
  const DeviceShape& shape = builder.shape();
  const AttentionForm& form = core.form;
  repeat_heads(builder, core);
  softmax_forward(builder, core, scores_forward(builder, core));
  const SlotIndex probabilities = dropout_forward(builder, core);
  const SlotIndex context =
      builder.activation("attention context", {shape.micro_batch, form.heads, form.queries, form.value_dim}, kCoreAttention);
  builder.gemm(kForwardOp, "attention over values", kCoreAttention,
               batched(shape, form.heads, {form.queries, form.value_dim, form.keys}, false, false), {probabilities, core.value}, context);
  // From [batch, heads, sequence, head_dim] to [sequence, batch, hidden].
  core.output = add_output(builder, core);
  builder.pass(kForwardOp, {.name = "attention output transpose",
                            .module = kCoreAttention,
                            .reads = {context},
                            .writes = {core.output},
                            .updates = {},
                            .holds = {}});
}

// Gradient of the scores from that of the context; the buffer of the softmax's gradient is reused where the kernel is fused.
SlotIndex score_gradient(TemplateBuilder& builder, const CoreAttention& core, SlotIndex probability_gradient) {
  SlotIndex gradient = probability_gradient;
  if (core.dropped != kNoSlot) {
    gradient = builder.gradient("attention softmax gradient", score_shape(builder.shape(), core.form));
    KernelPass pass{.name = "attention dropout backward",
                    .module = kCoreAttention,
                    .reads = {probability_gradient},
                    .writes = {gradient},
                    .updates = {},
                    .holds = {}};
    if (core.mask != kNoSlot) pass.reads.push_back(core.mask);
    builder.pass(kBackwardOp, std::move(pass));
  }
  KernelPass pass{.name = "attention softmax backward",
                  .module = kCoreAttention,
                  .reads = {core.softmax_fp32 == kNoSlot ? core.softmax : core.softmax_fp32},
                  .writes = {},
                  .updates = {},
                  .holds = {},
                  .kernel = MemoryKernel::kSoftmax};
  if (core.sinks.present()) pass.updates.push_back(core.sinks.gradient);
  if (builder.context().framework.fused_softmax) {
    pass.updates.push_back(gradient);  // Megatron-LM and apex: output_grads is overwritten
    builder.pass(kBackwardOp, std::move(pass));
    return gradient;
  }
  const SlotIndex scores = builder.gradient("attention scores gradient", score_shape(builder.shape(), core.form));
  pass.kernel = MemoryKernel::kUnfused;
  pass.reads.push_back(gradient);
  pass.writes = {scores};
  pass.further_reads = builder.size(scores) * 2;  // backward of mask fill and scale
  pass.further_writes = builder.size(scores) * 2;
  builder.pass(kBackwardOp, std::move(pass));
  return scores;
}

// Of repeated heads, summed again.
void sum_repeated(TemplateBuilder& builder, const AttentionForm& form, QkvGradients& gradients) {
  const std::int64_t tokens = builder.shape().micro_batch * form.keys;
  const SlotIndex key = builder.gradient("key gradient, summed", {tokens, form.kv_heads, form.head_dim});
  const SlotIndex value = builder.gradient("value gradient, summed", {tokens, form.kv_heads, form.value_dim});
  builder.pass(kBackwardOp, {.name = "repeat key and value heads backward",
                             .module = kCoreAttention,
                             .reads = {gradients.key, gradients.value},
                             .writes = {key, value},
                             .updates = {},
                             .holds = {}});
  gradients.key = key;
  gradients.value = value;
}

QkvGradients unfused_backward(TemplateBuilder& builder, const CoreAttention& core, SlotIndex output_gradient) {
  const DeviceShape& shape = builder.shape();
  const AttentionForm& form = core.form;
  const std::int64_t key_tokens = shape.micro_batch * form.keys;
  const SlotIndex probabilities = core.dropped != kNoSlot ? core.dropped : core.softmax;

  const SlotIndex probability_gradient = builder.gradient("attention probabilities gradient", score_shape(shape, form));
  builder.gemm(kBackwardOp, "attention probabilities gradient", kCoreAttention,
               batched(shape, form.heads, {form.queries, form.keys, form.value_dim}, true, false), {output_gradient, core.value},
               probability_gradient);
  QkvGradients gradients;
  gradients.value = builder.gradient("value gradient", {key_tokens, form.heads, form.value_dim});
  builder.gemm(kBackwardOp, "value gradient", kCoreAttention,
               batched(shape, form.heads, {form.keys, form.value_dim, form.queries}, false, true), {probabilities, output_gradient},
               gradients.value);
  const SlotIndex score = score_gradient(builder, core, probability_gradient);
  gradients.query = builder.gradient("query gradient", {query_tokens(shape, form), form.heads, form.head_dim});
  builder.gemm(kBackwardOp, "query gradient", kCoreAttention,
               batched(shape, form.heads, {form.queries, form.head_dim, form.keys}, false, false), {score, core.key}, gradients.query);
  gradients.key = builder.gradient("key gradient", {key_tokens, form.heads, form.head_dim});
  builder.gemm(kBackwardOp, "key gradient", kCoreAttention,
               batched(shape, form.heads, {form.keys, form.head_dim, form.queries}, false, true), {score, core.query}, gradients.key);
  if (core.repeated) sum_repeated(builder, form, gradients);
  return gradients;
}

// FlashAttention-2 works on [batch, sequence, ...]: the transposed output is copied for the projection, unless one sequence makes both
// orders the same (Transformer Engine backends.py, output.transpose(0, 1).contiguous()). An all-to-all orders it anyway.
bool output_is_copied(const TemplateContext& context, const CoreAttention& core) {
  return !context.framework.shares_attention_output && context.training.attention == AttentionKind::kFlash &&
         context.framework.flash_version == 2 && context.training.micro_batch > 1 && core.exchange != ContextExchange::kAllToAll;
}

// With scales from history the kernel writes 8 bits, which a kernel of its own makes 16 of (Transformer Engine backends.py: with current
// scaling it writes 16 bits, NVTE_DPA_FP8CS_O_in_F16).
bool writes_low(const TemplateContext& context) {
  return low_attention(context) && context.training.precision == Precision::kFp8 && context.training.scaling == ScalingRecipe::kDelayed;
}

// Copies of 8 bits with tensor-wide scales, whichever scales the linear parts have (Transformer Engine: attention knows no others). Scales
// that are not from history need the largest value first: the sources are read twice. They are not core_attn's: where that is run again it
// begins with them (Megatron-LM's checkpoint keeps the 16-bit operands and casts them again).
std::vector<SlotIndex> eight_bit_copies(TemplateBuilder& builder, Direction direction, const std::string& name,
                                        const std::vector<SlotIndex>& sources) {
  KernelPass pass{
      .name = name, .module = "", .reads = sources, .writes = {}, .updates = {}, .holds = {}, .kernel = MemoryKernel::kQuantize};
  for (const SlotIndex source : sources) {
    const Slot wide = builder.slot(source);
    if (!writes_low(builder.context())) pass.further_reads += wide.size;
    pass.writes.push_back(builder.add({.name = wide.name + ", 8 bits",
                                       .kind = direction == kForwardOp ? SlotKind::kForward : SlotKind::kGradient,
                                       .size = {},
                                       .shape = wide.shape,
                                       .dtype = DType::kFp8,
                                       .role = direction == kForwardOp ? Role::kActivations : Role::kActivationGradients,
                                       .module = ""}));
  }
  std::vector<SlotIndex> copies = pass.writes;
  builder.pass(direction, std::move(pass));
  return copies;
}

void cast_operands(TemplateBuilder& builder, CoreAttention& core) {
  if (!low_attention(builder.context())) return;
  const std::vector<SlotIndex> copies =
      eight_bit_copies(builder, kForwardOp, "attention operands cast", {core.query, core.key, core.value});
  core.query = copies[0];
  core.key = copies[1];
  core.value = copies[2];
}

void kernel_forward(TemplateBuilder& builder, CoreAttention& core) {
  const TemplateContext& context = builder.context();
  const bool copied = output_is_copied(context, core), low = writes_low(context);
  core.output = add_output(builder, core);
  core.kernel_output = core.output;
  // The projection saves `output` whatever happens to attention; what only attention's backward reads is core_attn's.
  if (copied || low) {
    core.kernel_output = builder.add({.name = "attention kernel output",
                                      .kind = SlotKind::kForward,
                                      .size = {},
                                      .shape = output_shape(builder.shape(), core.form),
                                      .dtype = low ? DType::kFp8 : builder.shape().compute,
                                      .module = kCoreAttention});
  }
  const std::vector<SlotIndex> holds = held_batch(builder, core.form);
  if (context.framework.saves_softmax_statistics) core.log_sum_exp = add_log_sum_exp(builder, core.form, "attention log-sum-exp");
  add_kernel_forward(builder, "attention", core.form, core.operands(), holds);
  if (core.kernel_output != core.output) copy_kernel_output(builder, core);
}

QkvGradients gradients_in(TemplateBuilder& builder, const AttentionForm& form, DType dtype, const std::string& suffix) {
  const std::int64_t queries = query_tokens(builder.shape(), form), keys = builder.shape().micro_batch * form.keys;
  const auto add = [&](const char* name, std::vector<std::int64_t> shape) {
    return builder.add({.name = name + suffix,
                        .kind = SlotKind::kGradient,
                        .size = {},
                        .shape = std::move(shape),
                        .dtype = dtype,
                        .role = Role::kActivationGradients,
                        .module = ""});
  };
  QkvGradients gradients;
  gradients.query = add("query gradient", {queries, form.heads, form.head_dim});
  gradients.key = add("key gradient", {keys, form.kv_heads, form.head_dim});
  gradients.value = add("value gradient", {keys, form.kv_heads, form.value_dim});
  return gradients;
}

QkvGradients kernel_backward(TemplateBuilder& builder, const CoreAttention& core, SlotIndex output_gradient, SlotIndex joint) {
  const TemplateContext& context = builder.context();
  QkvGradients gradients;
  gradients.joint = joint;
  if (joint == kNoSlot) gradients = gradients_in(builder, core.form, builder.shape().compute, "");
  const std::vector<SlotIndex> made =
      joint != kNoSlot ? std::vector<SlotIndex>{joint} : std::vector<SlotIndex>{gradients.query, gradients.key, gradients.value};
  if (!writes_low(context)) {
    add_kernel_backward(builder, "attention backward", core.form, core.operands(), output_gradient, made);
    return gradients;
  }
  const QkvGradients narrow = gradients_in(builder, core.form, DType::kFp8, ", 8 bits");
  const std::vector<SlotIndex> three = {narrow.query, narrow.key, narrow.value};
  add_kernel_backward(builder, "attention backward", core.form, core.operands(), output_gradient, three);
  builder.pass(kBackwardOp,
               {.name = "attention gradients copy", .module = kCoreAttention, .reads = three, .writes = made, .updates = {}, .holds = {}});
  return gradients;
}

// Where keys and values are brought before attention, not beside it.
QkvGradients attention_backward_of(TemplateBuilder& builder, const CoreAttention& core, SlotIndex output_gradient, SlotIndex joint) {
  if (one_kernel(builder.context())) return kernel_backward(builder, core, output_gradient, joint);
  return unfused_backward(builder, core, output_gradient);
}

void attention_forward_of(TemplateBuilder& builder, CoreAttention& core) {
  if (one_kernel(builder.context())) {
    kernel_forward(builder, core);
  } else {
    unfused_forward(builder, core);
  }
}

void gathered_forward(TemplateBuilder& builder, CoreAttention& core) {
  const SlotIndex key = core.key, value = core.value;
  core.key = gathered_tokens(builder, kForwardOp, "key", key);
  core.value = gathered_tokens(builder, kForwardOp, "value", value);
  attention_forward_of(builder, core);
  if (core.repeated) return;
  core.key = key;
  core.value = value;
}

QkvGradients gathered_backward(TemplateBuilder& builder, const CoreAttention& core, SlotIndex output_gradient) {
  CoreAttention whole = core;
  if (!core.repeated) {
    whole.key = gathered_tokens(builder, kBackwardOp, "key", core.key);
    whole.value = gathered_tokens(builder, kBackwardOp, "value", core.value);
  }
  QkvGradients gradients = attention_backward_of(builder, whole, output_gradient, kNoSlot);
  gradients.key = scattered_tokens(builder, "key", gradients.key);
  gradients.value = scattered_tokens(builder, "value", gradients.value);
  return gradients;
}

void exchanged_forward(TemplateBuilder& builder, CoreAttention& core) {
  const std::vector<SlotIndex> whole = all_tokens(builder, kForwardOp, {core.query, core.key, core.value});
  core.query = whole[0];
  core.key = whole[1];
  core.value = whole[2];
  core.form = all_tokens_form(builder, core.form);
  attention_forward_of(builder, core);
  core.output = all_heads(builder, kForwardOp, {core.output}, {"attention output"}).front();
  core.kernel_output = kNoSlot;  // backward exchanges the output again
}

QkvGradients exchanged_backward(TemplateBuilder& builder, const CoreAttention& core, SlotIndex output_gradient) {
  CoreAttention whole = core;
  std::vector<SlotIndex> sources = {output_gradient};
  if (one_kernel(builder.context())) sources.insert(sources.begin(), core.output);
  const std::vector<SlotIndex> exchanged = all_tokens(builder, kBackwardOp, sources);
  if (one_kernel(builder.context())) whole.kernel_output = exchanged.front();
  const QkvGradients parts = attention_backward_of(builder, whole, exchanged.back(), kNoSlot);
  const std::vector<SlotIndex> own = all_heads(builder, kBackwardOp, {parts.query, parts.key, parts.value},
                                               {"query gradient, own tokens", "key gradient, own tokens", "value gradient, own tokens"});
  return {.query = own[0], .key = own[1], .value = own[2]};
}

}  // namespace

void copy_kernel_output(TemplateBuilder& builder, const CoreAttention& core) {
  builder.pass(kForwardOp, {.name = "attention output copy",
                            .module = kCoreAttention,
                            .reads = {core.kernel_output},
                            .writes = {core.output},
                            .updates = {},
                            .holds = {}});
}

AttentionForm self_attention(const TemplateBuilder& builder, const LayerKind& kind) {
  const DeviceShape& shape = builder.shape();
  const ModelSpec& model = builder.context().model;
  return {.queries = shape.sequence,
          .keys = shape.keys,
          .heads = shape.query_heads,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim,
          .value_dim = shape.head_dim,
          .window = kind.window,
          .causal = model.causal && kind.side != LayerSide::kEncoder,
          .sinks = model.attention_sinks,
          .packed = !builder.context().training.packed.empty() && model.encoder_layers == 0};
}

std::optional<Slot> attention_mask(const TemplateBuilder& builder) {
  const TemplateContext& context = builder.context();
  const FrameworkPreset& framework = context.framework;
  const ModelSpec& model = context.model;
  const DeviceShape& shape = builder.shape();
  if (!framework.creates_attention_mask || !model.causal || model.encoder_layers > 0) return std::nullopt;
  if (!context.training.packed.empty() && one_kernel(context)) return std::nullopt;  // it is told where documents begin
  return Slot{.name = "attention mask",
              .kind = SlotKind::kBatch,
              .size = {},
              .shape = {framework.mask_per_sequence ? shape.micro_batch : 1, shape.sequence, shape.keys},
              .dtype = DType::kUint8,
              .module = ""};
}

bool writes_joint_gradient(const TemplateContext& context) { return one_kernel(context) && context.parallel.context == 1; }

CoreAttention core_attention_forward(TemplateBuilder& builder, const AttentionForm& form, SlotIndex query, SlotIndex key, SlotIndex value) {
  CoreAttention core{.form = form, .query = query, .key = key, .value = value, .sinks = {}};
  if (form.sinks) core.sinks = builder.weight("attention sinks", {form.heads});
  check_low_attention(builder.context());
  cast_operands(builder, core);
  if (builder.shape().context == 1) {
    attention_forward_of(builder, core);
    return core;
  }
  core.exchange = context_exchange(builder, form);
  switch (core.exchange) {
    case ContextExchange::kAllGather:
      gathered_forward(builder, core);
      break;
    case ContextExchange::kRing:
      ring_forward(builder, core, output_is_copied(builder.context(), core));
      break;
    case ContextExchange::kAllToAll:
      exchanged_forward(builder, core);
      break;
  }
  return core;
}

QkvGradients core_attention_backward(TemplateBuilder& builder, const CoreAttention& core, SlotIndex output_gradient, SlotIndex joint) {
  STEPSIM_CHECK(joint == kNoSlot || writes_joint_gradient(builder.context()));
  if (low_attention(builder.context())) {
    output_gradient = eight_bit_copies(builder, kBackwardOp, "attention output gradient cast", {output_gradient}).front();
  }
  if (builder.shape().context == 1) return attention_backward_of(builder, core, output_gradient, joint);
  switch (core.exchange) {
    case ContextExchange::kAllGather:
      return gathered_backward(builder, core, output_gradient);
    case ContextExchange::kRing:
      return ring_backward(builder, core, output_gradient);
    case ContextExchange::kAllToAll:
      return exchanged_backward(builder, core, output_gradient);
  }
  check_failed("context exchange", __FILE__, __LINE__);
}

}  // namespace stepsim
