#include "models/weight_gradient_ops.h"

#include <algorithm>
#include <utility>

#include "models/slot_table.h"
#include "models/template_builder.h"

namespace stepsim {

namespace {

// Where an op goes: nowhere, behind the experts' exchange, to the end.
enum class Delay : std::uint8_t { kStays, kBehindExchange, kToEnd };

Delay delay_of(const TemplateOp& op, bool exchanges) {
  const bool of_linear = std::holds_alternative<Gemm>(op.work) || !op.writes.empty();  // the product, or an operand that it alone reads
  const bool elsewhere = names_module(op.module, "router") || names_module(op.module, "mlp");
  if (!of_linear || elsewhere || std::holds_alternative<Collective>(op.work)) return Delay::kStays;
  if (!names_module(op.module, "moe")) return Delay::kToEnd;
  return exchanges ? Delay::kBehindExchange : Delay::kStays;
}

// By backward op. What an op makes goes with it only if all that read it go as far.
std::vector<Delay> delays_of(const LayerTemplate& layer, const std::vector<SlotIndex>& root, std::size_t behind) {
  const std::vector<bool> movable = weight_gradient_ops(layer, root);
  const bool exchanges = behind < layer.backward.size();
  std::vector<Delay> delays(layer.backward.size(), Delay::kStays),
      least(layer.slots.size(), Delay::kToEnd);  // least: by root, its readers'
  for (std::size_t op = layer.backward.size(); op-- > 0;) {
    const TemplateOp& each = layer.backward[op];
    Delay delay = movable[op] ? delay_of(each, exchanges) : Delay::kStays;
    if (delay == Delay::kBehindExchange && op > behind) delay = Delay::kStays;
    for (const SlotIndex slot : each.writes) {
      if (least[at(root[at(slot)])] < delay) delay = Delay::kStays;
    }
    for (const auto* used : {&each.reads, &each.updates, &each.holds}) {
      for (const SlotIndex slot : *used) least[at(root[at(slot)])] = std::min(least[at(root[at(slot)])], delay);
    }
    delays[op] = delay;
  }
  return delays;
}

// `after` of ops in a new order, the old numbers of which are `order`: what no longer stands before an op is replaced by what does.
void renumber(std::vector<TemplateOp>& ops, const std::vector<std::size_t>& order, const std::vector<Delay>& delays) {
  std::vector<std::int32_t> place(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<std::int32_t>(i);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    std::vector<std::int32_t> after;
    for (std::int32_t before : ops[i].after) {
      if (delays[order[i]] == Delay::kStays) {
        while (before >= 0 && delays[at(before)] != Delay::kStays) --before;
      }
      if (before >= 0) after.push_back(place[at(before)]);
    }
    ops[i].after = std::move(after);
  }
}

}  // namespace

std::vector<bool> weight_gradient_ops(const LayerTemplate& layer, const std::vector<SlotIndex>& root) {
  std::vector<bool> needed(layer.slots.size(), false);  // by root: read by an op that stays
  if (layer.input_gradient != kNoSlot) needed[at(root[at(layer.input_gradient)])] = true;
  for (std::size_t slot = 0; slot < layer.slots.size(); ++slot) {
    if (layer.slots[slot].kind == SlotKind::kSharedGradient) needed[slot] = true;
  }
  std::vector<bool> deferred(layer.backward.size(), false);
  for (std::size_t i = layer.backward.size(); i-- > 0;) {
    const TemplateOp& op = layer.backward[i];
    bool only_gradients = true;
    for (const auto* slots : {&op.writes, &op.updates}) {
      for (const SlotIndex slot : *slots) {
        const bool gradient = layer.slots[at(slot)].kind == SlotKind::kWeightGradient;
        only_gradients = only_gradients && (gradient || !needed[at(root[at(slot)])]);
      }
    }
    deferred[i] = only_gradients;
    if (only_gradients) continue;
    for (const auto* slots : {&op.reads, &op.updates, &op.holds}) {
      for (const SlotIndex slot : *slots) needed[at(root[at(slot)])] = true;
    }
  }
  return deferred;
}

std::vector<bool> weight_gradient_ops(const TemplateStamp& stamp) { return weight_gradient_ops(*stamp.source, stamp.table.root); }

void delay_weight_gradients(LayerTemplate& layer) {
  std::vector<SlotIndex> root;
  for (SlotIndex slot = 0; at(slot) < layer.slots.size(); ++slot) root.push_back(root_of(layer.slots, slot));
  std::size_t behind = layer.backward.size();  // the last exchange beside compute
  for (std::size_t op = 0; op < layer.backward.size(); ++op) {
    if (layer.backward[op].stream == OpStream::kExpert) behind = op;
  }
  const std::vector<Delay> delays = delays_of(layer, root, behind);
  std::vector<std::size_t> order;
  const auto append = [&](Delay wanted) {
    for (std::size_t op = 0; op < delays.size(); ++op) {
      if (delays[op] == wanted) order.push_back(op);
    }
  };
  for (std::size_t op = 0; op < delays.size(); ++op) {
    if (delays[op] == Delay::kStays) order.push_back(op);
    if (op == behind) append(Delay::kBehindExchange);
  }
  append(Delay::kToEnd);
  std::vector<TemplateOp> ops;
  for (const std::size_t op : order) ops.push_back(std::move(layer.backward[op]));
  renumber(ops, order, delays);
  layer.backward = std::move(ops);
}

}  // namespace stepsim
