#include "models/context_exchange.h"

#include <utility>

#include "sim/check.h"
#include "sim/input_error.h"

namespace stepsim {

namespace {

using Shape = std::vector<std::int64_t>;

// What an exchange sends and receives lives until it is put in order.
SlotIndex transient(TemplateBuilder& builder, const std::string& name, Shape shape, DType dtype) {
  return builder.add({.name = name,
                      .kind = SlotKind::kWorkspace,
                      .size = {},
                      .shape = std::move(shape),
                      .dtype = dtype,
                      .role = Role::kCommunication,
                      .module = ""});
}

SlotIndex result(TemplateBuilder& builder, Direction direction, const std::string& name, Shape shape, DType dtype) {
  const bool forward = direction == Direction::kForward;
  return builder.add({.name = name,
                      .kind = forward ? SlotKind::kForward : SlotKind::kGradient,
                      .size = {},
                      .shape = std::move(shape),
                      .dtype = dtype,
                      .role = forward ? Role::kActivations : Role::kActivationGradients,
                      .module = ""});
}

struct Exchanged {
  std::string name;
  Shape shape;
};

// Of the tensors that one exchange is of.
struct ExchangeCall {
  Direction direction = Direction::kForward;
  std::string module;  // of the ops
};

void reorder(TemplateBuilder& builder, const ExchangeCall& call, const std::string& name, SlotIndex from, SlotIndex to) {
  builder.pass(call.direction, {.name = name, .module = call.module, .reads = {from}, .writes = {to}, .updates = {}, .holds = {}});
}

// Tensors one behind another: each is copied so that what goes to a rank lies together, and sent while the next is copied; then each is
// copied into its new order.
std::vector<SlotIndex> exchange(TemplateBuilder& builder, const ExchangeCall& call, const std::vector<SlotIndex>& sources,
                                const std::vector<Exchanged>& wanted) {
  std::vector<SlotIndex> received;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const Slot source = builder.slot(sources[i]);
    const SlotIndex sent = transient(builder, wanted[i].name + ", to send", source.shape, source.dtype);
    reorder(builder, call, "split for ranks", sources[i], sent);
    received.push_back(transient(builder, wanted[i].name + ", received", wanted[i].shape, source.dtype));
    builder.collective(call.direction, {.name = wanted[i].name + " all-to-all",
                                        .module = call.module,
                                        .kind = CollectiveKind::kAllToAll,
                                        .input = sent,
                                        .output = received.back(),
                                        .beside_compute = true,
                                        .ranks = builder.context_ranks()});
  }
  std::vector<SlotIndex> results;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    results.push_back(result(builder, call.direction, wanted[i].name, wanted[i].shape, builder.slot(received[i]).dtype));
    reorder(builder, call, "join from ranks", received[i], results.back());
  }
  return results;
}

}  // namespace

ContextExchange context_exchange(const TemplateBuilder& builder, const AttentionForm& form) {
  const TemplateContext& context = builder.context();
  const ContextExchange wanted = context.parallel.context_exchange.value_or(ContextExchange::kAllGather);
  const bool ring = one_kernel(context) && form.window == 0 && !form.sinks;
  if (wanted == ContextExchange::kRing && !ring) return ContextExchange::kAllGather;
  const std::int64_t ranks = builder.shape().context;
  if (wanted == ContextExchange::kAllToAll && (form.heads % ranks != 0 || form.kv_heads % ranks != 0)) {
    throw InputError({"--cp-exchange"}, "found alltoall with " + std::to_string(form.heads) + " heads and " +
                                            std::to_string(form.kv_heads) +
                                            " key-value heads a tensor-parallel rank, wanted multiples of --cp " + std::to_string(ranks));
  }
  return wanted;
}

SlotIndex gathered_tokens(TemplateBuilder& builder, Direction direction, const std::string& name, SlotIndex local) {
  const Slot own = builder.slot(local);
  Shape shape = own.shape;
  shape.front() *= builder.shape().context;
  const bool forward = direction == Direction::kForward;
  const SlotIndex whole = transient(builder, name + (forward ? ", all tokens" : ", all tokens again"), std::move(shape), own.dtype);
  builder.collective(direction, {.name = name + " all-gather",
                                 .module = kCoreAttention,
                                 .kind = CollectiveKind::kAllGather,
                                 .input = local,
                                 .output = whole,
                                 .ranks = builder.context_ranks()});
  return whole;
}

SlotIndex scattered_tokens(TemplateBuilder& builder, const std::string& name, SlotIndex whole) {
  Shape shape = builder.slot(whole).shape;
  shape.front() /= builder.shape().context;
  const SlotIndex local = builder.gradient(name + " gradient, own tokens", std::move(shape));
  builder.collective(Direction::kBackward, {.name = name + " gradient reduce-scatter",
                                            .module = kCoreAttention,
                                            .kind = CollectiveKind::kReduceScatter,
                                            .input = whole,
                                            .output = local,
                                            .ranks = builder.context_ranks()});
  return local;
}

std::vector<SlotIndex> all_tokens(TemplateBuilder& builder, Direction direction, const std::vector<SlotIndex>& sources) {
  const std::int64_t ranks = builder.shape().context;
  std::vector<Exchanged> wanted;
  for (const SlotIndex source : sources) {
    const Slot& own = builder.slot(source);
    Shape shape = own.shape;
    STEPSIM_CHECK(shape.size() >= 2 && shape[1] % ranks == 0);
    shape[0] *= ranks;
    shape[1] /= ranks;
    wanted.push_back({own.name + (direction == Direction::kForward ? ", all tokens" : ", all tokens again"), std::move(shape)});
  }
  return exchange(builder, {direction, ""}, sources, wanted);
}

std::vector<SlotIndex> all_heads(TemplateBuilder& builder, Direction direction, const std::vector<SlotIndex>& sources,
                                 const std::vector<std::string>& names) {
  STEPSIM_CHECK(sources.size() == names.size());
  const std::int64_t ranks = builder.shape().context;
  std::vector<Exchanged> wanted;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    Shape shape = builder.slot(sources[i]).shape;
    shape[0] /= ranks;
    shape[1] *= ranks;
    wanted.push_back({names[i], std::move(shape)});
  }
  return exchange(builder, {direction, kCoreAttention}, sources, wanted);
}

AttentionForm all_tokens_form(const TemplateBuilder& builder, const AttentionForm& form) {
  const std::int64_t ranks = builder.shape().context;
  AttentionForm whole = form;
  whole.queries *= ranks;
  whole.heads /= ranks;
  whole.kv_heads /= ranks;
  return whole;
}

}  // namespace stepsim
