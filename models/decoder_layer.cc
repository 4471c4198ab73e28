#include "models/decoder_layer.h"

#include <string>
#include <utility>
#include <vector>

#include "models/attention_block.h"
#include "models/cross_attention.h"
#include "models/decoder_context.h"
#include "models/embedding_block.h"
#include "models/mlp_block.h"
#include "models/norm_block.h"
#include "models/residual_block.h"
#include "models/template_builder.h"
#include "sim/check.h"

namespace stepsim {

namespace {

constexpr const char* kLayerNorm = "layernorm";
constexpr const char* kMemory = "encoder output";
constexpr const char* kEncoderNorm = "encoder final norm";

// Autograd's sum of the residual's gradient and the branch's.
void add_residual_gradient(TemplateBuilder& builder, SlotIndex residual, SlotIndex branch) {
  builder.pass(Direction::kBackward,
               {.name = "residual gradient sum", .module = "", .reads = {residual}, .writes = {}, .updates = {branch}, .holds = {}});
}

// What the first decoder layer does before it is one: the encoder's final norm, whose output is shared, and the decoder's embedding.
struct DecoderStart {
  SlotIndex input = kNoSlot;  // the encoder's last hidden state
  NormBlock encoder_norm;
  EmbeddingBlock embedding;
};

DecoderStart start_forward(TemplateBuilder& builder, const std::vector<std::int64_t>& memory_shape) {
  DecoderStart start;
  start.input = builder.input("input", memory_shape);
  start.encoder_norm = norm_forward(builder, kEncoderNorm, "", start.input);
  builder.set_prefix("decoder ");
  start.embedding = embedding_forward(builder, {.owns_tables = false});
  builder.set_prefix("");
  return start;
}

// The gradient of the encoder's last hidden state, from what all decoder layers added to that of the encoder's output.
SlotIndex start_backward(TemplateBuilder& builder, const DecoderStart& start, SlotIndex hidden_gradient, SlotIndex memory_gradient) {
  builder.set_prefix("decoder ");
  embedding_backward(builder, start.embedding, hidden_gradient);
  builder.set_prefix("");
  return norm_backward(builder, start.encoder_norm, memory_gradient);
}

// A decoder layer proper, from `input` over `memory`.
struct DecoderBody {
  SlotIndex input = kNoSlot;
  NormBlock norm1, norm2, norm3;
  AttentionBlock attention;
  CrossAttention cross;
  MlpBlock mlp;
  ResidualBlock attention_end, cross_end, mlp_end;
};

DecoderBody body_forward(TemplateBuilder& builder, const LayerKind& kind, SlotIndex input, SlotIndex memory, const DeviceShape& encoder) {
  DecoderBody body;
  body.input = input;
  body.norm1 = norm_forward(builder, "norm 1", kLayerNorm, input);
  body.attention = attention_forward(builder, gathered_input(builder, "norm 1 output", body.norm1.output, ""), kind);
  const SlotIndex attention_output = reduced_output(builder, "attention projection output", "", body.attention.output);
  body.attention_end =
      residual_forward(builder, "attention residual", "attention residual", attention_output, input, {body.attention.projection.bias});
  body.norm2 = norm_forward(builder, "norm 2", kLayerNorm, body.attention_end.output);
  body.cross = cross_attention_forward(builder, gathered_input(builder, "norm 2 output", body.norm2.output, ""), memory, encoder);
  const SlotIndex cross_output = reduced_output(builder, "cross attention projection output", "", body.cross.output);
  body.cross_end = residual_forward(builder, "cross attention residual", "cross attention residual", cross_output,
                                    body.attention_end.output, {body.cross.projection.bias});
  body.norm3 = norm_forward(builder, "norm 3", kLayerNorm, body.cross_end.output);
  body.mlp = mlp_forward(builder, gathered_input(builder, "norm 3 output", body.norm3.output, "mlp"));
  const SlotIndex mlp_output = reduced_output(builder, "mlp output", "mlp", body.mlp.output);
  body.mlp_end = residual_forward(builder, "mlp residual", "output", mlp_output, body.cross_end.output, {body.mlp.second.bias});
  return body;
}

SlotIndex body_backward(TemplateBuilder& builder, const DecoderBody& body, SlotIndex output_gradient, SlotIndex memory_gradient) {
  const SlotIndex mlp_gradient = gathered_gradient(builder, "mlp output", "mlp", residual_backward(builder, body.mlp_end, output_gradient));
  const SlotIndex cross_end = norm_backward(builder, body.norm3, mlp_backward(builder, body.mlp, mlp_gradient, true));
  add_residual_gradient(builder, output_gradient, cross_end);
  const SlotIndex cross_gradient =
      gathered_gradient(builder, "cross attention projection output", "", residual_backward(builder, body.cross_end, cross_end));
  const CrossGradients cross = cross_attention_backward(builder, body.cross, cross_gradient);
  builder.pass(Direction::kBackward, {.name = "encoder output gradient sum",
                                      .module = "",
                                      .reads = {cross.memory},
                                      .writes = {},
                                      .updates = {memory_gradient},
                                      .holds = {}});
  const SlotIndex attention_end = norm_backward(builder, body.norm2, cross.input);
  add_residual_gradient(builder, cross_end, attention_end);
  const SlotIndex attention_gradient =
      gathered_gradient(builder, "attention projection output", "", residual_backward(builder, body.attention_end, attention_end));
  const SlotIndex input_gradient =
      norm_backward(builder, body.norm1, attention_backward(builder, body.attention, attention_gradient, kNoSlot));
  add_residual_gradient(builder, attention_end, input_gradient);
  return input_gradient;
}

}  // namespace

LayerTemplate decoder_layer(const TemplateContext& context, const LayerKind& kind) {
  STEPSIM_CHECK(kind.side == LayerSide::kFirstDecoder || kind.side == LayerSide::kDecoder);
  const bool first = kind.side == LayerSide::kFirstDecoder;
  const DecoderContext decoder(context);
  const DeviceShape encoder = device_shape(context);
  TemplateBuilder builder(first ? "first decoder layer" : "decoder layer", decoder.context());
  const DeviceShape& shape = builder.shape();
  const std::vector<std::int64_t> memory_shape = {encoder.local_tokens, encoder.hidden};
  DecoderStart start;
  if (first) start = start_forward(builder, memory_shape);
  const SlotIndex input = first ? start.embedding.output : builder.input("input", {shape.local_tokens, shape.hidden});
  const SlotIndex memory = first ? start.encoder_norm.output : builder.shared(kMemory, memory_shape, SlotKind::kShared);
  const DecoderBody body = body_forward(builder, kind, input, memory, encoder);

  const SlotIndex output_gradient = builder.input("output gradient", {shape.local_tokens, shape.hidden});
  const SlotIndex memory_gradient = builder.shared(std::string(kMemory) + " gradient", memory_shape, SlotKind::kSharedGradient);
  const SlotIndex input_gradient = body_backward(builder, body, output_gradient, memory_gradient);
  const TemplateBuilder::Ends ends{
      .input = first ? start.input : input,
      .output = body.mlp_end.output,
      .output_gradient = output_gradient,
      .input_gradient = first ? start_backward(builder, start, input_gradient, memory_gradient) : input_gradient};
  LayerTemplate layer = std::move(builder).build(ends);
  // A norm's output is its layer's own elsewhere: this one the other layers know.
  for (Slot& slot : layer.slots) {
    if (!first || slot.name != kEncoderNorm + std::string(" output")) continue;
    slot.kind = SlotKind::kShared;
    slot.name = kMemory;
  }
  return layer;
}

}  // namespace stepsim
