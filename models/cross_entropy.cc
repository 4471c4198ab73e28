#include "models/cross_entropy.h"

#include <algorithm>

#include "sim/input_error.h"

namespace stepsim {

namespace {

constexpr std::int64_t kMostChunks = 10000;

SlotIndex token_slot(TemplateBuilder& builder, const std::string& name, DType dtype) {
  return builder.add(
      {.name = name, .kind = SlotKind::kForward, .size = {}, .shape = {builder.shape().tokens}, .dtype = dtype, .module = ""});
}

SlotIndex vocabulary_slot(TemplateBuilder& builder, const std::string& name, SlotKind kind, std::int64_t tokens, DType dtype) {
  return builder.add({.name = name,
                      .kind = kind,
                      .size = {},
                      .shape = {tokens, builder.shape().vocab},
                      .dtype = dtype,
                      .role = Role::kLogits,
                      .module = ""});
}

// The dtype that the plain loss works in.
DType working_dtype(const TemplateBuilder& builder) {
  return builder.context().framework.logits_fp32 ? DType::kFp32 : builder.shape().compute;
}

bool in_place(const TemplateBuilder& builder) { return builder.context().framework.loss_in_place; }
bool is_eager(const TemplateBuilder& builder) { return builder.context().framework.eager_loss && !in_place(builder); }
bool has_copy(const TemplateBuilder& builder) { return working_dtype(builder) != builder.shape().compute; }

void all_reduce(TemplateBuilder& builder, const std::string& name, SlotIndex slot) {
  builder.collective(kForwardOp, {.name = name, .module = "", .input = slot});
}

// Which rank holds the target's logit, and where: Megatron-LM's target_mask and masked_target_1d.
void mask_targets(TemplateBuilder& builder, CrossEntropy& loss, SlotIndex labels) {
  loss.target_mask = token_slot(builder, "target mask", DType::kUint8);
  loss.masked_target = token_slot(builder, "masked target", DType::kInt64);
  builder.pass(kForwardOp, {.name = "target mask",
                            .module = "",
                            .reads = {labels},
                            .writes = {loss.target_mask, loss.masked_target},
                            .updates = {},
                            .holds = {}});
}

CrossEntropy plain_forward(TemplateBuilder& builder, SlotIndex logits, SlotIndex labels) {
  const std::int64_t tokens = builder.shape().tokens;
  SlotIndex work = logits;
  if (has_copy(builder)) {
    work = vocabulary_slot(builder, in_place(builder) ? "softmax" : "logits, fp32", SlotKind::kForward, tokens, working_dtype(builder));
    builder.pass(kForwardOp, {.name = "logits to fp32", .module = "", .reads = {logits}, .writes = {work}, .updates = {}, .holds = {}});
  }
  const SlotIndex maximum = token_slot(builder, "logits maximum", DType::kFp32);
  builder.pass(kForwardOp,
               {.name = "logits maximum", .module = "", .reads = {work}, .writes = {maximum}, .updates = {}, .holds = {logits}});
  all_reduce(builder, "logits maximum all-reduce", maximum);
  CrossEntropy loss;
  mask_targets(builder, loss, labels);

  const SlotIndex predicted = token_slot(builder, "predicted logit", DType::kFp32);
  const SlotIndex denominator = token_slot(builder, "softmax denominator", DType::kFp32);
  KernelPass numerator{.name = "softmax numerator",
                       .module = "",
                       .reads = {maximum, loss.target_mask, loss.masked_target},
                       .writes = {predicted, denominator},
                       .updates = {},
                       .holds = {logits}};
  if (in_place(builder)) {
    // Three kernels: subtract, exponential, sum: beyond the first one's read and write, two reads and a write.
    loss.saved = work;
    numerator.updates = {work};
    numerator.kernel = MemoryKernel::kUnfused;
    numerator.further_reads = builder.size(work) * 2;
    numerator.further_writes = builder.size(work);
  } else {
    loss.saved = vocabulary_slot(builder, "softmax", SlotKind::kForward, tokens, working_dtype(builder));
    numerator.reads.push_back(work);
    numerator.writes.push_back(loss.saved);
  }
  builder.pass(kForwardOp, std::move(numerator));
  all_reduce(builder, "predicted logit all-reduce", predicted);
  all_reduce(builder, "softmax denominator all-reduce", denominator);
  loss.loss = token_slot(builder, "loss", DType::kFp32);
  builder.pass(kForwardOp, {.name = "softmax",
                            .module = "",
                            .reads = {predicted, denominator},
                            .writes = {loss.loss},
                            .updates = {loss.saved},
                            .holds = {logits}});
  return loss;
}

// F.cross_entropy of logits.float(): log_softmax, of which its output is saved, and nll_loss, which reads a value of each row.
CrossEntropy eager_forward(TemplateBuilder& builder, SlotIndex logits, SlotIndex labels) {
  const std::int64_t tokens = builder.shape().tokens;
  SlotIndex work = logits;
  if (has_copy(builder)) {
    work = vocabulary_slot(builder, "logits, fp32", SlotKind::kForward, tokens, working_dtype(builder));
    builder.pass(kForwardOp, {.name = "logits to fp32", .module = "", .reads = {logits}, .writes = {work}, .updates = {}, .holds = {}});
  }
  CrossEntropy loss;
  loss.eager = true;
  loss.labels = labels;
  loss.saved = vocabulary_slot(builder, "softmax", SlotKind::kForward, tokens, working_dtype(builder));
  builder.pass(kForwardOp, {.name = "softmax",
                            .module = "",
                            .reads = {work},
                            .writes = {loss.saved},
                            .updates = {},
                            .holds = {logits},
                            .kernel = MemoryKernel::kSoftmax});
  loss.loss = token_slot(builder, "loss", DType::kFp32);
  builder.pass(kForwardOp, {.name = "negative log likelihood",
                            .module = "",
                            .reads = {labels},
                            .writes = {loss.loss},
                            .updates = {},
                            .holds = {logits, loss.saved},
                            .kernel = MemoryKernel::kGather});
  return loss;
}

struct Statistics {
  SlotIndex own = kNoSlot, all = kNoSlot;
};

// Maximum, sum and target logit per token, of this rank's part of the vocabulary and gathered from all.
Statistics statistics_forward(TemplateBuilder& builder, const std::string& suffix, std::int64_t tokens, SlotIndex logits,
                              SlotIndex labels) {
  const auto statistics_slot = [&](const std::string& name, std::int64_t ranks) {
    return builder.add(
        {.name = name + suffix, .kind = SlotKind::kForward, .size = {}, .shape = {ranks, 3, tokens}, .dtype = DType::kFp32, .module = ""});
  };
  const SlotIndex own = statistics_slot("softmax statistics", 1);
  builder.pass(kForwardOp, {.name = "softmax statistics",
                            .module = "",
                            .reads = {logits, labels},
                            .writes = {own},
                            .updates = {},
                            .holds = {},
                            .kernel = MemoryKernel::kSoftmax});
  if (builder.shape().ranks == 1) return {.own = own, .all = own};
  const SlotIndex all = statistics_slot("softmax statistics, gathered", builder.shape().ranks);
  builder.collective(
      kForwardOp, {.name = "softmax statistics all-gather", .module = "", .kind = CollectiveKind::kAllGather, .input = own, .output = all});
  return {.own = own, .all = all};
}

// The model's output in fp32, where the framework casts it whatever the loss is (InternEvo core/naive_amp.py output_to_fp32).
SlotIndex cast_output(TemplateBuilder& builder, SlotIndex logits) {
  if (!builder.context().framework.casts_output || builder.shape().compute == DType::kFp32) return logits;
  const SlotIndex wide = vocabulary_slot(builder, "logits, fp32", SlotKind::kForward, builder.shape().tokens, DType::kFp32);
  builder.pass(kForwardOp, {.name = "logits to fp32", .module = "", .reads = {logits}, .writes = {wide}, .updates = {}, .holds = {}});
  return wide;
}

CrossEntropy fused_forward(TemplateBuilder& builder, SlotIndex output, SlotIndex labels) {
  const DeviceShape& shape = builder.shape();
  const SlotIndex logits = cast_output(builder, output);
  CrossEntropy loss;
  const Statistics statistics = statistics_forward(builder, "", shape.tokens, logits, labels);
  if (builder.context().framework.fused_loss_keeps_logits) {
    loss.statistics = token_slot(builder, "logits log-sum-exp", DType::kFp32);
    loss.labels = labels;
    loss.saved = logits;
    loss.loss = token_slot(builder, "loss", DType::kFp32);
    builder.pass(kForwardOp, {.name = "cross entropy",
                              .module = "",
                              .reads = {labels, statistics.all},
                              .writes = {loss.loss, loss.statistics},
                              .updates = {},
                              .holds = {logits},
                              .kernel = MemoryKernel::kSoftmax});
    return loss;
  }
  loss.statistics = statistics.own;
  loss.saved = vocabulary_slot(builder, "logits gradient", SlotKind::kForward, shape.tokens, builder.slot(logits).dtype);
  loss.loss = token_slot(builder, "loss", DType::kFp32);
  builder.pass(kForwardOp, {.name = "cross entropy",
                            .module = "",
                            .reads = {logits, labels, statistics.all},
                            .writes = {loss.saved, loss.loss},
                            .updates = {},
                            .holds = {},
                            .kernel = MemoryKernel::kSoftmax});
  return loss;
}

// The part of the labels or of the head's input that a chunk moves.
Bytes share(Bytes whole, std::int64_t part, std::int64_t tokens) { return Bytes(whole.value / tokens * part); }

// One chunk: logits, statistics, gradient in place, then both products of the head's backward.
void chunk_forward(TemplateBuilder& builder, const Linear& head, ChunkedHead& chunked, std::int64_t index, std::int64_t tokens,
                   SlotIndex input, SlotIndex labels) {
  const DeviceShape& shape = builder.shape();
  std::string suffix = " ";
  suffix += std::to_string(index);
  const SlotIndex logits = vocabulary_slot(builder, "logits chunk" + suffix, SlotKind::kForward, tokens, shape.compute);
  const Gemm product{.m = tokens, .n = shape.vocab, .k = shape.hidden, .dtype = shape.compute, .transpose_a = true};
  builder.gemm(kForwardOp, head.name, "", product, {input, head.weight.value}, logits);
  const SlotIndex label_view = builder.add({.name = "labels chunk" + suffix,
                                            .kind = SlotKind::kBatch,
                                            .size = {},
                                            .shape = {tokens},
                                            .dtype = DType::kInt64,
                                            .module = "",
                                            .view_of = labels});
  const SlotIndex statistics = statistics_forward(builder, suffix, tokens, logits, label_view).all;
  const bool first = index == 0;
  TemplateOp gradient{.name = "cross entropy",
                      .module = "",
                      .work = MemoryBound{.read = builder.size(logits) + builder.size(label_view) + builder.size(statistics),
                                          .written = builder.size(logits) + share(builder.size(chunked.loss), tokens, shape.tokens),
                                          .kernel = MemoryKernel::kSoftmax},
                      .reads = {label_view, statistics},
                      .writes = {},
                      .updates = {logits},
                      .holds = {},
                      .after = {}};
  (first ? gradient.writes : gradient.updates).push_back(chunked.loss);
  builder.op(kForwardOp, std::move(gradient));
  TemplateOp input_gradient{.name = head.name + " input gradient",
                            .module = "",
                            .work = Gemm{.m = tokens, .n = shape.hidden, .k = shape.vocab, .dtype = shape.compute},
                            .reads = {logits, head.weight.value},
                            .writes = {},
                            .updates = {},
                            .holds = {},
                            .after = {}};
  (first ? input_gradient.writes : input_gradient.updates).push_back(chunked.input_gradient);
  builder.op(kForwardOp, std::move(input_gradient));
  const Gemm weight{.m = shape.vocab,
                    .n = shape.hidden,
                    .k = tokens,
                    .dtype = shape.compute,
                    .transpose_b = true,
                    .accumulate_fp32 = shape.gradient == DType::kFp32,
                    .accumulate = builder.adds_to_gradients()};
  builder.gemm(kForwardOp, head.name + " weight gradient", "", weight, {logits, input}, head.weight.gradient);
}

// Of F.cross_entropy: nll_loss and log_softmax are functions of their own, each with an fp32 gradient of all logits.
SlotIndex eager_backward(TemplateBuilder& builder, const CrossEntropy& loss) {
  const std::int64_t tokens = builder.shape().tokens;
  const SlotIndex outer = vocabulary_slot(builder, "log-softmax gradient", SlotKind::kGradient, tokens, working_dtype(builder));
  builder.pass(kBackwardOp, {.name = "negative log likelihood backward",
                             .module = "",
                             .reads = loss.eager ? std::vector<SlotIndex>{loss.labels} : std::vector{loss.target_mask, loss.masked_target},
                             .writes = {outer},
                             .updates = {},
                             .holds = {}});
  const SlotIndex gradient = vocabulary_slot(builder, "softmax gradient", SlotKind::kGradient, tokens, working_dtype(builder));
  builder.pass(kBackwardOp, {.name = "cross entropy backward",
                             .module = "",
                             .reads = {outer, loss.saved},
                             .writes = {gradient},
                             .updates = {},
                             .holds = {},
                             .kernel = MemoryKernel::kSoftmax});
  return gradient;
}

// In one function: in place, or beside what is saved.
SlotIndex plain_backward(TemplateBuilder& builder, const CrossEntropy& loss) {
  SlotIndex gradient = loss.saved;
  KernelPass pass{.name = "cross entropy backward",
                  .module = "",
                  .reads = {loss.target_mask, loss.masked_target},
                  .writes = {},
                  .updates = {},
                  .holds = {}};
  if (in_place(builder)) {
    pass.updates = {gradient};
  } else {
    gradient = vocabulary_slot(builder, "softmax gradient", SlotKind::kGradient, builder.shape().tokens, working_dtype(builder));
    pass.reads.push_back(loss.saved);
    pass.writes = {gradient};
  }
  builder.pass(kBackwardOp, std::move(pass));
  return gradient;
}

}  // namespace

CrossEntropy cross_entropy_forward(TemplateBuilder& builder, SlotIndex logits, SlotIndex labels) {
  if (builder.context().training.loss == LossKind::kFused) return fused_forward(builder, logits, labels);
  const bool whole_rows = builder.shape().ranks == 1;
  return whole_rows && is_eager(builder) ? eager_forward(builder, logits, labels) : plain_forward(builder, logits, labels);
}

// Of the gradient that a fused loss made in place of what it saved.
static SlotIndex narrow_gradient(TemplateBuilder& builder, SlotIndex gradient) {
  const DeviceShape& shape = builder.shape();
  if (builder.slot(gradient).dtype == shape.compute) return gradient;
  const SlotIndex narrow = vocabulary_slot(builder, "output gradient", SlotKind::kGradient, shape.tokens, shape.compute);
  builder.pass(kBackwardOp,
               {.name = "output gradient cast", .module = "", .reads = {gradient}, .writes = {narrow}, .updates = {}, .holds = {}});
  return narrow;
}

SlotIndex cross_entropy_backward(TemplateBuilder& builder, const CrossEntropy& loss) {
  const DeviceShape& shape = builder.shape();
  if (loss.labels != kNoSlot && !loss.eager) {  // fused: the gradient overwrites the logits
    builder.pass(kBackwardOp, {.name = "cross entropy backward",
                               .module = "",
                               .reads = {loss.statistics, loss.labels},
                               .writes = {},
                               .updates = {loss.saved},
                               .holds = {},
                               .kernel = MemoryKernel::kSoftmax});
    return narrow_gradient(builder, loss.saved);
  }
  if (loss.target_mask == kNoSlot && !loss.eager) {  // fused: the gradient is there, scaled by that of the loss
    builder.pass(
        kBackwardOp,
        {.name = "cross entropy backward", .module = "", .reads = {}, .writes = {}, .updates = {loss.saved}, .holds = {loss.statistics}});
    return narrow_gradient(builder, loss.saved);
  }
  const bool eager = is_eager(builder);
  const SlotIndex gradient = eager ? eager_backward(builder, loss) : plain_backward(builder, loss);
  if (!has_copy(builder)) return gradient;
  const SlotIndex cast = vocabulary_slot(builder, "logits gradient", SlotKind::kGradient, shape.tokens, shape.compute);
  builder.pass(kBackwardOp,
               {.name = "logits gradient cast",
                .module = "",
                .reads = {gradient},
                .writes = {cast},
                .updates = {},
                // Saved tensors live until the function's backward returns: the cast is a function of its own where it is eager.
                .holds = eager ? std::vector<SlotIndex>{} : std::vector<SlotIndex>{loss.saved}});
  return cast;
}

ChunkedHead chunked_head_forward(TemplateBuilder& builder, const Linear& head, SlotIndex input, SlotIndex labels) {
  const DeviceShape& shape = builder.shape();
  const std::int64_t chunks = builder.context().training.loss_chunks;
  const std::int64_t most = std::min(shape.tokens, kMostChunks);
  if (chunks < 1 || chunks > most) {
    throw InputError({"--loss"}, "found chunked=" + std::to_string(chunks) + ", wanted chunked=1 to " + std::to_string(most));
  }
  ChunkedHead chunked;
  chunked.loss = token_slot(builder, "loss", DType::kFp32);
  chunked.input_gradient = builder.add({.name = "head input gradient",
                                        .kind = SlotKind::kForward,
                                        .size = {},
                                        .shape = {shape.tokens, shape.hidden},
                                        .dtype = shape.compute,
                                        .role = Role::kActivationGradients,
                                        .module = ""});
  for (std::int64_t index = 0; index < chunks; ++index) {
    const std::int64_t tokens = shape.tokens / chunks + (index < shape.tokens % chunks ? 1 : 0);
    chunk_forward(builder, head, chunked, index, tokens, input, labels);
  }
  return chunked;
}

}  // namespace stepsim
