#include "models/attention_block.h"

#include <array>
#include <utility>
#include <vector>

#include "models/separate_heads.h"

namespace stepsim {

namespace {

using Heads = CoreHeads;

std::vector<std::int64_t> query_shape(const DeviceShape& shape) { return {shape.tokens, shape.query_heads, shape.head_dim}; }
std::vector<std::int64_t> kv_shape(const DeviceShape& shape) { return {shape.tokens, shape.kv_heads, shape.head_dim}; }
std::int64_t mixed_width(const DeviceShape& shape) { return shape.query_width() + 2 * shape.kv_width(); }

void mixed_forward(TemplateBuilder& builder, AttentionBlock& block) {
  const DeviceShape& shape = builder.shape();
  if (!builder.context().framework.fused_qkv) return separate_forward(builder, block);
  const ModelSpec& model = builder.context().model;
  block.qkv = make_linear(builder, "qkv", "", shape.hidden, mixed_width(shape), model.linear_bias || model.qkv_bias);
  if (!block.qkv.bias.present()) {
    block.mixed = builder.activation("qkv output", {shape.tokens, mixed_width(shape)});
    linear_forward(builder, block.qkv, block.input.product, block.mixed);
  } else {
    // Megatron-LM's layers.py: output = matmul + bias, a kernel of its own.
    const SlotIndex product = builder.activation("qkv product", {shape.tokens, mixed_width(shape)});
    linear_forward(builder, block.qkv, block.input.product, product);
    block.mixed = builder.activation("qkv output", {shape.tokens, mixed_width(shape)});
    builder.pass(
        kForwardOp,
        {.name = "qkv bias", .module = "", .reads = {product, block.qkv.bias.value}, .writes = {block.mixed}, .updates = {}, .holds = {}});
  }
  block.mixed_query = builder.view("query of qkv", block.mixed, query_shape(shape));
  block.mixed_key = builder.view("key of qkv", block.mixed, kv_shape(shape));
  block.mixed_value = builder.view("value of qkv", block.mixed, kv_shape(shape));
}

bool centred(const ModelSpec& model) { return model.normalization == Normalization::kLayerNorm; }

void add_norm_weights(TemplateBuilder& builder, AttentionBlock& block) {
  const std::int64_t width = builder.shape().head_dim;
  block.query_norm = builder.weight("query norm weight", {width});
  block.key_norm = builder.weight("key norm weight", {width});
  if (!centred(builder.context().model) || !builder.context().model.norm_bias) return;
  block.query_norm_bias = builder.weight("query norm bias", {width});
  block.key_norm_bias = builder.weight("key norm bias", {width});
}

// Transformer Engine wants q, k and v alike: beside q and k that are tensors of their own, v is copied out of the joint one
// (attention/dot_product_attention/utils.py:2606; rotary embedding has copied it anyway).
SlotIndex value_beside(TemplateBuilder& builder, const AttentionBlock& block) {
  if (!builder.context().framework.transformer_engine || block.rotary) return block.mixed_value;
  const SlotIndex value = builder.activation("value", kv_shape(builder.shape()));
  builder.pass(kForwardOp,
               {.name = "value copy", .module = "", .reads = {block.mixed_value}, .writes = {value}, .updates = {}, .holds = {}});
  return value;
}

// The layer's norm over each head of q and k, a weight of head_dim for either.
Heads qk_norm_forward(TemplateBuilder& builder, AttentionBlock& block) {
  const DeviceShape& shape = builder.shape();
  const ModelSpec& model = builder.context().model;
  if (!model.qk_norm) return {block.mixed_query, block.mixed_key, block.mixed_value};
  add_norm_weights(builder, block);
  Heads heads{.query = builder.activation("query, normalised", query_shape(shape)),
              .key = builder.activation("key, normalised", kv_shape(shape)),
              .value = block.mixed_value};
  KernelPass pass{.name = "qk norm",
                  .module = "",
                  .reads = {block.mixed_query, block.mixed_key, block.query_norm.value, block.key_norm.value},
                  .writes = {heads.query, heads.key},
                  .updates = {},
                  .holds = {},
                  .kernel = MemoryKernel::kNorm};
  for (const Weight& bias : {block.query_norm_bias, block.key_norm_bias}) {
    if (bias.present()) pass.reads.push_back(bias.value);
  }
  if (builder.context().framework.saves_norm_statistics) {
    const std::int64_t heads_of_both = shape.query_heads + shape.kv_heads;
    block.norm_statistics = builder.add({.name = "qk norm statistics",
                                         .kind = SlotKind::kForward,
                                         .size = {},
                                         .shape = {shape.tokens, centred(model) ? 2 * heads_of_both : heads_of_both},
                                         .dtype = DType::kFp32,
                                         .module = ""});
    pass.writes.push_back(block.norm_statistics);
  }
  builder.pass(kForwardOp, std::move(pass));
  heads.value = value_beside(builder, block);
  return heads;
}

// Whether v stays a part of the joint tensor, which lives on with it. Eager modules rotate q and k alone; batched products of several
// sequences then copy v, a batch of one and flash kernels take it as it lies (torch 1.13: tests/backends/torch_saved_tensors.py).
bool value_stays_joint(const TemplateContext& context) {
  const bool copied = context.training.attention == AttentionKind::kUnfused && context.training.micro_batch > 1;
  return !context.framework.fused_rotary && !context.framework.transformer_engine && !copied;
}

// The rotated q and k, and v where it is made contiguous, are new storages; the mixed qkv dies if nothing reads it.
Heads rotary_forward(TemplateBuilder& builder, const AttentionBlock& block, const Heads& in) {
  const DeviceShape& shape = builder.shape();
  if (!block.rotary) return in;
  if (!block.separate.empty()) return separate_rotary_forward(builder, in);
  Heads heads{
      .query = builder.activation("query", query_shape(shape)), .key = builder.activation("key", kv_shape(shape)), .value = in.value};
  KernelPass pass{
      .name = "rotary", .module = "", .reads = {in.query, in.key}, .writes = {heads.query, heads.key}, .updates = {}, .holds = {}};
  if (!value_stays_joint(builder.context())) {
    heads.value = builder.activation("value", kv_shape(shape));
    pass.reads.push_back(in.value);
    pass.writes.push_back(heads.value);
  }
  eager_rotary(builder, pass, builder.size(heads.query) + builder.size(heads.key));
  builder.pass(kForwardOp, std::move(pass));
  return heads;
}

SlotIndex rotary_backward(TemplateBuilder& builder, const AttentionBlock& block, QkvGradients& gradients) {
  const DeviceShape& shape = builder.shape();
  KernelPass pass{
      .name = "rotary backward", .module = "", .reads = {gradients.query, gradients.key}, .writes = {}, .updates = {}, .holds = {}};
  eager_rotary(builder, pass, builder.size(gradients.query) + builder.size(gradients.key));
  if (!block.query_norm.present()) {
    const SlotIndex mixed = builder.gradient("qkv output gradient", {shape.tokens, mixed_width(shape)});
    pass.reads.push_back(gradients.value);
    pass.writes = {mixed};
    builder.pass(kBackwardOp, std::move(pass));
    return mixed;
  }
  const SlotIndex query = builder.gradient("query, normalised gradient", query_shape(shape));
  const SlotIndex key = builder.gradient("key, normalised gradient", kv_shape(shape));
  pass.writes = {query, key};
  builder.pass(kBackwardOp, std::move(pass));
  gradients.query = query;
  gradients.key = key;
  return kNoSlot;
}

SlotIndex qk_norm_backward(TemplateBuilder& builder, const AttentionBlock& block, const QkvGradients& gradients) {
  const DeviceShape& shape = builder.shape();
  const SlotIndex mixed = builder.gradient("qkv output gradient", {shape.tokens, mixed_width(shape)});
  KernelPass pass{.name = "qk norm backward",
                  .module = "",
                  .reads = {gradients.query, gradients.key, gradients.value, block.mixed_query, block.mixed_key, block.query_norm.value,
                            block.key_norm.value},
                  .writes = {mixed},
                  .updates = {block.query_norm.gradient, block.key_norm.gradient},
                  .holds = {},
                  .kernel = MemoryKernel::kNorm};
  add_qk_norm_operands(block, pass);
  builder.pass(kBackwardOp, std::move(pass));
  return mixed;
}

// From the gradients of what core attention read to that of the qkv projection's output.
SlotIndex mixed_backward(TemplateBuilder& builder, const AttentionBlock& block, QkvGradients gradients) {
  const DeviceShape& shape = builder.shape();
  if (gradients.joint != kNoSlot) return gradients.joint;
  SlotIndex mixed = kNoSlot;
  if (block.rotary) mixed = rotary_backward(builder, block, gradients);
  if (block.query_norm.present()) mixed = qk_norm_backward(builder, block, gradients);
  if (mixed != kNoSlot) return mixed;
  mixed = builder.gradient("qkv output gradient", {shape.tokens, mixed_width(shape)});  // backward of the split: a concatenation
  builder.pass(kBackwardOp, {.name = "qkv gradient concatenation",
                             .module = "",
                             .reads = {gradients.query, gradients.key, gradients.value},
                             .writes = {mixed},
                             .updates = {},
                             .holds = {}});
  return mixed;
}

}  // namespace

AttentionBlock attention_forward(TemplateBuilder& builder, const ColumnInput& input, const LayerKind& kind) {
  const DeviceShape& shape = builder.shape();
  AttentionBlock block;
  block.input = input;
  block.rotary = builder.context().model.position == Position::kRotary && kind.rotary;
  mixed_forward(builder, block);
  const Heads heads = rotary_forward(builder, block, qk_norm_forward(builder, block));
  block.core = core_attention_forward(builder, self_attention(builder, kind), heads.query, heads.key, heads.value);
  block.projection = make_linear(builder, "attention projection", "", shape.query_width(), shape.hidden, false);
  // Replicated, added after the sum over the group.
  if (builder.context().model.linear_bias) block.projection.bias = builder.weight("attention projection bias", {shape.hidden});
  block.output = builder.activation("attention projection output", {shape.tokens, shape.hidden});
  linear_forward(builder, block.projection, block.core.output, block.output);
  return block;
}

SlotIndex attention_backward(TemplateBuilder& builder, const AttentionBlock& block, SlotIndex output_gradient, SlotIndex partial) {
  const DeviceShape& shape = builder.shape();
  const SlotIndex context_gradient = row_backward(builder, block.projection, block.core.output, output_gradient);
  const bool joint = writes_joint_gradient(builder.context()) && !block.rotary && !block.query_norm.present() && block.separate.empty();
  const SlotIndex joint_gradient = joint ? builder.gradient("qkv output gradient", {shape.tokens, mixed_width(shape)}) : kNoSlot;
  const QkvGradients gradients = core_attention_backward(builder, block.core, context_gradient, joint_gradient);
  if (!block.separate.empty()) return separate_backward(builder, block, gradients, partial);
  const SlotIndex mixed = mixed_backward(builder, block, gradients);
  bias_backward(builder, block.qkv, mixed);
  const std::array<ColumnGradient, 1> columns = {ColumnGradient{.linear = &block.qkv, .output_gradient = mixed}};
  return column_backward(builder, block.input, columns, partial, true);
}

void eager_rotary(TemplateBuilder& builder, KernelPass& pass, Bytes rotated) {
  if (builder.context().framework.fused_rotary) return;
  pass.kernel = MemoryKernel::kUnfused;
  pass.further_reads = Bytes(rotated.value / 2 * 9);
  pass.further_writes = Bytes(rotated.value / 2 * 7);
}

void add_qk_norm_operands(const AttentionBlock& block, KernelPass& pass) {
  for (const Weight& bias : {block.query_norm_bias, block.key_norm_bias}) {
    if (bias.present()) pass.updates.push_back(bias.gradient);
  }
  if (block.norm_statistics != kNoSlot) pass.reads.push_back(block.norm_statistics);
}

}  // namespace stepsim
