// The end of the model: final norm, vocabulary-parallel head, cross entropy; with multi-token prediction its layers and losses too. Its
// backward starts the backward pass.
#include <array>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/batch_tensors.h"
#include "models/cross_entropy.h"
#include "models/decoder_context.h"
#include "models/head_transform.h"
#include "models/layer_template.h"
#include "models/linear_block.h"
#include "models/multi_token.h"
#include "models/norm_block.h"
#include "models/template_builder.h"
#include "models/training_metrics.h"
#include "sim/input_error.h"

namespace stepsim {

namespace {

Linear head_linear(TemplateBuilder& builder) {
  const DeviceShape& shape = builder.shape();
  const ModelSpec& model = builder.context().model;
  Linear head;
  if (model.tied_head) {
    head.name = "head";
    head.inputs = shape.hidden;
    head.outputs = shape.vocab;
    head.rows = shape.tokens;
    head.weight = builder.shared_weight(kWordEmbedding, {shape.vocab, shape.hidden});
  } else {
    head = make_linear(builder, "head", "", shape.hidden, shape.vocab, false);
  }
  head.low_precision = false;
  if (model.head_transform) head.bias = builder.weight("head bias", {shape.vocab});
  return head;
}

// The input's gradient, from the whole one to this device's part.
SlotIndex reduced_input_gradient(TemplateBuilder& builder, SlotIndex partial) {
  const DeviceShape& shape = builder.shape();
  if (!shape.sequence_parallel) {
    builder.collective(kBackwardOp, {.name = "head gradient all-reduce", .module = "", .input = partial});
    return partial;
  }
  const SlotIndex local = builder.gradient("head gradient, scattered", {shape.local_tokens, shape.hidden});
  builder.collective(
      kBackwardOp,
      {.name = "head gradient reduce-scatter", .module = "", .kind = CollectiveKind::kReduceScatter, .input = partial, .output = local});
  return local;
}

SlotIndex labels_slot(TemplateBuilder& builder) {
  return builder.add(
      {.name = "labels", .kind = SlotKind::kBatch, .size = {}, .shape = {builder.shape().tokens}, .dtype = DType::kInt64, .module = ""});
}

SlotIndex logits_slot(TemplateBuilder& builder, const std::string& name) {
  const DeviceShape& shape = builder.shape();
  return builder.add({.name = name,
                      .kind = SlotKind::kForward,
                      .size = {},
                      .shape = {shape.tokens, shape.vocab},
                      .dtype = shape.compute,
                      .role = Role::kLogits,
                      .module = ""});
}

// What a loss is made of: of the main one, which metrics read too, or of multi-token prediction's.
SlotIndex loss_logits(TemplateBuilder& builder, bool measured) {
  return measured && metrics_follow_backward(builder.context()) ? metric_logits(builder) : logits_slot(builder, "logits");
}

// From hidden states to a loss.
struct LossEnd {
  ColumnInput column;
  CrossEntropy loss;
  std::optional<ChunkedHead> chunked;
  SlotIndex output() const { return chunked ? chunked->loss : loss.loss; }
};

LossEnd loss_forward(TemplateBuilder& builder, Linear& head, const std::string& input_name, SlotIndex input, SlotIndex labels,
                     bool measured) {
  LossEnd end;
  end.column = gathered_input(builder, input_name, input, "");
  if (builder.context().training.loss == LossKind::kChunked) {
    end.chunked = chunked_head_forward(builder, head, end.column.product, labels);
    return end;
  }
  SlotIndex logits = kNoSlot;
  if (head.bias.present()) {
    const SlotIndex product = logits_slot(builder, "logits without bias");
    linear_forward(builder, head, end.column.product, product);
    logits = loss_logits(builder, measured);
    builder.pass(kForwardOp,
                 {.name = "head bias", .module = "", .reads = {product, head.bias.value}, .writes = {logits}, .updates = {}, .holds = {}});
  } else {
    logits = loss_logits(builder, measured);
    linear_forward(builder, head, end.column.product, logits);
  }
  end.loss = cross_entropy_forward(builder, logits, labels);
  if (measured && has_metrics(builder.context()) && !metrics_follow_backward(builder.context())) {
    add_metrics(builder, kForwardOp, logits, labels);
    const bool read_by_loss = builder.context().training.loss == LossKind::kFused && builder.context().framework.fused_loss_keeps_logits;
    add_accuracy(builder, read_by_loss ? end.loss.saved : logits, labels);
  }
  return end;
}

// Returns the gradient of this device's part of the hidden states.
SlotIndex loss_backward(TemplateBuilder& builder, const Linear& head, const LossEnd& end) {
  if (end.chunked) {
    builder.pass(kBackwardOp, {.name = "head input gradient scale",  // by the gradient of the loss
                               .module = "",
                               .reads = {},
                               .writes = {},
                               .updates = {end.chunked->input_gradient},
                               .holds = {}});
    return reduced_input_gradient(builder, end.chunked->input_gradient);
  }
  const SlotIndex logits_gradient = cross_entropy_backward(builder, end.loss);
  if (head.bias.present()) {
    builder.pass(kBackwardOp, {.name = "head bias gradient",
                               .module = "",
                               .reads = {logits_gradient},
                               .writes = {},
                               .updates = {head.bias.gradient},
                               .holds = {}});
  }
  const std::array<ColumnGradient, 1> columns = {ColumnGradient{&head, logits_gradient}};
  return column_backward(builder, end.column, columns, kNoSlot, true);
}

// Megatron-LM's order (gpt_model.py): all layers of multi-token prediction, their losses, the main loss. What their losses save waits
// until that one is over. Losses go backwards from the last.
struct Prediction {
  std::string prefix;
  MultiTokenLayer layer;
  LossEnd end;
};

std::vector<Prediction> predictions_forward(TemplateBuilder& builder, Linear& head, SlotIndex hidden) {
  std::vector<Prediction> predictions(static_cast<std::size_t>(builder.context().model.multi_token_layers));
  for (std::size_t index = 0; index < predictions.size(); ++index) {
    Prediction& each = predictions[index];
    each.prefix = "multi-token " + std::to_string(index + 1) + " ";
    builder.set_prefix(each.prefix);
    each.layer = multi_token_forward(builder, hidden);
    hidden = each.layer.final_norm.output;
  }
  for (Prediction& each : predictions) {
    builder.set_prefix(each.prefix);
    // Labels are shifted once more for each layer: copies.
    each.end = loss_forward(builder, head, "final norm output", each.layer.final_norm.output, labels_slot(builder), false);
  }
  builder.set_prefix("");
  return predictions;
}

// Adds to the gradient of the final norm's output.
void predictions_backward(TemplateBuilder& builder, const Linear& head, const std::vector<Prediction>& predictions,
                          SlotIndex hidden_gradient) {
  std::vector<SlotIndex> gradients(predictions.size(), kNoSlot);
  for (std::size_t index = predictions.size(); index-- > 0;) {
    builder.set_prefix(predictions[index].prefix);
    gradients[index] = loss_backward(builder, head, predictions[index].end);
  }
  for (std::size_t index = predictions.size(); index-- > 0;) {
    builder.set_prefix(predictions[index].prefix);
    const SlotIndex gradient = multi_token_backward(builder, predictions[index].layer, gradients[index]);
    builder.pass(kBackwardOp, {.name = "hidden gradient sum",
                               .module = "",
                               .reads = {gradient},
                               .writes = {},
                               .updates = {index == 0 ? hidden_gradient : gradients[index - 1]},
                               .holds = {}});
  }
  builder.set_prefix("");
}

void check_loss(const TemplateContext& context) {
  if (context.training.loss != LossKind::kChunked) return;
  if (has_metrics(context)) {
    throw InputError({"--loss"}, "found chunked with " + context.framework.name + ", wanted plain or fused: its metrics read all logits");
  }
  if (!context.model.head_transform) return;
  throw InputError({"--loss"}, "found chunked with " + context.model.name + ", wanted plain or fused: its head has a bias");
}

// The weight gradient of the head, and what is made for it alone, wait for the end of the passes where the recipe says so.
void mark_deferred(LayerTemplate& layer, const TrainingRecipe& training, const std::string& weight) {
  if (training.deferred_head_gradients == 0) return;
  std::set<SlotIndex> wanted_elsewhere;
  for (std::size_t index = layer.backward.size(); index-- > 0;) {
    TemplateOp& op = layer.backward[index];
    bool waits = !op.updates.empty() || !op.writes.empty();
    for (const SlotIndex slot : op.updates) waits = waits && layer.slots[static_cast<std::size_t>(slot)].name == weight + " gradient";
    for (const SlotIndex slot : op.writes) {
      const bool workspace = layer.slots[static_cast<std::size_t>(slot)].kind == SlotKind::kWorkspace;
      waits = waits && workspace && !wanted_elsewhere.contains(slot);
    }
    op.deferrable = waits;
    if (waits) continue;
    for (const auto* used : {&op.reads, &op.updates, &op.holds}) wanted_elsewhere.insert(used->begin(), used->end());
  }
}

}  // namespace

LayerTemplate head_layer(const TemplateContext& given) {
  check_loss(given);
  const DecoderContext decoder(given);
  const TemplateContext& context = decoder.context();
  TemplateBuilder builder("head", context);
  const DeviceShape& shape = builder.shape();
  const SlotIndex input = builder.input("input", {shape.local_tokens, shape.hidden});
  const SlotIndex labels = labels_slot(builder);
  add_held_batch(builder, "labels");
  const NormBlock norm = norm_forward(builder, "final norm", "", input);
  std::optional<Pooler> pooler;
  std::optional<HeadTransform> transform;
  if (context.model.pooler) pooler = pooler_forward(builder, norm.output);
  if (context.model.head_transform) transform = head_transform_forward(builder, norm.output);
  Linear head = head_linear(builder);
  const std::vector<Prediction> predictions = predictions_forward(builder, head, norm.output);
  const LossEnd end = loss_forward(builder, head, transform ? "head norm output" : "final norm output",
                                   transform ? transform->norm.output : norm.output, labels, true);

  SlotIndex gradient = loss_backward(builder, head, end);
  predictions_backward(builder, head, predictions, gradient);
  if (transform) gradient = head_transform_backward(builder, *transform, gradient);
  if (pooler) pooler_backward(builder, *pooler, gradient);
  const SlotIndex input_gradient = norm_backward(builder, norm, gradient);
  LayerTemplate layer =
      std::move(builder).build({.input = input, .output = end.output(), .output_gradient = kNoSlot, .input_gradient = input_gradient});
  mark_deferred(layer, context.training, context.model.tied_head ? kWordEmbedding : "head weight");
  return layer;
}

}  // namespace stepsim
