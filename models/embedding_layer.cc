// The start of the model: token rows of the vocabulary-parallel table, learned positions, embedding dropout.
#include "models/layer_template.h"
#include "models/template_builder.h"

namespace stepsim {

namespace {

constexpr Direction kForward = Direction::kForward, kBackward = Direction::kBackward;

struct Embedding {
  SlotIndex tokens = kNoSlot;
  Weight words, positions;
  SlotIndex mask = kNoSlot;
  SlotIndex output = kNoSlot, output_gradient = kNoSlot;
};

std::int64_t position_rows(const TemplateContext& context) {
  return context.model.positions_follow_sequence ? context.training.sequence : context.model.max_positions;
}

bool learned_positions(const TemplateContext& context) {
  return context.model.position == Position::kLearned && position_rows(context) > 0;
}

// Rows of the table, summed over the group. Rows of other ranks' parts are zeros: as many bytes move as without the group.
SlotIndex word_rows(TemplateBuilder& builder, Embedding& embedding) {
  const DeviceShape& shape = builder.shape();
  const SlotIndex words = builder.activation("word embeddings", {shape.tokens, shape.hidden});
  const Bytes rows = builder.size(words);
  builder.op(kForward,
             {.name = "embedding",
              .module = "",
              .work = MemoryBound{.read = builder.size(embedding.tokens) + rows, .written = rows, .kernel = MemoryKernel::kGather},
              .reads = {embedding.tokens, embedding.words.value},
              .writes = {words},
              .updates = {},
              .holds = {},
              .after = {}});
  const bool scattered = shape.sequence_parallel && !learned_positions(builder.context());  // Megatron-LM: reduce_scatter_embeddings
  if (!scattered) {
    builder.collective(kForward, {.name = "embedding all-reduce", .module = "", .input = words});
    return words;
  }
  const SlotIndex local = builder.activation("word embeddings, scattered", {shape.local_tokens, shape.hidden});
  builder.collective(
      kForward,
      {.name = "embedding reduce-scatter", .module = "", .kind = CollectiveKind::kReduceScatter, .input = words, .output = local});
  return local;
}

// Positions are added to whole sequences; under sequence parallelism each rank then keeps its part.
SlotIndex add_positions(TemplateBuilder& builder, Embedding& embedding, SlotIndex words) {
  const DeviceShape& shape = builder.shape();
  if (!learned_positions(builder.context())) return words;
  embedding.positions = builder.weight("position embedding weight", {position_rows(builder.context()), shape.hidden});
  const SlotIndex sum = builder.activation("embeddings", {shape.tokens, shape.hidden});
  const Bytes rows = builder.size(sum);
  builder.op(kForward, {.name = "position embedding",
                        .module = "",
                        .work = MemoryBound{.read = rows + Bytes(rows.value / shape.micro_batch), .written = rows},
                        .reads = {words, embedding.positions.value},
                        .writes = {sum},
                        .updates = {},
                        .holds = {},
                        .after = {}});
  if (!shape.sequence_parallel) return sum;
  const SlotIndex local = builder.activation("embeddings, own part", {shape.local_tokens, shape.hidden});
  builder.op(kForward, {.name = "embedding scatter",
                        .module = "",
                        .work = MemoryBound{.read = builder.size(local), .written = builder.size(local)},
                        .reads = {sum},
                        .writes = {local},
                        .updates = {},
                        .holds = {},
                        .after = {}});
  return local;
}

void dropout_forward(TemplateBuilder& builder, Embedding& embedding, SlotIndex rows) {
  const DeviceShape& shape = builder.shape();
  const TemplateContext& context = builder.context();
  embedding.output = rows;
  if (context.training.dropout <= 0) return;
  embedding.output = builder.activation("output", {shape.local_tokens, shape.hidden});
  KernelPass pass{
      .name = "embedding dropout", .module = "", .reads = {rows}, .writes = {embedding.output}, .updates = {}, .holds = {}, .random = true};
  if (context.framework.saves_dropout_masks) {
    embedding.mask = builder.add({.name = "embedding dropout mask",
                                  .kind = SlotKind::kForward,
                                  .size = {},
                                  .shape = {shape.local_tokens, shape.hidden},
                                  .dtype = DType::kUint8,
                                  .module = ""});
    pass.writes.push_back(embedding.mask);
  }
  builder.pass(kForward, std::move(pass));
}

SlotIndex dropout_backward(TemplateBuilder& builder, const Embedding& embedding) {
  const DeviceShape& shape = builder.shape();
  if (builder.context().training.dropout <= 0) return embedding.output_gradient;
  const SlotIndex gradient = builder.gradient("embedding gradient", {shape.local_tokens, shape.hidden});
  KernelPass pass{.name = "embedding dropout backward",
                  .module = "",
                  .reads = {embedding.output_gradient},
                  .writes = {gradient},
                  .updates = {},
                  .holds = {}};
  if (embedding.mask != kNoSlot) pass.reads.push_back(embedding.mask);
  builder.pass(kBackward, std::move(pass));
  return gradient;
}

SlotIndex whole_gradient(TemplateBuilder& builder, SlotIndex local) {
  const DeviceShape& shape = builder.shape();
  if (!shape.sequence_parallel) return local;
  const SlotIndex whole = builder.gathered("embedding gradient, gathered", {shape.tokens, shape.hidden});
  builder.collective(
      kBackward,
      {.name = "embedding gradient all-gather", .module = "", .kind = CollectiveKind::kAllGather, .input = local, .output = whole});
  return whole;
}

void tables_backward(TemplateBuilder& builder, const Embedding& embedding, SlotIndex gradient) {
  const DeviceShape& shape = builder.shape();
  const Bytes rows = builder.size(gradient);
  if (embedding.positions.present()) {
    const Bytes touched = size_of(shape.sequence * shape.hidden, shape.gradient);
    builder.op(kBackward, {.name = "position embedding gradient",
                           .module = "",
                           .work = MemoryBound{.read = rows + touched, .written = touched},
                           .reads = {gradient},
                           .writes = {},
                           .updates = {embedding.positions.gradient},
                           .holds = {},
                           .after = {}});
  }
  const Bytes touched = size_of(shape.tokens * shape.hidden, shape.gradient);  // a row of the main gradient for each token
  builder.op(
      kBackward,
      {.name = "embedding gradient",
       .module = "",
       .work = MemoryBound{.read = builder.size(embedding.tokens) + rows + touched, .written = touched, .kernel = MemoryKernel::kGather},
       .reads = {embedding.tokens, gradient},
       .writes = {},
       .updates = {embedding.words.gradient},
       .holds = {},
       .after = {}});
}

}  // namespace

LayerTemplate embedding_layer(const TemplateContext& context) {
  TemplateBuilder builder("embedding", context);
  const DeviceShape& shape = builder.shape();
  Embedding embedding;
  embedding.tokens = builder.add(
      {.name = "token ids", .kind = SlotKind::kBatch, .size = {}, .shape = {shape.tokens}, .dtype = DType::kInt64, .module = ""});
  embedding.words = builder.weight(kWordEmbedding, {shape.vocab, shape.hidden});
  dropout_forward(builder, embedding, add_positions(builder, embedding, word_rows(builder, embedding)));
  embedding.output_gradient = builder.input("output gradient", {shape.local_tokens, shape.hidden});
  tables_backward(builder, embedding, whole_gradient(builder, dropout_backward(builder, embedding)));
  return std::move(builder).build(
      {.input = embedding.tokens, .output = embedding.output, .output_gradient = embedding.output_gradient, .input_gradient = kNoSlot});
}

}  // namespace stepsim
