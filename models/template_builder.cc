#include "models/template_builder.h"

#include <set>
#include <utility>

#include "sim/check.h"
#include "sim/input_error.h"

namespace stepsim {

namespace {

// 64 PiB: no device holds it, and the sums over one layer's operands stay far below 2^63.
constexpr std::int64_t kLargestTensor = std::int64_t{1} << 56;

std::int64_t product(const std::string& model, const std::string& tensor, const std::vector<std::int64_t>& factors) {
  std::int64_t result = 1;
  for (const std::int64_t factor : factors) {
    STEPSIM_CHECK(factor > 0);
    if (factor > kLargestTensor / result) {
      throw InputError({model}, "found dimensions that make \"" + tensor + "\" larger than 64 PiB, wanted a tensor that a device can hold");
    }
    result *= factor;
  }
  return result;
}

DType gradient_dtype(const TemplateContext& context, DType compute) {
  if (context.training.gradient_dtype) return *context.training.gradient_dtype;
  return context.framework.gradient_bits == 32 ? DType::kFp32 : compute;
}

std::size_t at(SlotIndex slot) { return static_cast<std::size_t>(slot); }

bool given(SlotKind kind) {  // there before the layer runs
  return kind == SlotKind::kInput || kind == SlotKind::kWeight || kind == SlotKind::kWeightGradient || kind == SlotKind::kBatch;
}

// Invariants 1 and 2 of layer_template.h: written once, and before it is used.
void check_order(const std::vector<Slot>& slots, const std::vector<TemplateOp>& forward, const std::vector<TemplateOp>& backward) {
  std::vector<bool> written(slots.size(), false);
  for (std::size_t slot = 0; slot < slots.size(); ++slot) written[slot] = slots[slot].view_of == kNoSlot && given(slots[slot].kind);
  for (const auto* ops : {&forward, &backward}) {
    for (const TemplateOp& op : *ops) {
      for (const auto* used : {&op.reads, &op.updates, &op.holds}) {
        for (const SlotIndex slot : *used) STEPSIM_CHECK(written[at(root_of(slots, slot))]);
      }
      for (const SlotIndex slot : op.writes) {
        STEPSIM_CHECK(slots[at(slot)].view_of == kNoSlot);
        STEPSIM_CHECK(!written[at(slot)]);
        written[at(slot)] = true;
      }
    }
  }
  for (std::size_t slot = 0; slot < slots.size(); ++slot) STEPSIM_CHECK(slots[slot].view_of != kNoSlot || written[slot]);
  std::set<SlotIndex> forward_workspace;
  for (const TemplateOp& op : forward) {
    for (const SlotIndex slot : op.writes) {
      if (slots[at(slot)].kind == SlotKind::kWorkspace) forward_workspace.insert(slot);
    }
  }
  for (const TemplateOp& op : backward) {
    for (const auto* used : {&op.reads, &op.updates, &op.holds}) {
      for (const SlotIndex slot : *used) STEPSIM_CHECK(!forward_workspace.contains(root_of(slots, slot)));
    }
  }
}

}  // namespace

DType compute_dtype(Precision precision) {
  switch (precision) {
    case Precision::kBf16:
      return DType::kBf16;
    case Precision::kFp16:
      return DType::kFp16;
    case Precision::kFp32:
      return DType::kFp32;
  }
  check_failed("precision", __FILE__, __LINE__);
}

SlotIndex root_of(const std::vector<Slot>& slots, SlotIndex slot) {
  while (slots[at(slot)].view_of != kNoSlot) slot = slots[at(slot)].view_of;
  return slot;
}

DeviceShape device_shape(const TemplateContext& context) {
  const ModelSpec& model = context.model;
  const std::int64_t ranks = context.parallel.tensor;
  STEPSIM_CHECK(ranks >= 1);
  STEPSIM_CHECK(model.heads % ranks == 0);
  STEPSIM_CHECK(model.ffn_hidden % ranks == 0);
  DeviceShape shape;
  shape.ranks = context.parallel.tensor;
  shape.sequence_parallel = context.parallel.sequence_parallel && ranks > 1;
  shape.sequence = context.training.sequence;
  shape.micro_batch = context.training.micro_batch;
  shape.tokens = product(model.name, "tokens", {shape.sequence, shape.micro_batch});
  STEPSIM_CHECK(!shape.sequence_parallel || shape.sequence % ranks == 0);
  shape.local_tokens = shape.sequence_parallel ? shape.tokens / ranks : shape.tokens;
  shape.hidden = model.hidden;
  shape.head_dim = model.head_dim;
  shape.query_heads = model.heads / ranks;
  shape.kv_heads = model.kv_heads > ranks ? model.kv_heads / ranks : 1;
  shape.ffn = model.ffn_hidden / ranks;
  product(model.name, "qkv weight", {3, model.heads, model.head_dim, model.hidden});
  product(model.name, "fc1 weight", {2, model.ffn_hidden, model.hidden});
  product(model.name, "vocabulary", {model.vocab, model.hidden});
  shape.vocab = padded_vocab(model.vocab, context.framework.vocab_multiple, context.parallel.tensor) / ranks;
  shape.compute = compute_dtype(context.training.precision);
  shape.gradient = gradient_dtype(context, shape.compute);
  return shape;
}

TemplateBuilder::TemplateBuilder(std::string name, const TemplateContext& context)
    : name_(std::move(name)), context_(context), shape_(device_shape(context)) {}

SlotIndex TemplateBuilder::add(Slot slot) {
  const std::int64_t elements = product(context_.model.name, slot.name, slot.shape);
  product(context_.model.name, slot.name, {elements, bits_of(slot.dtype)});  // bits, so that bytes are safe too
  slot.size = size_of(elements, slot.dtype);
  if (slot.kind == SlotKind::kWeight) parameters_ += elements;
  slots_.push_back(std::move(slot));
  return static_cast<SlotIndex>(slots_.size()) - 1;
}

SlotIndex TemplateBuilder::input(const std::string& name, std::vector<std::int64_t> shape) {
  return add({.name = name, .kind = SlotKind::kInput, .size = {}, .shape = std::move(shape), .dtype = shape_.compute, .module = ""});
}

Weight TemplateBuilder::shared_weight(const std::string& name, std::vector<std::int64_t> shape) {
  const std::int64_t parameters = parameters_;
  const Weight shared = weight(name, std::move(shape));
  parameters_ = parameters;
  return shared;
}

SlotIndex TemplateBuilder::activation(const std::string& name, std::vector<std::int64_t> shape, const std::string& module) {
  return add({.name = name, .kind = SlotKind::kForward, .size = {}, .shape = std::move(shape), .dtype = shape_.compute, .module = module});
}

SlotIndex TemplateBuilder::gradient(const std::string& name, std::vector<std::int64_t> shape) {
  return add({.name = name,
              .kind = SlotKind::kGradient,
              .size = {},
              .shape = std::move(shape),
              .dtype = shape_.compute,
              .role = Role::kActivationGradients,
              .module = ""});
}

SlotIndex TemplateBuilder::view(const std::string& name, SlotIndex of, std::vector<std::int64_t> shape) {
  const Slot& whole = slots_[at(of)];
  return add({.name = name,
              .kind = whole.kind,
              .size = {},
              .shape = std::move(shape),
              .dtype = whole.dtype,
              .role = whole.role,
              .module = whole.module,
              .view_of = of});
}

SlotIndex TemplateBuilder::gathered(const std::string& name, std::vector<std::int64_t> shape) {
  return add({.name = name,
              .kind = SlotKind::kWorkspace,
              .size = {},
              .shape = std::move(shape),
              .dtype = shape_.compute,
              .role = Role::kCommunication,
              .module = ""});
}

Weight TemplateBuilder::weight(const std::string& name, std::vector<std::int64_t> shape) {
  Weight weight;
  weight.value = add(
      {.name = name, .kind = SlotKind::kWeight, .size = {}, .shape = shape, .dtype = shape_.compute, .role = Role::kWeights, .module = ""});
  weight.gradient = add({.name = name + " gradient",
                         .kind = SlotKind::kWeightGradient,
                         .size = {},
                         .shape = std::move(shape),
                         .dtype = shape_.gradient,
                         .role = Role::kGradients,
                         .module = ""});
  return weight;
}

void TemplateBuilder::op(Direction direction, TemplateOp op) {
  std::vector<TemplateOp>& ops = direction == Direction::kForward ? forward_ : backward_;
  if (op.stream == OpStream::kTensor) {
    // A collective is launched from the compute stream: it waits for what was issued there before it (torch.distributed records an event).
    for (std::size_t before = ops.size(); before-- > 0;) {
      if (ops[before].stream != OpStream::kCompute) continue;
      op.after.push_back(static_cast<std::int32_t>(before));
      break;
    }
  }
  ops.push_back(std::move(op));
}

void TemplateBuilder::pass(Direction direction, KernelPass pass) {
  MemoryBound work{.read = pass.further_reads, .written = pass.further_writes, .kernel = pass.kernel};
  for (const SlotIndex slot : pass.reads) work.read += size(slot);
  for (const SlotIndex slot : pass.writes) work.written += size(slot);
  for (const SlotIndex slot : pass.updates) {
    work.read += size(slot);
    work.written += size(slot);
  }
  op(direction, {.name = std::move(pass.name),
                 .module = std::move(pass.module),
                 .work = work,
                 .reads = std::move(pass.reads),
                 .writes = std::move(pass.writes),
                 .updates = std::move(pass.updates),
                 .holds = std::move(pass.holds),
                 .random = pass.random,
                 .after = {}});
}

void TemplateBuilder::gemm(Direction direction, const std::string& name, const std::string& module, const Gemm& work,
                           std::vector<SlotIndex> reads, SlotIndex written) {
  const bool accumulates = slots_[at(written)].kind == SlotKind::kWeightGradient;
  TemplateOp gemm{
      .name = name, .module = module, .work = work, .reads = std::move(reads), .writes = {}, .updates = {}, .holds = {}, .after = {}};
  (accumulates ? gemm.updates : gemm.writes).push_back(written);
  op(direction, std::move(gemm));
}

void TemplateBuilder::collective(Direction direction, const CollectiveCall& call) {
  if (shape_.ranks == 1) return;
  const bool in_place = call.kind == CollectiveKind::kAllReduce;
  STEPSIM_CHECK(in_place == (call.output == kNoSlot));
  const SlotIndex whole = call.kind == CollectiveKind::kAllGather ? call.output : call.input;
  TemplateOp collective{.name = call.name,
                        .module = call.module,
                        .work = Collective{.kind = call.kind, .message = size(whole), .ranks = shape_.ranks},
                        .group = Group::kTensor,
                        .stream = call.beside_compute ? OpStream::kTensor : OpStream::kCompute,
                        .reads = {},
                        .writes = {},
                        .updates = {},
                        .holds = {},
                        .after = {}};
  if (in_place) {
    collective.updates = {call.input};
  } else {
    collective.reads = {call.input};
    collective.writes = {call.output};
  }
  op(direction, std::move(collective));
}

LayerTemplate TemplateBuilder::build(const Ends& ends) && {
  check_order(slots_, forward_, backward_);
  std::set<std::string> names;
  for (const Slot& slot : slots_) STEPSIM_CHECK(names.insert(slot.name).second);
  LayerTemplate layer{.name = name_,
                      .slots = std::move(slots_),
                      .forward = std::move(forward_),
                      .backward = std::move(backward_),
                      .input = ends.input,
                      .output = ends.output,
                      .output_gradient = ends.output_gradient,
                      .input_gradient = ends.input_gradient,
                      .parameters = parameters_};
  const std::vector<SlotIndex> kept = saved_slots(layer);
  const std::set<SlotIndex> saved(kept.begin(), kept.end());
  for (std::size_t index = 0; index < layer.slots.size(); ++index) {
    Slot& slot = layer.slots[index];
    const SlotIndex root = root_of(layer.slots, static_cast<SlotIndex>(index));
    const bool transient = slot.kind == SlotKind::kForward && root != layer.output && !saved.contains(root);
    if (transient && slot.role == Role::kActivations) slot.role = Role::kWorkspace;
  }
  return layer;
}

}  // namespace stepsim
