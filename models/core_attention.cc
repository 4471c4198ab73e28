#include "models/core_attention.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "sim/check.h"

namespace stepsim {

namespace {

constexpr Direction kForward = Direction::kForward, kBackward = Direction::kBackward;

std::vector<std::int64_t> score_shape(const DeviceShape& shape, const AttentionForm& form) {
  return {shape.micro_batch, shape.query_heads, form.queries, form.keys};
}

std::int64_t query_tokens(const DeviceShape& shape, const AttentionForm& form) { return shape.micro_batch * form.queries; }

// One product of batched matrices, a matrix for each sequence and head: [queries, keys] or [queries or keys, head_dim].
struct MatrixShape {
  std::int64_t m = 0, n = 0, k = 0;
};
Gemm batched(const DeviceShape& shape, const MatrixShape& matrix, bool transpose_a, bool transpose_b) {
  return {.m = matrix.m,
          .n = matrix.n,
          .k = matrix.k,
          .batch = shape.micro_batch * shape.query_heads,
          .dtype = shape.compute,
          .transpose_a = transpose_a,
          .transpose_b = transpose_b};
}

std::vector<std::int64_t> output_shape(const DeviceShape& shape, const AttentionForm& form) {
  return {query_tokens(shape, form), shape.query_heads * form.value_dim};
}

// Unfused products need as many key and value heads as queries (Transformer Engine, Megatron-LM: repeat_interleave).
void repeat_heads(TemplateBuilder& builder, CoreAttention& core) {
  const DeviceShape& shape = builder.shape();
  const AttentionForm& form = core.form;
  if (form.kv_heads == shape.query_heads) return;
  const std::int64_t tokens = shape.micro_batch * form.keys;
  const SlotIndex key = builder.activation("key, repeated", {tokens, shape.query_heads, form.head_dim}, kCoreAttention);
  const SlotIndex value = builder.activation("value, repeated", {tokens, shape.query_heads, form.value_dim}, kCoreAttention);
  builder.pass(kForward, {.name = "repeat key and value heads",
                          .module = kCoreAttention,
                          .reads = {core.key, core.value},
                          .writes = {key, value},
                          .updates = {},
                          .holds = {}});
  core.key = key;
  core.value = value;
  core.repeated = true;
}

// The mask that the data loader made: an argument of attention, whether or not its kernel reads it. Checkpoints keep their arguments, so it
// lives until the last run of attention.
std::vector<SlotIndex> held_mask(TemplateBuilder& builder) {
  const std::optional<Slot> mask = attention_mask(builder);
  if (!mask) return {};
  return {builder.add(*mask)};
}

// Megatron-LM's local attention makes the scores in its global buffer (dot_product_attention.py:189), which a step holds anyway.
bool scores_in_global_buffer(const TemplateContext& context) {
  return context.framework.global_buffers && !context.framework.transformer_engine;
}

// kNoSlot where they are in the global buffer.
SlotIndex scores_forward(TemplateBuilder& builder, const CoreAttention& core) {
  const DeviceShape& shape = builder.shape();
  const AttentionForm& form = core.form;
  const Gemm work = batched(shape, {form.queries, form.keys, form.head_dim}, true, false);
  if (scores_in_global_buffer(builder.context())) {
    builder.op(kForward, {.name = "attention scores",
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
  builder.gemm(kForward, "attention scores", kCoreAttention, work, {core.query, core.key}, scores);
  return scores;
}

// The fp32 output of an eager softmax as the products read it.
void cast_softmax(TemplateBuilder& builder, const CoreAttention& core) {
  if (core.softmax_fp32 == kNoSlot) return;
  builder.pass(kForward, {.name = "attention softmax cast",
                          .module = kCoreAttention,
                          .reads = {core.softmax_fp32},
                          .writes = {core.softmax},
                          .updates = {},
                          .holds = {}});
}

void softmax_forward(TemplateBuilder& builder, CoreAttention& core, SlotIndex scores) {
  const FrameworkPreset& framework = builder.context().framework;
  core.softmax = builder.activation("attention softmax", score_shape(builder.shape(), core.form), kCoreAttention);
  if (!framework.fused_softmax && framework.softmax_in_fp32) {
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
                  .holds = held_mask(builder),
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
  builder.pass(kForward, std::move(pass));
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
  builder.pass(kForward, std::move(pass));
  return core.dropped;
}

void unfused_forward(TemplateBuilder& builder, CoreAttention& core) {
  const DeviceShape& shape = builder.shape();
  const AttentionForm& form = core.form;
  repeat_heads(builder, core);
  softmax_forward(builder, core, scores_forward(builder, core));
  const SlotIndex probabilities = dropout_forward(builder, core);
  const SlotIndex context =
      builder.activation("attention context", {shape.micro_batch, shape.query_heads, form.queries, form.value_dim}, kCoreAttention);
  builder.gemm(kForward, "attention over values", kCoreAttention, batched(shape, {form.queries, form.value_dim, form.keys}, false, false),
               {probabilities, core.value}, context);
  // From [batch, heads, sequence, head_dim] to [sequence, batch, hidden].
  core.output = builder.activation("attention output", output_shape(shape, form));
  builder.pass(kForward, {.name = "attention output transpose",
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
    builder.pass(kBackward, std::move(pass));
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
    builder.pass(kBackward, std::move(pass));
    return gradient;
  }
  const SlotIndex scores = builder.gradient("attention scores gradient", score_shape(builder.shape(), core.form));
  pass.kernel = MemoryKernel::kUnfused;
  pass.reads.push_back(gradient);
  pass.writes = {scores};
  pass.further_reads = builder.size(scores) * 2;  // backward of mask fill and scale
  pass.further_writes = builder.size(scores) * 2;
  builder.pass(kBackward, std::move(pass));
  return scores;
}

// Of repeated heads, summed again.
void sum_repeated(TemplateBuilder& builder, const AttentionForm& form, QkvGradients& gradients) {
  const std::int64_t tokens = builder.shape().micro_batch * form.keys;
  const SlotIndex key = builder.gradient("key gradient, summed", {tokens, form.kv_heads, form.head_dim});
  const SlotIndex value = builder.gradient("value gradient, summed", {tokens, form.kv_heads, form.value_dim});
  builder.pass(kBackward, {.name = "repeat key and value heads backward",
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
  builder.gemm(kBackward, "attention probabilities gradient", kCoreAttention,
               batched(shape, {form.queries, form.keys, form.value_dim}, true, false), {output_gradient, core.value}, probability_gradient);
  QkvGradients gradients;
  gradients.value = builder.gradient("value gradient", {key_tokens, shape.query_heads, form.value_dim});
  builder.gemm(kBackward, "value gradient", kCoreAttention, batched(shape, {form.keys, form.value_dim, form.queries}, false, true),
               {probabilities, output_gradient}, gradients.value);
  const SlotIndex score = score_gradient(builder, core, probability_gradient);
  gradients.query = builder.gradient("query gradient", {query_tokens(shape, form), shape.query_heads, form.head_dim});
  builder.gemm(kBackward, "query gradient", kCoreAttention, batched(shape, {form.queries, form.head_dim, form.keys}, false, false),
               {score, core.key}, gradients.query);
  gradients.key = builder.gradient("key gradient", {key_tokens, shape.query_heads, form.head_dim});
  builder.gemm(kBackward, "key gradient", kCoreAttention, batched(shape, {form.keys, form.head_dim, form.queries}, false, true),
               {score, core.query}, gradients.key);
  if (core.repeated) sum_repeated(builder, form, gradients);
  return gradients;
}

// queries x keys x head_dim as the header says.
Attention kernel_work(const TemplateContext& context, const DeviceShape& shape, const AttentionForm& form, bool backward) {
  const bool cudnn = context.training.attention == AttentionKind::kFused;
  const bool windowed = form.window > 0 && form.window < form.keys;
  const std::int64_t seen = form.causal ? form.keys - form.window / 2 : form.keys;  // queries of a whole sequence that see a full window
  return {.batch = shape.micro_batch,
          .heads = shape.query_heads,
          .kv_heads = form.kv_heads,
          .queries = windowed ? std::max<std::int64_t>(1, seen / (form.keys / form.queries)) : form.queries,
          .keys = windowed ? form.window : form.keys,
          .head_dim = (form.head_dim + form.value_dim + 1) / 2,
          .dtype = shape.compute,
          .causal = form.causal && !windowed,
          .backward = backward,
          .kernel = static_cast<std::int8_t>(cudnn ? 2 : (context.framework.flash_version == 3 ? 1 : 0))};
}

// FlashAttention-2 works on [batch, sequence, ...]: the transposed output is copied for the projection, unless one sequence makes both
// orders the same (Transformer Engine backends.py, output.transpose(0, 1).contiguous()).
bool output_is_copied(const TemplateContext& context) {
  return !context.framework.shares_attention_output && context.training.attention == AttentionKind::kFlash &&
         context.framework.flash_version == 2 && context.training.micro_batch > 1;
}

void kernel_forward(TemplateBuilder& builder, CoreAttention& core) {
  const DeviceShape& shape = builder.shape();
  const TemplateContext& context = builder.context();
  const AttentionForm& form = core.form;
  const bool copied = output_is_copied(context);
  core.output = builder.activation("attention output", output_shape(shape, form));
  core.kernel_output = core.output;
  // The projection saves `output` whatever happens to attention; what only attention's backward reads is core_attn's.
  if (copied) {
    core.kernel_output = builder.activation("attention kernel output", output_shape(shape, form), kCoreAttention);
  }
  TemplateOp op{
      .name = "attention",
      .module = kCoreAttention,
      .work = kernel_work(context, shape, form, false),
      .reads = {core.query, core.key, core.value},
      .writes = {core.kernel_output},
      .updates = {},
      .holds = held_mask(builder),
      .random = context.training.attention_dropout.value_or(context.training.dropout) > 0,  // inside the kernel, from the saved seed
      .after = {}};
  if (core.sinks.present()) op.reads.push_back(core.sinks.value);
  if (context.framework.saves_softmax_statistics) {
    core.log_sum_exp = builder.add({.name = "attention log-sum-exp",
                                    .kind = SlotKind::kForward,
                                    .size = {},
                                    .shape = {shape.micro_batch, shape.query_heads, form.queries},
                                    .dtype = DType::kFp32,
                                    .module = kCoreAttention});
    op.writes.push_back(core.log_sum_exp);
  }
  builder.op(kForward, std::move(op));
  if (!copied) return;
  builder.pass(kForward, {.name = "attention output copy",
                          .module = kCoreAttention,
                          .reads = {core.kernel_output},
                          .writes = {core.output},
                          .updates = {},
                          .holds = {}});
}

QkvGradients kernel_backward(TemplateBuilder& builder, const CoreAttention& core, SlotIndex output_gradient, SlotIndex joint) {
  const DeviceShape& shape = builder.shape();
  const AttentionForm& form = core.form;
  QkvGradients gradients;
  TemplateOp op{.name = "attention backward",
                .module = kCoreAttention,
                .work = kernel_work(builder.context(), shape, form, true),
                .reads = {core.query, core.key, core.value, core.kernel_output, output_gradient},
                .writes = {},
                .updates = {},
                .holds = {},
                .after = {}};
  if (core.log_sum_exp != kNoSlot) op.reads.push_back(core.log_sum_exp);
  if (core.sinks.present()) op.updates.push_back(core.sinks.gradient);
  if (joint != kNoSlot) {
    gradients.joint = joint;
    op.writes = {joint};
  } else {
    const std::int64_t key_tokens = shape.micro_batch * form.keys;
    gradients.query = builder.gradient("query gradient", {query_tokens(shape, form), shape.query_heads, form.head_dim});
    gradients.key = builder.gradient("key gradient", {key_tokens, form.kv_heads, form.head_dim});
    gradients.value = builder.gradient("value gradient", {key_tokens, form.kv_heads, form.value_dim});
    op.writes = {gradients.query, gradients.key, gradients.value};
  }
  // dQ is summed in fp32 over the blocks of keys: dq_accum of flash_api.cpp, mha_bwd (cuDNN: its workspace).
  op.writes.push_back(builder.add({.name = "attention backward accumulator",
                                   .kind = SlotKind::kWorkspace,
                                   .size = {},
                                   .shape = {shape.micro_batch, shape.query_heads, form.queries, form.head_dim},
                                   .dtype = DType::kFp32,
                                   .role = Role::kWorkspace,
                                   .module = ""}));
  builder.op(kBackward, std::move(op));
  return gradients;
}

// Keys and values of all tokens, from those of this rank. (Workspace: what stays until backward is this rank's.)
SlotIndex gathered_tokens(TemplateBuilder& builder, Direction direction, const std::string& name, SlotIndex local) {
  std::vector<std::int64_t> shape = builder.slot(local).shape;
  shape.front() *= builder.shape().context;
  const SlotIndex whole = builder.gathered(name + (direction == kForward ? ", all tokens" : ", all tokens again"), std::move(shape));
  builder.collective(direction, {.name = name + " all-gather",
                                 .module = kCoreAttention,
                                 .kind = CollectiveKind::kAllGather,
                                 .input = local,
                                 .output = whole,
                                 .ranks = builder.context_ranks()});
  return whole;
}

// The sum over ranks of this rank's tokens' gradients.
SlotIndex scattered_tokens(TemplateBuilder& builder, const std::string& name, SlotIndex whole) {
  std::vector<std::int64_t> shape = builder.slot(whole).shape;
  shape.front() /= builder.shape().context;
  const SlotIndex local = builder.gradient(name + " gradient, own tokens", std::move(shape));
  builder.collective(kBackward, {.name = name + " gradient reduce-scatter",
                                 .module = kCoreAttention,
                                 .kind = CollectiveKind::kReduceScatter,
                                 .input = whole,
                                 .output = local,
                                 .ranks = builder.context_ranks()});
  return local;
}

bool is_sharded(const TemplateBuilder& builder) { return builder.shape().context > 1; }

}  // namespace

AttentionForm self_attention(const TemplateBuilder& builder, const LayerKind& kind) {
  const DeviceShape& shape = builder.shape();
  const ModelSpec& model = builder.context().model;
  return {.queries = shape.sequence,
          .keys = shape.keys,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim,
          .value_dim = shape.head_dim,
          .window = kind.window,
          .causal = model.causal && kind.side != LayerSide::kEncoder,
          .sinks = model.attention_sinks};
}

std::optional<Slot> attention_mask(const TemplateBuilder& builder) {
  const FrameworkPreset& framework = builder.context().framework;
  const ModelSpec& model = builder.context().model;
  const DeviceShape& shape = builder.shape();
  if (!framework.creates_attention_mask || !model.causal || model.encoder_layers > 0) return std::nullopt;
  return Slot{.name = "attention mask",
              .kind = SlotKind::kBatch,
              .size = {},
              .shape = {framework.mask_per_sequence ? shape.micro_batch : 1, shape.sequence, shape.keys},
              .dtype = DType::kUint8,
              .module = ""};
}

bool one_kernel(const TemplateContext& context) { return context.training.attention != AttentionKind::kUnfused; }
bool writes_joint_gradient(const TemplateContext& context) { return one_kernel(context) && context.parallel.context == 1; }

CoreAttention core_attention_forward(TemplateBuilder& builder, const AttentionForm& form, SlotIndex query, SlotIndex key, SlotIndex value) {
  CoreAttention core{.form = form, .query = query, .key = key, .value = value, .sinks = {}};
  if (form.sinks) core.sinks = builder.weight("attention sinks", {builder.shape().query_heads});
  if (is_sharded(builder)) {
    core.key = gathered_tokens(builder, kForward, "key", key);
    core.value = gathered_tokens(builder, kForward, "value", value);
  }
  if (one_kernel(builder.context())) {
    kernel_forward(builder, core);
  } else {
    unfused_forward(builder, core);
  }
  if (is_sharded(builder) && !core.repeated) {
    core.key = key;
    core.value = value;
  }
  return core;
}

QkvGradients core_attention_backward(TemplateBuilder& builder, const CoreAttention& core, SlotIndex output_gradient, SlotIndex joint) {
  CoreAttention whole = core;
  const bool sharded = is_sharded(builder);
  STEPSIM_CHECK(joint == kNoSlot || writes_joint_gradient(builder.context()));
  if (sharded && !core.repeated) {
    whole.key = gathered_tokens(builder, kBackward, "key", core.key);
    whole.value = gathered_tokens(builder, kBackward, "value", core.value);
  }
  QkvGradients gradients = one_kernel(builder.context()) ? kernel_backward(builder, whole, output_gradient, joint)
                                                         : unfused_backward(builder, whole, output_gradient);
  if (!sharded) return gradients;
  gradients.key = scattered_tokens(builder, "key", gradients.key);
  gradients.value = scattered_tokens(builder, "value", gradients.value);
  return gradients;
}

}  // namespace stepsim
