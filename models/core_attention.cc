#include "models/core_attention.h"

#include "sim/check.h"

namespace stepsim {

namespace {

constexpr Direction kForward = Direction::kForward, kBackward = Direction::kBackward;

std::vector<std::int64_t> score_shape(const DeviceShape& shape) {
  return {shape.micro_batch, shape.query_heads, shape.sequence, shape.sequence};
}

// One product of batched matrices, a matrix for each sequence and head: [queries, keys] or [queries or keys, head_dim].
Gemm batched(const DeviceShape& shape, std::int64_t n, std::int64_t k, bool transpose_a, bool transpose_b) {
  return {.m = shape.sequence,
          .n = n,
          .k = k,
          .batch = shape.micro_batch * shape.query_heads,
          .dtype = shape.compute,
          .transpose_a = transpose_a,
          .transpose_b = transpose_b};
}

// Unfused products need as many key and value heads as queries (Transformer Engine, Megatron-LM: repeat_interleave).
void repeat_heads(TemplateBuilder& builder, CoreAttention& core) {
  const DeviceShape& shape = builder.shape();
  if (shape.kv_heads == shape.query_heads) return;
  const SlotIndex key = builder.activation("key, repeated", {shape.tokens, shape.query_heads, shape.head_dim}, kCoreAttention);
  const SlotIndex value = builder.activation("value, repeated", {shape.tokens, shape.query_heads, shape.head_dim}, kCoreAttention);
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

void softmax_forward(TemplateBuilder& builder, CoreAttention& core, SlotIndex scores) {
  core.softmax = builder.activation("attention softmax", score_shape(builder.shape()), kCoreAttention);
  KernelPass pass{.name = "attention softmax",
                  .module = kCoreAttention,
                  .reads = {scores},
                  .writes = {core.softmax},
                  .updates = {},
                  .holds = held_mask(builder),
                  .kernel = MemoryKernel::kSoftmax};
  if (!builder.context().framework.fused_softmax) {
    // Eager: scale, mask fill, softmax: two more passes over the scores.
    pass.kernel = MemoryKernel::kUnfused;
    pass.further_reads = builder.size(scores) * 2;
    pass.further_writes = builder.size(scores) * 2;
  }
  builder.pass(kForward, std::move(pass));
}

// Returns what multiplies the values.
SlotIndex dropout_forward(TemplateBuilder& builder, CoreAttention& core) {
  const TemplateContext& context = builder.context();
  if (context.training.dropout <= 0) return core.softmax;
  core.dropped = builder.activation("attention dropped softmax", score_shape(builder.shape()), kCoreAttention);
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
                             .shape = score_shape(builder.shape()),
                             .dtype = DType::kUint8,
                             .module = kCoreAttention});
    pass.writes.push_back(core.mask);
  }
  builder.pass(kForward, std::move(pass));
  return core.dropped;
}

void unfused_forward(TemplateBuilder& builder, CoreAttention& core) {
  const DeviceShape& shape = builder.shape();
  repeat_heads(builder, core);
  const SlotIndex scores = builder.activation("attention scores", score_shape(shape), kCoreAttention);
  builder.gemm(kForward, "attention scores", kCoreAttention, batched(shape, shape.sequence, shape.head_dim, true, false),
               {core.query, core.key}, scores);
  softmax_forward(builder, core, scores);
  const SlotIndex probabilities = dropout_forward(builder, core);
  const SlotIndex context =
      builder.activation("attention context", {shape.micro_batch, shape.query_heads, shape.sequence, shape.head_dim}, kCoreAttention);
  builder.gemm(kForward, "attention over values", kCoreAttention, batched(shape, shape.head_dim, shape.sequence, false, false),
               {probabilities, core.value}, context);
  // From [batch, heads, sequence, head_dim] to [sequence, batch, hidden].
  core.output = builder.activation("attention output", {shape.tokens, shape.query_width()});
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
    gradient = builder.gradient("attention softmax gradient", score_shape(builder.shape()));
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
                  .reads = {core.softmax},
                  .writes = {},
                  .updates = {},
                  .holds = {},
                  .kernel = MemoryKernel::kSoftmax};
  if (builder.context().framework.fused_softmax) {
    pass.updates = {gradient};  // Megatron-LM and apex: output_grads is overwritten
    builder.pass(kBackward, std::move(pass));
    return gradient;
  }
  const SlotIndex scores = builder.gradient("attention scores gradient", score_shape(builder.shape()));
  pass.kernel = MemoryKernel::kUnfused;
  pass.reads.push_back(gradient);
  pass.writes = {scores};
  pass.further_reads = builder.size(scores) * 2;  // backward of mask fill and scale
  pass.further_writes = builder.size(scores) * 2;
  builder.pass(kBackward, std::move(pass));
  return scores;
}

