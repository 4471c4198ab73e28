#include "models/template_builder.h"

#include <algorithm>
#include <set>
#include <utility>

#include "models/low_precision.h"
#include "models/needed_ops.h"
#include "models/stored_format.h"
#include "models/tensor_overlap.h"
#include "models/trainable.h"
#include "models/weight_gradient_ops.h"
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

bool given(SlotKind kind) {  // there before the layer runs
  return kind == SlotKind::kInput || kind == SlotKind::kWeight || kind == SlotKind::kWeightGradient || kind == SlotKind::kBatch;
}

// Shared storages are there unless this template makes them.
bool made_here(SlotIndex slot, const std::vector<TemplateOp>& forward) {
  return std::any_of(forward.begin(), forward.end(),
                     [slot](const TemplateOp& op) { return std::find(op.writes.begin(), op.writes.end(), slot) != op.writes.end(); });
}

// Invariants 1 and 2 of layer_template.h: written once, and before it is used.
void check_order(const std::vector<Slot>& slots, const std::vector<TemplateOp>& forward, const std::vector<TemplateOp>& backward) {
  std::vector<bool> written(slots.size(), false);
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    written[slot] = slots[slot].view_of == kNoSlot && given(slots[slot].kind);
    const bool shared = slots[slot].kind == SlotKind::kShared || slots[slot].kind == SlotKind::kSharedGradient;
    if (shared) written[slot] = !made_here(static_cast<SlotIndex>(slot), forward);
  }
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

// Whether something before this part is trained. What stands before a layer is the embedding and other layers.
bool needs_input_gradient(const TemplateContext& context, const std::string& part) {
  const TrainableMask& mask = context.training.trainable;
  return part != "embedding" && (trains_embedding(mask) || trains_layers(mask));
}

}  // namespace

DType compute_dtype(Precision precision) {
  switch (precision) {
    case Precision::kBf16:
    case Precision::kFp8:
    case Precision::kMxFp8:
    case Precision::kNvFp4:
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
  STEPSIM_CHECK(context.parallel.context >= 1);
  STEPSIM_CHECK(context.training.sequence % context.parallel.context == 0);
  DeviceShape shape;
  shape.ranks = context.parallel.tensor;
  shape.context = context.parallel.context;
  shape.sequence_parallel = context.parallel.sequence_parallel && ranks > 1;
  shape.keys = context.training.sequence;
  shape.sequence = shape.keys / shape.context;
  shape.micro_batch = context.training.micro_batch;
  product(model.name, "tokens", {shape.keys, shape.micro_batch});
  shape.tokens = shape.sequence * shape.micro_batch;
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
  shape.product = product_dtype(context.training);
  shape.gradient = gradient_dtype(context, shape.compute);
  return shape;
}

TemplateBuilder::TemplateBuilder(std::string name, const TemplateContext& context)
    : name_(std::move(name)), context_(context), shape_(device_shape(context)) {}

SlotIndex TemplateBuilder::add(Slot slot) {
  if (!prefix_.empty()) slot.name = prefix_ + slot.name;
  const std::int64_t elements = product(context_.model.name, slot.name, slot.shape);
  product(context_.model.name, slot.name, {elements, bits_of(slot.dtype)});  // bits, so that bytes are safe too
  slot.size = size_of(elements, slot.dtype);
  slots_.push_back(std::move(slot));
  return static_cast<SlotIndex>(slots_.size()) - 1;
}

SlotIndex TemplateBuilder::add(Slot slot, Bytes size) {
  const SlotIndex added = add(std::move(slot));
  slots_[at(added)].size = size;
  return added;
}

bool TemplateBuilder::in_layer() const { return name_ != "embedding" && name_ != "head"; }

bool TemplateBuilder::low_precision() const { return in_layer() && is_low(context_.training.precision); }

SlotIndex TemplateBuilder::input(const std::string& name, std::vector<std::int64_t> shape) {
  return add({.name = name, .kind = SlotKind::kInput, .size = {}, .shape = std::move(shape), .dtype = shape_.compute, .module = ""});
}

Weight TemplateBuilder::shared_weight(const std::string& name, std::vector<std::int64_t> shape) {
  // Multi-token prediction reads the table of a tied head again.
  const auto known = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) { return slot.name == name; });
  if (known != slots_.end()) {
    const auto value = static_cast<SlotIndex>(known - slots_.begin());
    const bool trained = at(value) + 1 < slots_.size() && slots_[at(value) + 1].kind == SlotKind::kWeightGradient;  // added behind it
    return {.value = value, .gradient = trained ? value + 1 : kNoSlot};
  }
  const std::int64_t parameters = parameters_, frozen_parameters = frozen_parameters_;
  const Bytes frozen_bytes = frozen_bytes_;
  const std::string prefix = std::exchange(prefix_, "");
  const Weight shared = weight(name, std::move(shape));
  prefix_ = prefix;
  parameters_ = parameters;
  frozen_parameters_ = frozen_parameters;
  frozen_bytes_ = frozen_bytes;
  return shared;
}

