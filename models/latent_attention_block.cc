#include "models/latent_attention_block.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

namespace stepsim {

namespace {

constexpr const char* kUp = "mla_up_proj";
constexpr const char* kUpInput = "latent_norm,mla_up_proj";

std::int64_t head_width(const LatentAttentionSpec& latent) { return latent.nope_dim + latent.rope_dim; }

std::vector<std::int64_t> head_shape(const DeviceShape& shape, std::int64_t width) { return {shape.tokens, shape.query_heads, width}; }

// On this device's part of the tokens, the same on every rank of the tensor-parallel group.
Linear replicated_linear(TemplateBuilder& builder, const std::string& name, std::int64_t inputs, std::int64_t outputs) {
  Linear linear = make_linear(builder, name, "", inputs, outputs, false);
  linear.rows = builder.shape().local_tokens;
  return linear;
}

// From the latent to the product up.
void up_forward(TemplateBuilder& builder, const std::string& name, Latent& latent, std::int64_t outputs) {
  SlotIndex local = latent.value;
  if (builder.context().model.qk_norm) {
    latent.norm = norm_forward(builder, name + " latent norm", kUpInput, latent.value);
    local = latent.norm.output;
  }
  const std::string local_name = builder.slot(local).name;
  latent.up_input = gathered_input(builder, local_name, local, "");
  latent.up = make_linear(builder, name + " up", "", builder.slot(local).shape.back(), outputs, false);
  latent.output = builder.activation(name + " up output", {builder.shape().tokens, outputs}, kUp);
  linear_forward(builder, latent.up, latent.up_input.product, latent.output);
}

void query_forward(TemplateBuilder& builder, LatentAttentionBlock& block) {
  const DeviceShape& shape = builder.shape();
  const LatentAttentionSpec& latent = builder.context().model.latent;
  const std::int64_t width = shape.query_heads * head_width(latent);
  if (latent.q_rank == 0) {
    const std::string input_name = builder.slot(block.input).name;
    block.query_input = gathered_input(builder, input_name, block.input, "");
    block.direct_query = make_linear(builder, "query", "", shape.hidden, width, false);
    block.query_output = builder.activation("query output", {shape.tokens, width}, kUp);
    linear_forward(builder, block.direct_query, block.query_input.product, block.query_output);
    return;
  }
  block.query.down = replicated_linear(builder, "query down", shape.hidden, latent.q_rank);
  block.query.value = builder.activation("query latent", {shape.local_tokens, latent.q_rank});
  linear_forward(builder, block.query.down, block.input, block.query.value);
  up_forward(builder, "query", block.query, width);
  block.query_output = block.query.output;
}

// Rotated, then gathered: every rank's heads need it for all of the tokens.
SlotIndex rotary_key_forward(TemplateBuilder& builder, SlotIndex down_output) {
  const DeviceShape& shape = builder.shape();
  const std::int64_t width = builder.context().model.latent.rope_dim;
  const SlotIndex local = builder.activation("rotary key", {shape.local_tokens, width});
  const Bytes part = builder.size(local);
  builder.op(kForwardOp, {.name = "rotary key",
                          .module = "",
                          .work = MemoryBound{.read = part, .written = part},
                          .reads = {down_output},
                          .writes = {local},
                          .updates = {},
                          .holds = {},
                          .after = {}});
  if (!shape.sequence_parallel) return local;
  const SlotIndex whole = builder.gathered("rotary key, gathered", {shape.tokens, width});
  builder.collective(kForwardOp,
                     {.name = "rotary key all-gather", .module = "", .kind = CollectiveKind::kAllGather, .input = local, .output = whole});
  return whole;
}

// Returns the rotary key. The norm and the product up read the latent in one piece: it is copied out of the product down's output.
SlotIndex key_value_forward(TemplateBuilder& builder, LatentAttentionBlock& block) {
  const DeviceShape& shape = builder.shape();
  const LatentAttentionSpec& spec = builder.context().model.latent;
  Latent& latent = block.key_value;
  latent.down = replicated_linear(builder, "key-value down", shape.hidden, spec.kv_rank + spec.rope_dim);
  const SlotIndex whole = builder.activation("key-value down output", {shape.local_tokens, spec.kv_rank + spec.rope_dim});
  linear_forward(builder, latent.down, block.input, whole, spec.q_rank > 0 ? &block.query.down : nullptr);
  latent.value = builder.activation("key-value latent", {shape.local_tokens, spec.kv_rank});
  const Bytes part = builder.size(latent.value);
  builder.op(kForwardOp, {.name = "latent copy",
                          .module = "",
                          .work = MemoryBound{.read = part, .written = part},
                          .reads = {whole},
                          .writes = {latent.value},
                          .updates = {},
                          .holds = {},
                          .after = {}});
  const SlotIndex rotary_key = rotary_key_forward(builder, whole);
  up_forward(builder, "key-value", latent, shape.query_heads * (spec.nope_dim + spec.value_dim));
  return rotary_key;
}

AttentionForm latent_form(const TemplateBuilder& builder, const LayerKind& kind) {
  AttentionForm form = self_attention(builder, kind);
  const LatentAttentionSpec& latent = builder.context().model.latent;
  form.kv_heads = builder.shape().query_heads;
  form.head_dim = head_width(latent);
  form.value_dim = latent.value_dim;
  return form;
}

// Gradients of what the products up made, and of the rotary key (all of the tokens; this device's heads summed).
struct UpGradients {
  SlotIndex query = kNoSlot, key_value = kNoSlot, rotary_key = kNoSlot;
};

UpGradients heads_backward(TemplateBuilder& builder, const LatentAttentionBlock& block, const QkvGradients& gradients) {
  const DeviceShape& shape = builder.shape();
  const LatentAttentionSpec& latent = builder.context().model.latent;
  UpGradients up;
  up.query = builder.gradient("query up output gradient", builder.slot(block.query_output).shape);
  builder.pass(
      kBackwardOp,
      {.name = "rotary query backward", .module = "", .reads = {gradients.query}, .writes = {up.query}, .updates = {}, .holds = {}});
  up.key_value = builder.gradient("key-value up output gradient", builder.slot(block.key_value.output).shape);
  up.rotary_key = builder.gradient("rotary key gradient", {shape.tokens, latent.rope_dim});
  builder.pass(kBackwardOp, {.name = "key-value heads backward",
                             .module = "",
                             .reads = {gradients.key, gradients.value},
                             .writes = {up.key_value, up.rotary_key},
                             .updates = {},
                             .holds = {}});
  return up;
}

// Of the latent, from that of the product up.
SlotIndex up_backward(TemplateBuilder& builder, const Latent& latent, SlotIndex output_gradient) {
  const std::array<ColumnGradient, 1> columns = {ColumnGradient{.linear = &latent.up, .output_gradient = output_gradient}};
  const SlotIndex gradient = column_backward(builder, latent.up_input, columns, kNoSlot, true);
  return latent.norm.weight.present() ? norm_backward(builder, latent.norm, gradient) : gradient;
}

// The sum over the group's heads, this device's part of the tokens.
SlotIndex rotary_key_backward(TemplateBuilder& builder, SlotIndex whole) {
  const DeviceShape& shape = builder.shape();
  if (!shape.sequence_parallel) {
    builder.collective(kBackwardOp, {.name = "rotary key gradient all-reduce", .module = "", .input = whole});
    return whole;
  }
  const SlotIndex local = builder.gradient("rotary key gradient, scattered", {shape.local_tokens, builder.slot(whole).shape.back()});
  builder.collective(kBackwardOp, {.name = "rotary key gradient reduce-scatter",
                                   .module = "",
                                   .kind = CollectiveKind::kReduceScatter,
                                   .input = whole,
                                   .output = local});
  return local;
}

SlotIndex key_value_backward(TemplateBuilder& builder, const LatentAttentionBlock& block, const UpGradients& up) {
  const DeviceShape& shape = builder.shape();
  const Latent& latent = block.key_value;
  const SlotIndex value = up_backward(builder, latent, up.key_value);
  const SlotIndex rotary_key = rotary_key_backward(builder, up.rotary_key);
  const SlotIndex joint = builder.gradient("key-value down output gradient", {shape.local_tokens, latent.down.outputs});
  builder.pass(
      kBackwardOp,
      {.name = "latent gradient concatenation", .module = "", .reads = {value, rotary_key}, .writes = {joint}, .updates = {}, .holds = {}});
  return row_backward(builder, latent.down, block.input, joint);
}

SlotIndex query_backward(TemplateBuilder& builder, const LatentAttentionBlock& block, SlotIndex output_gradient) {
  if (builder.context().model.latent.q_rank > 0) {
    return row_backward(builder, block.query.down, block.input, up_backward(builder, block.query, output_gradient));
  }
  const std::array<ColumnGradient, 1> columns = {ColumnGradient{.linear = &block.direct_query, .output_gradient = output_gradient}};
  return column_backward(builder, block.query_input, columns, kNoSlot, true);
}

}  // namespace

LatentAttentionBlock latent_attention_forward(TemplateBuilder& builder, SlotIndex input, const LayerKind& kind) {
  const DeviceShape& shape = builder.shape();
  const LatentAttentionSpec& latent = builder.context().model.latent;
  LatentAttentionBlock block;
  block.input = input;
  query_forward(builder, block);
  const SlotIndex rotary_key = key_value_forward(builder, block);
  const SlotIndex query = builder.activation("query", head_shape(shape, head_width(latent)), kUp);
  builder.pass(kForwardOp,
               {.name = "rotary query", .module = "", .reads = {block.query_output}, .writes = {query}, .updates = {}, .holds = {}});
  const SlotIndex key = builder.activation("key", head_shape(shape, head_width(latent)), kUp);
  const SlotIndex value = builder.activation("value", head_shape(shape, latent.value_dim), kUp);
  builder.pass(kForwardOp, {.name = "key-value heads",
                            .module = "",
                            .reads = {block.key_value.output, rotary_key},
                            .writes = {key, value},
                            .updates = {},
                            .holds = {}});
  const AttentionForm form = latent_form(builder, kind);
  block.core = core_attention_forward(builder, form, query, key, value);
  block.projection = make_linear(builder, "attention projection", "", shape.query_heads * latent.value_dim, shape.hidden, false);
  // Replicated, added after the sum over the group.
  if (builder.context().model.linear_bias) block.projection.bias = builder.weight("attention projection bias", {shape.hidden});
  block.output = builder.activation("attention projection output", {shape.tokens, shape.hidden});
  linear_forward(builder, block.projection, block.core.output, block.output);
  return block;
}

SlotIndex latent_attention_backward(TemplateBuilder& builder, const LatentAttentionBlock& block, SlotIndex output_gradient) {
  const SlotIndex context_gradient = row_backward(builder, block.projection, block.core.output, output_gradient);
  const QkvGradients gradients = core_attention_backward(builder, block.core, context_gradient, kNoSlot);
  const UpGradients up = heads_backward(builder, block, gradients);
  const SlotIndex of_keys = key_value_backward(builder, block, up);
  const SlotIndex sum = query_backward(builder, block, up.query);
  builder.pass(kBackwardOp,
               {.name = "latent input gradient sum", .module = "", .reads = {of_keys}, .writes = {}, .updates = {sum}, .holds = {}});
  return sum;
}

}  // namespace stepsim
