// The start of the model: the tables' rows, and the gradients of the tables.
#include "models/batch_tensors.h"
#include "models/embedding_block.h"
#include "models/layer_template.h"
#include "models/template_builder.h"
#include "models/training_metrics.h"

namespace stepsim {

LayerTemplate embedding_layer(const TemplateContext& context) {
  TemplateBuilder builder("embedding", context);
  const DeviceShape& shape = builder.shape();
  const EmbeddingBlock block = embedding_forward(builder, {});
  const bool measures = metrics_follow_backward(context);  // those read the labels here
  add_held_batch(builder, "token ids", measures ? "labels" : "");
  const SlotIndex output_gradient = builder.input("output gradient", {shape.local_tokens, shape.hidden});
  embedding_backward(builder, block, output_gradient);
  if (measures) {
    const SlotIndex labels = builder.add(
        {.name = "labels", .kind = SlotKind::kBatch, .size = {}, .shape = {shape.tokens}, .dtype = DType::kInt64, .module = ""});
    add_metrics(builder, Direction::kBackward, metric_logits(builder), labels);
  }
  return std::move(builder).build(
      {.input = block.tokens, .output = block.output, .output_gradient = output_gradient, .input_gradient = kNoSlot});
}

}  // namespace stepsim
