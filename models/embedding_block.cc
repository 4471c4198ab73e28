#include "models/embedding_block.h"

#include <utility>

namespace stepsim {

namespace {

std::int64_t position_rows(const TemplateContext& context) {
  return context.model.positions_follow_sequence ? context.training.sequence : context.model.max_positions;
}

bool learned_positions(const TemplateContext& context) {
  return context.model.position == Position::kLearned && position_rows(context) > 0;
}

bool token_types(const TemplateContext& context) { return context.model.token_types > 0; }

// Rows of a table are added to the whole sequences.
SlotIndex added_rows(TemplateBuilder& builder, const std::string& name, const std::string& sum_name, SlotIndex rows, const Weight& table,
                     SlotIndex ids, Bytes table_rows) {
  const DeviceShape& shape = builder.shape();
  const SlotIndex sum = builder.activation(sum_name, {shape.tokens, shape.hidden});
  TemplateOp op{.name = name,
                .module = "",
                .work = MemoryBound{.read = builder.size(sum) + table_rows, .written = builder.size(sum)},
                .reads = {rows, table.value},
                .writes = {sum},
                .updates = {},
                .holds = {},
                .after = {}};
  if (ids != kNoSlot) op.reads.push_back(ids);
  builder.op(kForwardOp, std::move(op));
  return sum;
}

Weight table(TemplateBuilder& builder, const EmbeddingParts& parts, const std::string& name, std::int64_t rows) {
  const std::vector<std::int64_t> table_shape = {rows, builder.shape().hidden};
  return parts.owns_tables ? builder.weight(name, table_shape) : builder.shared_weight(name, table_shape);
}

// Rows of the table, summed over the group. Rows of other ranks' parts are zeros: as many bytes move as without the group.
SlotIndex word_rows(TemplateBuilder& builder, EmbeddingBlock& block, bool scattered) {
  const DeviceShape& shape = builder.shape();
  const SlotIndex words = builder.activation("word embeddings", {shape.tokens, shape.hidden});
  const Bytes rows = builder.size(words);
  builder.op(kForwardOp, {.name = "embedding",
                          .module = "",
                          .work = MemoryBound{.read = builder.size(block.tokens) + rows, .written = rows, .kernel = MemoryKernel::kGather},
                          .reads = {block.tokens, block.words.value},
                          .writes = {words},
                          .updates = {},
                          .holds = {},
                          .after = {}});
  if (!scattered) {
    builder.collective(kForwardOp, {.name = "embedding all-reduce", .module = "", .input = words});
    return words;
  }
  const SlotIndex local = builder.activation("word embeddings, scattered", {shape.local_tokens, shape.hidden});
  builder.collective(
      kForwardOp,
      {.name = "embedding reduce-scatter", .module = "", .kind = CollectiveKind::kReduceScatter, .input = words, .output = local});
  return local;
}

// Positions and token types are added to whole sequences; under sequence parallelism each rank then keeps its part.
SlotIndex add_tables(TemplateBuilder& builder, EmbeddingBlock& block, const EmbeddingParts& parts, SlotIndex words) {
  const DeviceShape& shape = builder.shape();
  const TemplateContext& context = builder.context();
  SlotIndex sum = words;
  if (learned_positions(context)) {
    block.positions = table(builder, parts, "position embedding weight", position_rows(context));
    sum = added_rows(builder, "position embedding", "embeddings", sum, block.positions, kNoSlot,
                     Bytes(builder.size(words).value / shape.micro_batch));
  }
  if (token_types(context)) {
    block.token_types = builder.add(
        {.name = "token types", .kind = SlotKind::kBatch, .size = {}, .shape = {shape.tokens}, .dtype = DType::kInt64, .module = ""});
    block.types = table(builder, parts, "token type embedding weight", context.model.token_types);
    sum = added_rows(builder, "token type embedding", "embeddings with token types", sum, block.types, block.token_types,
                     builder.size(words));
  }
  if (!shape.sequence_parallel) return sum;
  const SlotIndex local = builder.activation("embeddings, own part", {shape.local_tokens, shape.hidden});
  builder.op(kForwardOp, {.name = "embedding scatter",
                          .module = "",
                          .work = MemoryBound{.read = builder.size(local), .written = builder.size(local)},
                          .reads = {sum},
                          .writes = {local},
                          .updates = {},
                          .holds = {},
                          .after = {}});
  return local;
}

void dropout_forward(TemplateBuilder& builder, EmbeddingBlock& block, const char* output, SlotIndex rows) {
  const DeviceShape& shape = builder.shape();
  const TemplateContext& context = builder.context();
  block.output = rows;
  if (context.training.dropout <= 0) return;
  block.output = builder.activation(output, {shape.local_tokens, shape.hidden});
  KernelPass pass{
      .name = "embedding dropout", .module = "", .reads = {rows}, .writes = {block.output}, .updates = {}, .holds = {}, .random = true};
  if (context.framework.saves_dropout_masks) {
    block.mask = builder.add({.name = "embedding dropout mask",
                              .kind = SlotKind::kForward,
                              .size = {},
                              .shape = {shape.local_tokens, shape.hidden},
                              .dtype = DType::kUint8,
                              .module = ""});
    pass.writes.push_back(block.mask);
  }
  builder.pass(kForwardOp, std::move(pass));
}

SlotIndex dropout_backward(TemplateBuilder& builder, const EmbeddingBlock& block, SlotIndex output_gradient) {
  const DeviceShape& shape = builder.shape();
  if (builder.context().training.dropout <= 0) return output_gradient;
  const SlotIndex gradient = builder.gradient("embedding gradient", {shape.local_tokens, shape.hidden});
  KernelPass pass{
      .name = "embedding dropout backward", .module = "", .reads = {output_gradient}, .writes = {gradient}, .updates = {}, .holds = {}};
  if (block.mask != kNoSlot) pass.reads.push_back(block.mask);
  builder.pass(kBackwardOp, std::move(pass));
  return gradient;
}

SlotIndex whole_gradient(TemplateBuilder& builder, SlotIndex local) {
  const DeviceShape& shape = builder.shape();
  if (!shape.sequence_parallel) return local;
  const SlotIndex whole = builder.gathered("embedding gradient, gathered", {shape.tokens, shape.hidden});
  builder.collective(
      kBackwardOp,
      {.name = "embedding gradient all-gather", .module = "", .kind = CollectiveKind::kAllGather, .input = local, .output = whole});
  return whole;
}

// A row of the main gradient for each of `rows` rows.
void table_backward(TemplateBuilder& builder, const std::string& name, const Weight& table, std::vector<SlotIndex> reads, std::int64_t rows,
                    MemoryKernel kernel) {
  if (!table.present()) return;
  const DeviceShape& shape = builder.shape();
  const Bytes touched = size_of(rows * shape.hidden, shape.gradient);
  MemoryBound work{.read = touched, .written = touched, .kernel = kernel};
  for (const SlotIndex slot : reads) work.read += builder.size(slot);
  builder.op(kBackwardOp, {.name = name,
                           .module = "",
                           .work = work,
                           .reads = std::move(reads),
                           .writes = {},
                           .updates = {table.gradient},
                           .holds = {},
                           .after = {}});
}

}  // namespace

EmbeddingBlock embedding_forward(TemplateBuilder& builder, const EmbeddingParts& parts) {
  const DeviceShape& shape = builder.shape();
  const TemplateContext& context = builder.context();
  EmbeddingBlock block;
  block.tokens = builder.add(
      {.name = parts.tokens, .kind = SlotKind::kBatch, .size = {}, .shape = {shape.tokens}, .dtype = DType::kInt64, .module = ""});
  block.words = table(builder, parts, kWordEmbedding, shape.vocab);
  const bool tables = !parts.words_alone && (learned_positions(context) || token_types(context));
  const bool scattered = shape.sequence_parallel && !tables;  // Megatron-LM: reduce_scatter_embeddings
  const SlotIndex words = word_rows(builder, block, scattered);
  const char* const output = parts.words_alone ? "embedding output" : "output";  // multi-token prediction: its layer has the other name
  dropout_forward(builder, block, output, tables ? add_tables(builder, block, parts, words) : words);
  return block;
}

void embedding_backward(TemplateBuilder& builder, const EmbeddingBlock& block, SlotIndex output_gradient) {
  const DeviceShape& shape = builder.shape();
  const SlotIndex gradient = whole_gradient(builder, dropout_backward(builder, block, output_gradient));
  table_backward(builder, "token type embedding gradient", block.types, {gradient}, builder.context().model.token_types,
                 MemoryKernel::kFusedElementwise);
  table_backward(builder, "position embedding gradient", block.positions, {gradient}, shape.tokens / shape.micro_batch,
                 MemoryKernel::kFusedElementwise);
  table_backward(builder, "embedding gradient", block.words, {block.tokens, gradient}, shape.tokens, MemoryKernel::kGather);
}

}  // namespace stepsim
