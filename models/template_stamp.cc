#include "models/template_stamp.h"

#include <algorithm>
#include <utility>

#include "sim/check.h"

namespace stepsim {

namespace {

std::int32_t batch_index(OpGraphBuilder& builder, const Slot& slot, std::vector<BatchTensor>& batch) {
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (batch[i].name != slot.name) continue;
    STEPSIM_CHECK(batch[i].size == slot.size);
    return static_cast<std::int32_t>(i);
  }
  batch.push_back({slot.name, slot.size, builder.label(slot.name)});
  return static_cast<std::int32_t>(batch.size()) - 1;
}

std::int32_t shared_index(const Slot& slot, std::vector<std::pair<SlotKind, std::string>>& shared) {
  const std::pair wanted(slot.kind, slot.name);
  const auto found = std::find(shared.begin(), shared.end(), wanted);
  const auto index = static_cast<std::int32_t>(found - shared.begin());
  if (found == shared.end()) shared.push_back(wanted);
  return index;
}

bool is_tied(const Slot& slot, const LayerTemplate* embedding) {
  if (embedding == nullptr) return false;
  return std::any_of(embedding->slots.begin(), embedding->slots.end(),
                     [&slot](const Slot& other) { return other.kind == slot.kind && other.name == slot.name; });
}

// Places the roots; weights and their gradients one behind another in their layer's storage.
class Placement {
 public:
  Placement(OpGraphBuilder& builder, TemplateStamp& stamp, NamedTensors& named, const LayerTemplate* embedding)
      : builder_(builder), stamp_(stamp), named_(named), embedding_(embedding) {}

  void add_roots() {
    const LayerTemplate& source = *stamp_.source;
    stamp_.roots.resize(source.slots.size());
    for (const bool experts : {false, true}) {
      for (SlotIndex root = 0; at(root) < source.slots.size(); ++root) {
        if (stamp_.table.root[at(root)] == root && source.slots[at(root)].expert == experts) stamp_.roots[at(root)] = place(root);
      }
    }
  }

 private:
  StampOperand place(SlotIndex root) {
    const LayerTemplate& source = *stamp_.source;
    const Slot& slot = source.slots[at(root)];
    const auto shared = [&slot](OperandPlace where) { return StampOperand{.place = where, .size = slot.size}; };
    const bool from_layer_before = root == stamp_.table.input && slot.kind == SlotKind::kInput;  // the embedding's input is the batch
    if (from_layer_before) return shared(OperandPlace::kInput);
    if (root == stamp_.table.output) return shared(OperandPlace::kOutput);
    if (root == root_or_none(stamp_.table, source.output_gradient)) return shared(OperandPlace::kOutputGradient);
    if (root == root_or_none(stamp_.table, source.input_gradient)) return shared(OperandPlace::kInputGradient);
    if (slot.kind == SlotKind::kBatch)
      return {.place = OperandPlace::kBatch, .index = batch_index(builder_, slot, named_.batch), .size = slot.size};
    if (slot.kind == SlotKind::kShared || slot.kind == SlotKind::kSharedGradient) {
      const OperandPlace where = slot.kind == SlotKind::kShared ? OperandPlace::kShared : OperandPlace::kSharedGradient;
      return {.place = where, .index = shared_index(slot, named_.shared), .size = slot.size};
    }
    if (slot.kind == SlotKind::kWeight) return resident(slot, OperandPlace::kWeights, OperandPlace::kTiedWeights, stamp_.own_weights);
    if (slot.kind == SlotKind::kWeightGradient) {
      return resident(slot, OperandPlace::kWeightGradients, OperandPlace::kTiedWeightGradients, stamp_.own_weight_gradients);
    }
    return {.place = OperandPlace::kOwn, .index = root, .size = slot.size};
  }

