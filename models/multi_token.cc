#include "models/multi_token.h"

#include <array>
#include <string>

#include "sim/input_error.h"

namespace stepsim {

namespace {

std::int64_t own_columns(const TemplateBuilder& builder) {
  const DeviceShape& shape = builder.shape();
  if (shape.hidden % shape.ranks != 0) {
    throw InputError({builder.context().model.name}, "found hidden " + std::to_string(shape.hidden) + " with " +
                                                         std::to_string(shape.ranks) +
                                                         " tensor-parallel ranks and multi-token prediction, wanted a multiple of them");
  }
  return shape.hidden / shape.ranks;
}

void join_forward(TemplateBuilder& builder, MultiTokenLayer& layer) {
  const DeviceShape& shape = builder.shape();
  const SlotIndex joined = builder.activation("embedding and hidden", {shape.local_tokens, 2 * shape.hidden});
  builder.pass(kForwardOp, {.name = "embedding and hidden concatenation",
                            .module = "",
                            .reads = {layer.embedding_norm.output, layer.hidden_norm.output},
                            .writes = {joined},
                            .updates = {},
                            .holds = {}});
  layer.joined = gathered_input(builder, "embedding and hidden", joined, "");
}

// Column-parallel, its output gathered over the group; under sequence parallelism each rank then keeps its tokens.
SlotIndex projection_forward(TemplateBuilder& builder, MultiTokenLayer& layer) {
  const DeviceShape& shape = builder.shape();
  layer.projection = make_linear(builder, "eh projection", "", 2 * shape.hidden, own_columns(builder), false);
  const SlotIndex part = builder.activation("eh projection output", {shape.tokens, layer.projection.outputs});
  linear_forward(builder, layer.projection, layer.joined.product, part);
  if (shape.ranks == 1) return part;
  const SlotIndex whole = builder.activation("eh projection output, gathered", {shape.tokens, shape.hidden});
  builder.collective(
      kForwardOp, {.name = "eh projection all-gather", .module = "", .kind = CollectiveKind::kAllGather, .input = part, .output = whole});
  if (!shape.sequence_parallel) return whole;
  const SlotIndex local = builder.activation("eh projection output, own part", {shape.local_tokens, shape.hidden});
  builder.op(kForwardOp, {.name = "eh projection scatter",
                          .module = "",
                          .work = MemoryBound{.read = builder.size(local), .written = builder.size(local)},
                          .reads = {whole},
                          .writes = {local},
                          .updates = {},
                          .holds = {},
                          .after = {}});
  return local;
}

// The gradient of this rank's columns.
SlotIndex column_gradient(TemplateBuilder& builder, SlotIndex local) {
  const DeviceShape& shape = builder.shape();
  if (shape.ranks == 1) return local;
  SlotIndex whole = local;
  if (shape.sequence_parallel) {
    whole = builder.gathered("eh projection gradient, gathered", {shape.tokens, shape.hidden});
    builder.collective(
        kBackwardOp,
        {.name = "eh projection gradient all-gather", .module = "", .kind = CollectiveKind::kAllGather, .input = local, .output = whole});
  }
  const SlotIndex part = builder.gradient("eh projection output gradient", {shape.tokens, own_columns(builder)});
  builder.op(kBackwardOp, {.name = "eh projection gradient split",
                           .module = "",
                           .work = MemoryBound{.read = builder.size(part), .written = builder.size(part)},
                           .reads = {whole},
                           .writes = {part},
                           .updates = {},
                           .holds = {},
                           .after = {}});
  return part;
}

}  // namespace

MultiTokenLayer multi_token_forward(TemplateBuilder& builder, SlotIndex hidden) {
  const ModelSpec& model = builder.context().model;
  MultiTokenLayer layer;
  layer.embedding = embedding_forward(builder, {.owns_tables = false, .words_alone = true});
  layer.embedding_norm = norm_forward(builder, "embedding norm", "", layer.embedding.output);
  layer.hidden_norm = norm_forward(builder, "hidden norm", "", hidden);
  join_forward(builder, layer);
  layer.layer = append_layer(builder, model.kind(model.layers - 1), projection_forward(builder, layer));
  layer.final_norm = norm_forward(builder, "final norm", "", layer.layer.output);
  return layer;
}

SlotIndex multi_token_backward(TemplateBuilder& builder, const MultiTokenLayer& layer, SlotIndex output_gradient) {
  const DeviceShape& shape = builder.shape();
  const SlotIndex layer_gradient = norm_backward(builder, layer.final_norm, output_gradient);
  const SlotIndex projected = column_gradient(builder, layer.layer.backward(builder, layer_gradient));
  const std::array<ColumnGradient, 1> columns = {ColumnGradient{.linear = &layer.projection, .output_gradient = projected}};
  const SlotIndex joined = column_backward(builder, layer.joined, columns, kNoSlot, true);
  const SlotIndex embedding = builder.gradient("embedding norm output gradient", {shape.local_tokens, shape.hidden});
  const SlotIndex hidden = builder.gradient("hidden norm output gradient", {shape.local_tokens, shape.hidden});
  builder.pass(
      kBackwardOp,
      {.name = "embedding and hidden split", .module = "", .reads = {joined}, .writes = {embedding, hidden}, .updates = {}, .holds = {}});
  embedding_backward(builder, layer.embedding, norm_backward(builder, layer.embedding_norm, embedding));
  return norm_backward(builder, layer.hidden_norm, hidden);
}

}  // namespace stepsim
