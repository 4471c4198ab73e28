#include "models/batch_tensors.h"

#include <array>
#include <string_view>

namespace stepsim {

namespace {

struct BatchTensorShape {
  const char* name;
  DType dtype;
};

// Megatron-LM training/utils.py get_batch_on_this_tp_rank: the first and the last stage move all of a batch to the device, 28 B a token
// (spec megatron_memory.md 3.4).
constexpr std::array<BatchTensorShape, 4> kTokenTensors = {
    {{"token ids", DType::kInt64}, {"labels", DType::kInt64}, {"loss mask", DType::kFp32}, {"position ids", DType::kInt64}}};

}  // namespace

void add_held_batch(TemplateBuilder& builder, const std::string& read, const std::string& read_too) {
  const TemplateContext& context = builder.context();
  // Megatron-LM's loader, whose preset is the one with buffers of its own. BERT's and T5's have other tensors, too small to measure.
  if (!context.framework.global_buffers || context.model.encoder_layers > 0 || !context.model.causal) return;
  // A prediction of a further token holds the positions of packed documents itself, in its attention.
  const bool positions_held = !context.training.packed.empty() && context.model.multi_token_layers > 0 && read == "labels";
  for (const BatchTensorShape& tensor : kTokenTensors) {
    if (read == tensor.name || read_too == tensor.name || (positions_held && std::string_view(tensor.name) == "position ids")) continue;
    builder.add({.name = tensor.name,
                 .kind = SlotKind::kBatch,
                 .size = {},
                 .shape = {builder.shape().tokens},
                 .dtype = tensor.dtype,
                 .module = ""});
  }
}

}  // namespace stepsim