  StampOperand resident(const Slot& slot, OperandPlace own, OperandPlace tied, Bytes& sum) {
    if (is_tied(slot, embedding_)) {
      stamp_.tied = true;
      return {.place = tied, .offset = tied_offset(slot), .size = slot.size};
    }
    const Bytes offset = sum;
    sum += slot.size;
    return {.place = own, .offset = offset, .size = slot.size};
  }

  Bytes tied_offset(const Slot& slot) const {
    Bytes offset{};
    for (const Slot& other : embedding_->slots) {
      if (other.kind != slot.kind) continue;
      if (other.name == slot.name) break;
      offset += other.size;
    }
    return offset;
  }

  OpGraphBuilder& builder_;
  TemplateStamp& stamp_;
  NamedTensors& named_;
  const LayerTemplate* embedding_;
};

// Views of one storage lie one behind another, as q, k and v do; a view that would not fit is taken to lie at the end.
std::vector<Bytes> view_offsets(const LayerTemplate& source, const SlotTable& table) {
  std::vector<Bytes> offsets(source.slots.size()), used(source.slots.size());
  for (std::size_t slot = 0; slot < source.slots.size(); ++slot) {
    if (source.slots[slot].view_of == kNoSlot) continue;
    const std::size_t root = at(table.root[slot]);
    const Bytes size = source.slots[slot].size, whole = source.slots[root].size;
    STEPSIM_CHECK(size <= whole);
    offsets[slot] = std::min(used[root], whole - size);
    used[root] = offsets[slot] + size;
  }
  return offsets;
}

std::vector<StampOp> make_ops(OpGraphBuilder& builder, const TemplateStamp& stamp, const std::vector<TemplateOp>& ops) {
  const std::vector<Bytes> offsets = view_offsets(*stamp.source, stamp.table);
  std::vector<bool> written(stamp.source->slots.size(), false);  // in this direction
  const auto operands = [&](const std::vector<SlotIndex>& slots) {
    std::vector<StampOperand> resolved;
    for (const SlotIndex slot : slots) {
      StampOperand operand = stamp.roots[at(stamp.table.root[at(slot)])];
      operand.offset += offsets[at(slot)];
      operand.size = stamp.source->slots[at(slot)].size;
      resolved.push_back(operand);
    }
    return resolved;
  };
  std::vector<StampOp> stamped;
  for (const TemplateOp& op : ops) {
    StampOp& each = stamped.emplace_back();
    each.work = builder.work(op.work);
    each.kind = builder.label(op.name, static_cast<std::int32_t>(op.group));
    each.stream = op.stream;
    each.queued = std::holds_alternative<Collective>(op.work) && op.group != Group::kNone;
    each.group = op.group;
    each.host_reads = std::holds_alternative<Copy>(op.work);
    each.reads = operands(op.reads);
    each.writes = operands(op.writes);
    each.updates = operands(op.updates);
    each.holds = operands(op.holds);
    each.after = op.after;
    for (const std::int32_t before : op.after) STEPSIM_CHECK(before >= 0 && at(before) + 1 < stamped.size());
    for (std::size_t i = 0; i < op.writes.size(); ++i) {
      std::vector<bool>::reference before = written[at(stamp.table.root[at(op.writes[i])])];
      each.writes[i].claims = !before && static_cast<std::size_t>(each.writes[i].place) < kPlacesPerMicroBatch;
      before = true;
    }
  }
  return stamped;
}

}  // namespace

TemplateStamp make_stamp(OpGraphBuilder& builder, const LayerTemplate& source, NamedTensors& named, const LayerTemplate* embedding) {
  TemplateStamp stamp{.source = &source, .table = SlotTable(source), .forward = {}, .backward = {}, .names = {}, .roots = {}};
  Placement(builder, stamp, named, embedding).add_roots();
  for (const Slot& slot : source.slots) stamp.names.push_back(builder.label(slot.name));
  stamp.forward = make_ops(builder, stamp, source.forward);
  stamp.backward = make_ops(builder, stamp, source.backward);
  return stamp;
}

}  // namespace stepsim