SlotIndex TemplateBuilder::shared(const std::string& name, std::vector<std::int64_t> shape, SlotKind kind) {
  STEPSIM_CHECK(kind == SlotKind::kShared || kind == SlotKind::kSharedGradient);
  const std::string prefix = std::exchange(prefix_, "");
  const SlotIndex slot = add({.name = name,
                              .kind = kind,
                              .size = {},
                              .shape = std::move(shape),
                              .dtype = shape_.compute,
                              .role = kind == SlotKind::kShared ? Role::kActivations : Role::kActivationGradients,
                              .module = ""});
  prefix_ = prefix;
  return slot;
}

SlotIndex TemplateBuilder::activation(const std::string& name, std::vector<std::int64_t> shape, const std::string& module) {
  return add({.name = name, .kind = SlotKind::kForward, .size = {}, .shape = std::move(shape), .dtype = shape_.compute, .module = module});
}

SlotIndex TemplateBuilder::made(Direction direction, const std::string& name, std::vector<std::int64_t> shape, const std::string& module) {
  return direction == Direction::kForward ? activation(name, std::move(shape), module) : gradient(name, std::move(shape));
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

Weight TemplateBuilder::weight(const std::string& name, std::vector<std::int64_t> shape, bool expert) {
  const bool trained = is_trained(context_.training.trainable, name_, name);
  Weight weight;
  weight.value = add({.name = name,
                      .kind = SlotKind::kWeight,
                      .size = {},
                      .shape = shape,
                      .dtype = shape_.compute,
                      .role = Role::kWeights,
                      .module = "",
                      .expert = expert});
  const std::int64_t elements = product(context_.model.name, name, shape);
  if (!trained) {
    frozen_parameters_ += elements;
    frozen_bytes_ += size(weight.value);
    return weight;
  }
  parameters_ += elements;
  if (expert) expert_parameters_ += elements;
  weight.gradient = add({.name = name + " gradient",
                         .kind = SlotKind::kWeightGradient,
                         .size = {},
                         .shape = std::move(shape),
                         .dtype = shape_.gradient,
                         .role = Role::kGradients,
                         .module = "",
                         .expert = expert});
  return weight;
}

Weight TemplateBuilder::matrix(const std::string& name, std::vector<std::int64_t> shape, bool expert, bool low) {
  const std::int64_t columns = shape.back();
  const TrainingRecipe& training = context_.training;
  const Weight matrix = weight(name, std::move(shape), expert);
  const std::int64_t elements = product(context_.model.name, name, slot(matrix.value).shape);
  const bool frozen = matrix.gradient == kNoSlot;
  if (frozen && low && training.trainable.base_bits == 4) {  // heads and routers stay: bitsandbytes leaves out lm_head
    Slot& kept = slots_[at(matrix.value)];
    frozen_bytes_ -= kept.size;
    kept.size = nf4_bytes(elements);
    kept.dtype = DType::kUint8;
    frozen_bytes_ += kept.size;
    return matrix;
  }
  if (low && low_precision()) {
    cached_weights_ += cached_weight(training, elements / columns, columns);
    if (training.primary_weights_low) {
      Slot& kept = slots_[at(matrix.value)];
      const Bytes whole = low_bytes(training, elements / columns, columns).all();
      if (frozen) frozen_bytes_ += whole - kept.size;
      kept.size = whole;
      kept.dtype = product_dtype(training);
    }
  }
  return matrix;
}

// Gradients of frozen weights are none: an op that makes nothing else is not run.
static bool makes_nothing(TemplateOp& op) {
  if (std::find(op.updates.begin(), op.updates.end(), kNoSlot) == op.updates.end()) return false;
  std::erase(op.updates, kNoSlot);
  return op.updates.empty() && op.writes.empty();
}

void TemplateBuilder::op(Direction direction, TemplateOp op) {
  if (makes_nothing(op)) return;
  std::vector<TemplateOp>& ops = direction == Direction::kForward ? forward_ : backward_;
  if (!prefix_.empty()) op.name = prefix_ + op.name;
  if (op.stream != OpStream::kCompute) {
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
  MemoryBound work{.read = pass.further_reads, .written = pass.further_writes, .kernel = pass.kernel, .launches = pass.launches};
  for (const SlotIndex slot : pass.reads) work.read += size(slot);
  for (const SlotIndex slot : pass.writes) work.written += size(slot);
  for (const SlotIndex slot : pass.updates) {
    if (slot == kNoSlot) continue;
    work.read += size(slot);
    work.written += size(slot);
  }
  op(direction, {.name = std::move(pass.name),
                 .module = std::move(pass.module),
                 .work = work,
                 .stream = pass.stream,
                 .reads = std::move(pass.reads),
                 .writes = std::move(pass.writes),
                 .updates = std::move(pass.updates),
                 .holds = std::move(pass.holds),
                 .random = pass.random,
                 .after = {}});
}

void TemplateBuilder::gemm(Direction direction, const std::string& name, const std::string& module, const Gemm& work,
                           std::vector<SlotIndex> reads, SlotIndex written) {
  if (written == kNoSlot) return;  // a frozen weight's gradient
  const bool accumulates = slots_[at(written)].kind == SlotKind::kWeightGradient;
  TemplateOp gemm{
      .name = name, .module = module, .work = work, .reads = std::move(reads), .writes = {}, .updates = {}, .holds = {}, .after = {}};
  (accumulates ? gemm.updates : gemm.writes).push_back(written);
  op(direction, std::move(gemm));
}

// What the kind's time is stated for.
static Bytes message_of(const CollectiveCall& call, Bytes input, Bytes output) {
  if (call.message) return *call.message;
  switch (call.kind) {
    case CollectiveKind::kAllGather:
      return output;
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kDispatch:
    case CollectiveKind::kCombine:
      return std::max(input, output);
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kSendReceive:
      return input;
  }
  check_failed("collective kind", __FILE__, __LINE__);
}

static OpStream stream_of(Group group) {
  switch (group) {
    case Group::kTensor:
      return OpStream::kTensor;
    case Group::kContext:
      return OpStream::kContext;
    case Group::kExpert:
      return OpStream::kExpert;
    case Group::kNone:
    case Group::kData:
    case Group::kPipeline:
      break;
  }
  check_failed("a group whose collectives run beside compute", __FILE__, __LINE__);
}

void TemplateBuilder::collective(Direction direction, const CollectiveCall& call) {
  const CommunicatorRanks communicator = call.ranks.value_or(tensor_ranks());
  if (communicator.ranks == 1) return;
  const bool in_place = call.kind == CollectiveKind::kAllReduce;
  STEPSIM_CHECK(in_place == (call.output == kNoSlot));
  TemplateOp collective{.name = call.name,
                        .module = call.module,
                        .work = Collective{.kind = call.kind,
                                           .message = message_of(call, size(call.input), in_place ? Bytes(0) : size(call.output)),
                                           .ranks = communicator.ranks,
                                           .stride = communicator.stride,
                                           .library = call.library,
                                           .routing = call.routing},
                        .group = communicator.group,
                        .stream = call.beside_compute ? stream_of(communicator.group) : OpStream::kCompute,
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
                      .parameters = parameters_,
                      .expert_parameters = expert_parameters_,
                      .frozen_parameters = frozen_parameters_,
                      .frozen_bytes = frozen_bytes_,
                      .cached_weights = cached_weights_};
  if (!context_.training.trainable.trains_all()) drop_unneeded_backward(layer, needs_input_gradient(context_, name_));
  if (in_layer() && overlaps_tensor_collectives(context_)) overlap_tensor_collectives(layer);
  const bool delays = context_.model.has_experts() && context_.parallel.delay_weight_gradients.value_or(false);
  if (in_layer() && delays) delay_weight_gradients(layer);
  store_low(layer, context_.framework);
  keep_for_reruns(layer, context_.framework);
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
