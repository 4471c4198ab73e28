// The end of the model: final norm, vocabulary-parallel head, cross entropy. Its backward starts the backward pass.
#include <array>

#include "models/cross_entropy.h"
#include "models/layer_template.h"
#include "models/linear_block.h"
#include "models/norm_block.h"
#include "models/template_builder.h"

namespace stepsim {

namespace {

Linear head_linear(TemplateBuilder& builder) {
  const DeviceShape& shape = builder.shape();
  Linear head{.name = "head", .module = "", .inputs = shape.hidden, .outputs = shape.vocab, .weight = {}, .bias = {}};
  const std::vector<std::int64_t> weight_shape = {shape.vocab, shape.hidden};
  head.weight =
      builder.context().model.tied_head ? builder.shared_weight(kWordEmbedding, weight_shape) : builder.weight("head weight", weight_shape);
  return head;
}

// The input's gradient, from the whole one to this device's part.
SlotIndex reduced_input_gradient(TemplateBuilder& builder, SlotIndex partial) {
  const DeviceShape& shape = builder.shape();
  if (!shape.sequence_parallel) {
    builder.collective(Direction::kBackward, {.name = "head gradient all-reduce", .module = "", .input = partial});
    return partial;
  }
  const SlotIndex local = builder.gradient("head gradient, scattered", {shape.local_tokens, shape.hidden});
  builder.collective(
      Direction::kBackward,
      {.name = "head gradient reduce-scatter", .module = "", .kind = CollectiveKind::kReduceScatter, .input = partial, .output = local});
  return local;
}

}  // namespace

LayerTemplate head_layer(const TemplateContext& context) {
  TemplateBuilder builder("head", context);
  const DeviceShape& shape = builder.shape();
  const SlotIndex input = builder.input("input", {shape.local_tokens, shape.hidden});
  const SlotIndex labels =
      builder.add({.name = "labels", .kind = SlotKind::kBatch, .size = {}, .shape = {shape.tokens}, .dtype = DType::kInt64, .module = ""});
  const NormBlock norm = norm_forward(builder, "final norm", "", input);
  const ColumnInput column = gathered_input(builder, "final norm output", norm.output, "");
  const Linear head = head_linear(builder);

  if (context.training.loss == LossKind::kChunked) {
    const ChunkedHead chunked = chunked_head_forward(builder, head, column.product, labels);
    builder.pass(Direction::kBackward, {.name = "head input gradient scale",  // by the gradient of the loss
                                        .module = "",
                                        .reads = {},
                                        .writes = {},
                                        .updates = {chunked.input_gradient},
                                        .holds = {}});
    const SlotIndex gradient = norm_backward(builder, norm, reduced_input_gradient(builder, chunked.input_gradient));
    return std::move(builder).build({.input = input, .output = chunked.loss, .output_gradient = kNoSlot, .input_gradient = gradient});
  }

  const SlotIndex logits = builder.add({.name = "logits",
                                        .kind = SlotKind::kForward,
                                        .size = {},
                                        .shape = {shape.tokens, shape.vocab},
                                        .dtype = shape.compute,
                                        .role = Role::kLogits,
                                        .module = ""});
  linear_forward(builder, head, column.product, logits);
  const CrossEntropy loss = cross_entropy_forward(builder, logits, labels);
  const std::array<ColumnGradient, 1> columns = {ColumnGradient{&head, cross_entropy_backward(builder, loss)}};
  const SlotIndex gradient = norm_backward(builder, norm, column_backward(builder, column, columns, kNoSlot, true));
  return std::move(builder).build({.input = input, .output = loss.loss, .output_gradient = kNoSlot, .input_gradient = gradient});
}

}  // namespace stepsim