QkvGradients unfused_backward(TemplateBuilder& builder, const CoreAttention& core, SlotIndex output_gradient) {
  const DeviceShape& shape = builder.shape();
  const std::vector<std::int64_t> head_shape = {shape.tokens, shape.query_heads, shape.head_dim};
  const SlotIndex probabilities = core.dropped != kNoSlot ? core.dropped : core.softmax;
  const Gemm scores = batched(shape, shape.sequence, shape.head_dim, true, false);
  const Gemm by_rows = batched(shape, shape.head_dim, shape.sequence, false, false);
  const Gemm by_columns = batched(shape, shape.head_dim, shape.sequence, false, true);

  const SlotIndex probability_gradient = builder.gradient("attention probabilities gradient", score_shape(shape));
  builder.gemm(kBackward, "attention probabilities gradient", kCoreAttention, scores, {output_gradient, core.value}, probability_gradient);
  QkvGradients gradients;
  gradients.value = builder.gradient("value gradient", head_shape);
  builder.gemm(kBackward, "value gradient", kCoreAttention, by_columns, {probabilities, output_gradient}, gradients.value);
  const SlotIndex score = score_gradient(builder, core, probability_gradient);
  gradients.query = builder.gradient("query gradient", head_shape);
  builder.gemm(kBackward, "query gradient", kCoreAttention, by_rows, {score, core.key}, gradients.query);
  gradients.key = builder.gradient("key gradient", head_shape);
  builder.gemm(kBackward, "key gradient", kCoreAttention, by_columns, {score, core.query}, gradients.key);
  if (!core.repeated) return gradients;

  const SlotIndex key = builder.gradient("key gradient, summed", {shape.tokens, shape.kv_heads, shape.head_dim});
  const SlotIndex value = builder.gradient("value gradient, summed", {shape.tokens, shape.kv_heads, shape.head_dim});
  builder.pass(kBackward, {.name = "repeat key and value heads backward",
                           .module = kCoreAttention,
                           .reads = {gradients.key, gradients.value},
                           .writes = {key, value},
                           .updates = {},
                           .holds = {}});
  gradients.key = key;
  gradients.value = value;
  return gradients;
}

Attention kernel_work(const TemplateContext& context, const DeviceShape& shape, bool backward) {
  const bool cudnn = context.training.attention == AttentionKind::kFused;
  return {.batch = shape.micro_batch,
          .heads = shape.query_heads,
          .kv_heads = shape.kv_heads,
          .queries = shape.sequence,
          .keys = shape.sequence,
          .head_dim = shape.head_dim,
          .dtype = shape.compute,
          .causal = true,
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
  const bool copied = output_is_copied(context);
  core.output = builder.activation("attention output", {shape.tokens, shape.query_width()});
  core.kernel_output = core.output;
  // The projection saves `output` whatever happens to attention; what only attention's backward reads is core_attn's.
  if (copied) {
    core.kernel_output = builder.activation("attention kernel output", {shape.tokens, shape.query_width()}, kCoreAttention);
  }
  TemplateOp op{.name = "attention",
                .module = kCoreAttention,
                .work = kernel_work(context, shape, false),
                .reads = {core.query, core.key, core.value},
                .writes = {core.kernel_output},
                .updates = {},
                .holds = held_mask(builder),
                .random = context.training.dropout > 0,  // inside the kernel, from the saved seed
                .after = {}};
  if (context.framework.saves_softmax_statistics) {
    core.log_sum_exp = builder.add({.name = "attention log-sum-exp",
                                    .kind = SlotKind::kForward,
                                    .size = {},
                                    .shape = {shape.micro_batch, shape.query_heads, shape.sequence},
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
  QkvGradients gradients;
  TemplateOp op{.name = "attention backward",
                .module = kCoreAttention,
                .work = kernel_work(builder.context(), shape, true),
                .reads = {core.query, core.key, core.value, core.kernel_output, output_gradient},
                .writes = {},
                .updates = {},
                .holds = {},
                .after = {}};
  if (core.log_sum_exp != kNoSlot) op.reads.push_back(core.log_sum_exp);
  if (joint != kNoSlot) {
    gradients.joint = joint;
    op.writes = {joint};
  } else {
    gradients.query = builder.gradient("query gradient", {shape.tokens, shape.query_heads, shape.head_dim});
    gradients.key = builder.gradient("key gradient", {shape.tokens, shape.kv_heads, shape.head_dim});
    gradients.value = builder.gradient("value gradient", {shape.tokens, shape.kv_heads, shape.head_dim});
    op.writes = {gradients.query, gradients.key, gradients.value};
  }
  // dQ is summed in fp32 over the blocks of keys: dq_accum of flash_api.cpp, mha_bwd (cuDNN: its workspace).
  op.writes.push_back(builder.add({.name = "attention backward accumulator",
                                   .kind = SlotKind::kWorkspace,
                                   .size = {},
                                   .shape = {shape.micro_batch, shape.query_heads, shape.sequence, shape.head_dim},
                                   .dtype = DType::kFp32,
                                   .role = Role::kWorkspace,
                                   .module = ""}));
  builder.op(kBackward, std::move(op));
  return gradients;
}

}  // namespace

std::optional<Slot> attention_mask(const TemplateBuilder& builder) {
  const FrameworkPreset& framework = builder.context().framework;
  const DeviceShape& shape = builder.shape();
  if (!framework.creates_attention_mask) return std::nullopt;
  return Slot{.name = "attention mask",
              .kind = SlotKind::kBatch,
              .size = {},
              .shape = {framework.mask_per_sequence ? shape.micro_batch : 1, shape.sequence, shape.sequence},
              .dtype = DType::kUint8,
              .module = ""};
}

bool one_kernel(const TemplateContext& context) { return context.training.attention != AttentionKind::kUnfused; }

CoreAttention core_attention_forward(TemplateBuilder& builder, SlotIndex query, SlotIndex key, SlotIndex value) {
  CoreAttention core{.query = query, .key = key, .value = value};
  if (one_kernel(builder.context())) {
    kernel_forward(builder, core);
  } else {
    unfused_forward(builder, core);
  }
  return core;
}

QkvGradients core_attention_backward(TemplateBuilder& builder, const CoreAttention& core, SlotIndex output_gradient, SlotIndex joint) {
  if (one_kernel(builder.context())) return kernel_backward(builder, core, output_gradient, joint);
  STEPSIM_CHECK(joint == kNoSlot);
  return unfused_backward(builder, core, output_gradient);
}

}  // namespace stepsim
