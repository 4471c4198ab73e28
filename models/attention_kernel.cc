#include "models/attention_kernel.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "models/core_attention.h"
#include "models/low_precision.h"
#include "sim/input_error.h"

namespace stepsim {

namespace {

// Of queries and of keys: kernels.md 2.2. (FlashAttention-2 takes 128 x 128 at head_dim 64 and 128 x 64 at 128, FlashAttention-3 128 to 192
// x 80 to 176, cuDNN 128 x 128.)
constexpr std::int64_t kBlock = 128;

std::int64_t blocks_of(std::int64_t tokens) { return (tokens + kBlock - 1) / kBlock; }
std::int64_t nearest(double value) { return std::max<std::int64_t>(1, std::llround(value)); }

// Blocks of keys that a block of queries far from either end touches.
std::int64_t blocks_in_window(const AttentionForm& form) {
  return form.causal ? 1 + blocks_of(form.window - 1) : 1 + 2 * blocks_of(form.window / 2);
}

// Documents that attention is over: one, unless they are packed.
std::vector<std::int64_t> documents(const TemplateContext& context, const AttentionForm& form) {
  if (form.packed) return context.training.packed;
  return {form.keys};
}

// Pairs of queries and keys that run for a document of all ranks, where a window touches `touched` blocks of keys.
double windowed_pairs(std::int64_t length, std::int64_t touched, bool causal) {
  const std::int64_t blocks = blocks_of(length);
  const double whole = as_double(length) * as_double(length) * (causal ? 0.5 : 1.0);
  if (blocks <= touched) return whole;
  if (!causal) return as_double(length) * as_double(touched) * as_double(kBlock);
  const double skipped = as_double(touched) * as_double(touched - 1) / 2;  // before the first block of keys
  return (as_double(blocks) * as_double(touched) - skipped) * as_double(kBlock) * as_double(kBlock);
}

// True if the window leaves out blocks.
bool state_window(const TemplateContext& context, const AttentionForm& form, Attention& work) {
  if (form.window <= 0 || form.window >= form.keys) return false;
  const std::int64_t touched = blocks_in_window(form);
  bool leaves_out = false;
  double pairs = 0;
  for (const std::int64_t length : documents(context, form)) {
    leaves_out = leaves_out || touched < blocks_of(length);
    pairs += windowed_pairs(length, touched, form.causal);
  }
  if (!leaves_out) return false;
  work.keys = touched * kBlock;
  work.causal = false;
  const double of_rank = pairs * as_double(form.queries) / as_double(form.keys);
  work.queries = nearest(of_rank / as_double(work.keys));
  return true;
}

void state_documents(const TemplateContext& context, Attention& work) {
  double tokens = 0, squares = 0;
  for (const std::int64_t length : context.training.packed) {
    tokens += as_double(length);
    squares += as_double(length) * as_double(length);
  }
  const double share = squares / (tokens * tokens);  // of the pairs of one document
  const double pairs = as_double(work.queries) * as_double(work.keys) * share;
  const std::int64_t count = std::min(work.queries, nearest(1 / share));
  work.batch *= count;
  work.queries = nearest(as_double(work.queries) / as_double(count));
  work.keys = nearest(pairs / (as_double(count) * as_double(work.queries)));
}

// Attention::kernel.
std::int8_t kernel_code(const TemplateContext& context) {
  if (context.training.attention == AttentionKind::kFused) return 2;
  switch (context.framework.flash_version) {
    case 1:
      return 4;
    case 3:
      return 1;
    case 4:
      return 5;
    default:
      return 0;
  }
}

std::vector<SlotIndex> operands(const KernelOperands& of) {
  std::vector<SlotIndex> reads = {of.query, of.key};
  if (of.value != kNoSlot) reads.push_back(of.value);
  return reads;
}

}  // namespace

bool one_kernel(const TemplateContext& context) { return context.training.attention != AttentionKind::kUnfused; }

bool low_attention(const TemplateContext& context) { return context.training.low_precision_attention; }

// Transformer Engine context_parallel.py: "FP8 is only supported with Fused Attention!"; FlashAttention-3 has no backward pass in 8 bits.
void check_low_attention(const TemplateContext& context) {
  const TrainingRecipe& training = context.training;
  if (!training.low_precision_attention) return;
  if (training.attention != AttentionKind::kFused) {
    const std::string found = training.attention == AttentionKind::kFlash ? "flash" : "unfused";
    throw InputError({"--fp8-attention"}, "found --attention " + found + ", wanted fused: no other kernel trains in 8 bits");
  }
  if (!is_low(training.precision)) {
    throw InputError({"--fp8-attention"}, "found a --precision of 16 bits or more, wanted fp8, mxfp8 or nvfp4");
  }
}

Attention kernel_work(const TemplateContext& context, const DeviceShape& shape, const AttentionForm& form, bool backward) {
  Attention work{.batch = shape.micro_batch,
                 .heads = form.heads,
                 .kv_heads = form.kv_heads,
                 .queries = form.queries,
                 .keys = form.keys,
                 .head_dim = (form.head_dim + form.value_dim + 1) / 2,
                 .dtype = low_attention(context) ? DType::kFp8 : shape.compute,
                 .causal = form.causal,
                 .backward = backward,
                 .kernel = kernel_code(context)};
  // cuDNN's backward pass in 8 bits computes all that the causal mask leaves, whatever the window (tests/validation/cudnn_attention.csv).
  const bool windowed = !(backward && low_attention(context)) && state_window(context, form, work);
  if (!windowed && form.packed) state_documents(context, work);
  return work;
}

SlotIndex add_log_sum_exp(TemplateBuilder& builder, const AttentionForm& form, const std::string& name) {
  return builder.add({.name = name,
                      .kind = SlotKind::kForward,
                      .size = {},
                      .shape = {builder.shape().micro_batch, form.heads, form.queries},
                      .dtype = DType::kFp32,
                      .module = kCoreAttention});
}

void add_kernel_forward(TemplateBuilder& builder, const std::string& name, const AttentionForm& form, const KernelOperands& of,
                        const std::vector<SlotIndex>& holds) {
  const TemplateContext& context = builder.context();
  TemplateOp op{
      .name = name,
      .module = kCoreAttention,
      .work = kernel_work(context, builder.shape(), form, false),
      .reads = operands(of),
      .writes = {of.output},
      .updates = {},
      .holds = holds,
      .random = context.training.attention_dropout.value_or(context.training.dropout) > 0,  // inside the kernel, from the saved seed
      .after = {}};
  if (of.sinks.present()) op.reads.push_back(of.sinks.value);
  if (of.log_sum_exp != kNoSlot) op.writes.push_back(of.log_sum_exp);
  builder.op(Direction::kForward, std::move(op));
}

void add_kernel_backward(TemplateBuilder& builder, const std::string& name, const AttentionForm& form, const KernelOperands& of,
                         SlotIndex output_gradient, const std::vector<SlotIndex>& gradients) {
  TemplateOp op{.name = name,
                .module = kCoreAttention,
                .work = kernel_work(builder.context(), builder.shape(), form, true),
                .reads = operands(of),
                .writes = gradients,
                .updates = {},
                .holds = {},
                .after = {}};
  op.reads.push_back(of.output);
  op.reads.push_back(output_gradient);
  if (of.log_sum_exp != kNoSlot) op.reads.push_back(of.log_sum_exp);
  if (of.sinks.present()) op.updates.push_back(of.sinks.gradient);
  // dQ is summed in fp32 over the blocks of keys: dq_accum of flash_api.cpp, mha_bwd (cuDNN: its workspace).
  op.writes.push_back(builder.add({.name = name + " accumulator",
                                   .kind = SlotKind::kWorkspace,
                                   .size = {},
                                   .shape = {builder.shape().micro_batch, form.heads, form.queries, form.head_dim},
                                   .dtype = DType::kFp32,
                                   .role = Role::kWorkspace,
                                   .module = ""}));
  builder.op(Direction::kBackward, std::move(op));
}

std::vector<SlotIndex> held_batch(TemplateBuilder& builder, const AttentionForm& form) {
  std::vector<SlotIndex> held;
  if (const std::optional<Slot> mask = attention_mask(builder)) held.push_back(builder.add(*mask));
  if (!form.packed) return held;
  const auto documents = static_cast<std::int64_t>(builder.context().training.packed.size());
  const auto add = [&](const char* name, std::int64_t elements, DType dtype) {
    held.push_back(builder.add({.name = name, .kind = SlotKind::kBatch, .size = {}, .shape = {elements}, .dtype = dtype, .module = ""}));
  };
  // Megatron-LM packed_seq_params.py: cu_seqlens_q, which those of the keys are too; positions begin anew in each document.
  add("document begins", documents + 1, DType::kInt32);
  add("position ids", builder.shape().tokens, DType::kInt64);
  return held;
}

}  // namespace stepsim
