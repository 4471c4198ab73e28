#include "models/micro_batch_script.h"

#include <algorithm>
#include <limits>

#include "sim/check.h"

namespace stepsim {

namespace {

constexpr std::int32_t kNoStorage = std::numeric_limits<std::int32_t>::max();  // a dropped storage's code

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }
std::size_t at(OperandPlace place) { return static_cast<std::size_t>(place); }

// The embedding, a layer or the head.
struct Unit {
  const TemplateStamp* stamp = nullptr;
  std::int32_t number = 0;
  std::int32_t layer = -1;
  std::array<std::size_t, kPlacesPerMicroBatch> base{};                 // into the cells, by place
  std::array<std::int32_t, kPlaces - kPlacesPerMicroBatch> resident{};  // codes, by place
  std::size_t first_forward = 0, first_backward = 0;                    // of its ops among all units'
};

class ScriptWriter {
 public:
  ScriptWriter(const ScriptStamps& stamps, std::int64_t layers, const ResidentStorages& residents, const StepFrame& frame)
      : stamps_(stamps), layers_(static_cast<std::int32_t>(layers)), frame_(frame) {
    add_units(residents);
    for (std::size_t tensor = 0; tensor < stamps.batch.size(); ++tensor) {
      cells_[batch_base_ + tensor] = add_storage({.size = stamps.batch[tensor].size,
                                                  .role = frame.outside_layers,
                                                  .name = {},
                                                  .unit = -1,
                                                  .slot = static_cast<SlotIndex>(tensor)});
    }
  }

  void run_all(std::int32_t unit, Phase phase) {
    const TemplateStamp& stamp = *units_[at(unit)].stamp;
    const std::size_t ops = (phase == Phase::kForward ? stamp.forward : stamp.backward).size();
    for (std::size_t op = 0; op < ops; ++op) run(units_[at(unit)], static_cast<std::int32_t>(op), phase);
  }

  void replay(const std::vector<PlanStep>& steps) {
    for (const PlanStep& step : steps) {
      Unit& unit = units_[at(step.layer) + 1];
      if (step.verb == PlanVerb::kDrop) {
        cells_[cell(unit, unit.stamp->roots[at(step.first)])] = kNoStorage;
        continue;
      }
      const Phase phase = step.verb == PlanVerb::kBackward ? Phase::kBackward : step.again ? Phase::kRecompute : Phase::kForward;
      for (std::int32_t op = step.first; op <= step.last; ++op) run(unit, op, phase);
    }
  }

  std::int32_t head() const { return layers_ + 1; }

  MicroBatchScript finish() && {
    for (ScriptStorage& storage : script_.storages) label_storage(storage);
    return std::move(script_);
  }

 private:
  // Cells hold the current storage code of: the units' own roots, the outputs between units (0 the embedding's), their gradients, the
  // batch.
  void add_units(const ResidentStorages& residents) {
    const std::size_t units = at(layers_) + 2;
    STEPSIM_CHECK(residents.units.size() == units);
    std::size_t own = 0, forward = 0, backward = 0;
    units_.resize(units);
    for (std::size_t number = 0; number < units; ++number) {
      Unit& unit = units_[number];
      unit.stamp = number == 0 ? &stamps_.embedding : number + 1 == units ? &stamps_.head : &stamps_.layer;
      unit.number = static_cast<std::int32_t>(number);
      unit.layer = number == 0 || number + 1 == units ? -1 : unit.number - 1;
      unit.base[at(OperandPlace::kOwn)] = own;
      unit.first_forward = forward;
      unit.first_backward = backward;
      own += unit.stamp->roots.size();
      forward += unit.stamp->forward.size();
      backward += unit.stamp->backward.size();
      const UnitResidents& mine = residents.units[number];
      const UnitResidents& embedding = residents.units.front();
      unit.resident = {~mine.weights.index, ~mine.gradients.index, ~embedding.weights.index, ~embedding.gradients.index};
    }
    const std::size_t outputs = own, gradients = outputs + units + 1;
    batch_base_ = gradients + units + 1;
    for (Unit& unit : units_) {  // unit n reads what unit n - 1 put out; the embedding's input and the head's output have no partner
      const std::size_t number = at(unit.number);
      unit.base[at(OperandPlace::kInput)] = outputs + number;
      unit.base[at(OperandPlace::kOutput)] = outputs + number + 1;
      unit.base[at(OperandPlace::kInputGradient)] = gradients + number;
      unit.base[at(OperandPlace::kOutputGradient)] = gradients + number + 1;
      unit.base[at(OperandPlace::kBatch)] = batch_base_;
    }
    cells_.assign(batch_base_ + stamps_.batch.size(), kNoStorage);
    script_.ops.reserve(forward + backward);
    script_.storages.reserve(own);
    first_run_.assign(forward, -1);
    last_forward_.assign(forward, -1);
    last_backward_.assign(backward, -1);
  }

  static std::size_t cell(const Unit& unit, const StampOperand& operand) { return unit.base[at(operand.place)] + at(operand.index); }
  static bool is_resident(const StampOperand& operand) { return at(operand.place) >= kPlacesPerMicroBatch; }

  std::int32_t add_storage(const ScriptStorage& storage) {
    STEPSIM_CHECK(script_.storages.size() < at(kNoStorage));
    script_.storages.push_back(storage);
    use_.push_back({});
    return static_cast<std::int32_t>(script_.storages.size()) - 1;
  }

  // The code of an operand that must be there. In a re-run, a fresh copy of a kept storage stands for it.
  std::int32_t code_of(const Unit& unit, const StampOperand& operand, Phase phase) const {
    if (is_resident(operand)) return unit.resident[at(operand.place) - kPlacesPerMicroBatch];
    const std::size_t place = cell(unit, operand);
    if (phase == Phase::kRecompute) {
      for (auto copy = copies_.rbegin(); copy != copies_.rend(); ++copy) {
        if (copy->first == place) return copy->second;
      }
    }
    STEPSIM_CHECK(cells_[place] != kNoStorage);
    return cells_[place];
  }

  std::int32_t claim(const Unit& unit, const StampOperand& operand, const TemplateStamp& stamp, Phase phase) {
    const std::size_t place = cell(unit, operand);
    SlotIndex slot = operand.index;
    if (operand.place == OperandPlace::kOutput) slot = stamp.table.output;
    if (operand.place == OperandPlace::kInputGradient) slot = stamp.table.root[at(stamp.source->input_gradient)];
    const bool again = phase == Phase::kRecompute;
    const std::int32_t code = add_storage({.size = stamp.source->slots[at(slot)].size,
                                           .role = {},
                                           .name = {},
                                           .layer = unit.layer,
                                           .unit = unit.number,
                                           .slot = slot,
                                           .made_again = again});
    if (again && cells_[place] != kNoStorage) {
      copies_.emplace_back(place, code);  // not dropped: backward goes on reading the kept one
    } else {
      cells_[place] = code;
    }
    return code;
  }

  void run(const Unit& unit, std::int32_t index, Phase phase) {
    const TemplateStamp& stamp = *unit.stamp;
    const bool backward = phase == Phase::kBackward;
    const StampOp& source = (backward ? stamp.backward : stamp.forward)[at(index)];
    if (backward) copies_.clear();
    op_ = static_cast<std::int32_t>(script_.ops.size());
    ScriptOp op{.work = source.work,
                .kind = source.kind,
                .phase = phase,
                .on_tensor_stream = source.on_tensor_stream,
                .queued = source.queued,
                .layer = unit.layer};
    waits_for_ = -1;
    if (op_ == 0) claim_batch();
    for (const StampOperand& operand : source.reads) read(code_of(unit, operand, phase), operand, op);
    for (const StampOperand& operand : source.updates) {
      const std::int32_t code = code_of(unit, operand, phase);
      read(code, operand, op);
      write(code, operand, op);
    }
    for (const StampOperand& operand : source.writes) {
      write(operand.claims ? claim(unit, operand, stamp, phase) : code_of(unit, operand, phase), operand, op);
    }
    for (const StampOperand& operand : source.holds) {
      const std::int32_t code = code_of(unit, operand, phase);
      note_use(code, phase);
      script_.holds.push_back(StorageId{code});
    }
    wait_for_listed(unit, source, backward);
    record_run(unit, index, op);
    finish_op(op);
  }

  void claim_batch() {
    for (std::size_t tensor = 0; tensor < stamps_.batch.size(); ++tensor) {
      const std::int32_t code = cells_[batch_base_ + tensor];
      script_.writes.push_back({StorageId{code}, Bytes(0), stamps_.batch[tensor].size});
      use_[at(code)].writer = 0;
    }
  }

  void note_use(std::int32_t code, Phase phase) {
    if (code < 0) return;
    ScriptStorage& storage = script_.storages[at(code)];
    storage.read_by_backward |= phase == Phase::kBackward;
    storage.read_by_rerun |= phase == Phase::kRecompute;
  }

  void read(std::int32_t code, const StampOperand& operand, const ScriptOp& op) {
    script_.reads.push_back({StorageId{code}, operand.offset, operand.size});
    if (code < 0) return;
    note_use(code, op.phase);
    StorageUse& use = use_[at(code)];
    wait_for(use.writer, op);
    use.reader[op.on_tensor_stream] = op_;
  }

  void write(std::int32_t code, const StampOperand& operand, const ScriptOp& op) {
    script_.writes.push_back({StorageId{code}, operand.offset, operand.size});
    if (code < 0) {
      STEPSIM_CHECK(!op.on_tensor_stream);  // weights and gradients belong to the compute stream until the optimizer
      return;
    }
    StorageUse& use = use_[at(code)];
    wait_for(use.writer, op);
    wait_for(use.reader[!op.on_tensor_stream], op);
    use.writer = op_;
  }

  // Ops of one stream end in order, so of the other stream's ops only the last one needs an edge.
  void wait_for(std::int32_t earlier, const ScriptOp& op) {
    if (earlier < 0 || script_.ops.size() <= at(earlier)) return;  // none, or this op itself
    if (script_.ops[at(earlier)].on_tensor_stream != op.on_tensor_stream) waits_for_ = std::max(waits_for_, earlier);
  }

  void wait_for_listed(const Unit& unit, const StampOp& source, bool backward) {
    for (const std::int32_t before : source.after) {
      const std::int32_t earlier =
          backward ? last_backward_[unit.first_backward + at(before)] : last_forward_[unit.first_forward + at(before)];
      if (earlier >= 0 && script_.ops[at(earlier)].on_tensor_stream != source.on_tensor_stream) waits_for_ = std::max(waits_for_, earlier);
    }
  }

  void record_run(const Unit& unit, std::int32_t index, ScriptOp& op) {
    if (op.phase == Phase::kBackward) {
      last_backward_[unit.first_backward + at(index)] = op_;
      return;
    }
    const std::size_t place = unit.first_forward + at(index);
    last_forward_[place] = op_;
    if (op.phase == Phase::kForward) first_run_[place] = op_;
    if (op.phase == Phase::kRecompute) op.origin = first_run_[place];
  }

  void finish_op(ScriptOp& op) {
    std::int32_t& waited = waited_for_[op.on_tensor_stream];
    if (waits_for_ > waited) op.waits_for = waited = waits_for_;
    op.read_end = static_cast<std::uint32_t>(script_.reads.size());
    op.write_end = static_cast<std::uint32_t>(script_.writes.size());
    op.hold_end = static_cast<std::uint32_t>(script_.holds.size());
    script_.ops.push_back(op);
  }

  // A saved storage: a backward op reads it, or it is what a re-run starts from. An output is named and counted as the next unit's input.
  void label_storage(ScriptStorage& storage) const {
    if (storage.unit < 0) {
      storage.name = batch_name(storage);
      return;
    }
    const TemplateStamp* stamp = units_[at(storage.unit)].stamp;
    storage.name = stamp->names[at(storage.slot)];
    const Slot& slot = stamp->source->slots[at(storage.slot)];
    const bool output = storage.slot == stamp->table.output && storage.unit <= layers_;  // the head's, the loss, goes nowhere
    const bool saved = storage.read_by_backward || (storage.read_by_rerun && !storage.made_again);
    const bool inside = output ? storage.unit < layers_ : storage.layer >= 0;  // a layer's own, or a layer's input
    if (slot.kind == SlotKind::kGradient || storage.slot == root_or_none(stamp->table, stamp->source->input_gradient)) {
      storage.role = frame_.role(slot.role == Role::kActivations ? Role::kActivationGradients : slot.role);
    } else if (slot.kind == SlotKind::kForward && inside && saved) {
      storage.role = storage.made_again ? frame_.saved_again : frame_.saved;
    } else if (slot.role == Role::kActivations) {
      storage.role = saved && slot.kind == SlotKind::kForward ? frame_.outside_layers : frame_.role(Role::kWorkspace);
    } else {
      storage.role = frame_.role(slot.role);
    }
    if (!output) return;
    const Unit& next = units_[at(++storage.unit)];
    storage.layer = next.layer;
    storage.slot = next.stamp->table.input;
    storage.name = next.stamp->names[at(storage.slot)];
  }

  static SlotIndex root_or_none(const SlotTable& table, SlotIndex slot) { return slot == kNoSlot ? kNoSlot : table.root[at(slot)]; }

  LabelId batch_name(const ScriptStorage& storage) const {
    for (const TemplateStamp* stamp : {&stamps_.embedding, &stamps_.layer, &stamps_.head}) {
      for (std::size_t root = 0; root < stamp->roots.size(); ++root) {
        const StampOperand& operand = stamp->roots[root];
        if (operand.place == OperandPlace::kBatch && operand.index == storage.slot) return stamp->names[root];
      }
    }
    return {};
  }

  // Who touched a storage last: what an op of the other stream waits for.
  struct StorageUse {
    std::int32_t writer = -1;
    std::array<std::int32_t, 2> reader{-1, -1};  // by stream: compute, tensor
  };

  const ScriptStamps& stamps_;
  std::int32_t layers_;
  const StepFrame& frame_;
  std::vector<Unit> units_;
  std::vector<std::int32_t> cells_;
  std::size_t batch_base_ = 0;
  std::vector<std::pair<std::size_t, std::int32_t>> copies_;            // cell and code, of the re-run that goes on
  std::vector<StorageUse> use_;                                         // by storage
  std::vector<std::int32_t> first_run_, last_forward_, last_backward_;  // script op by unit and op, -1: none yet
  std::array<std::int32_t, 2> waited_for_{-1, -1};                      // by stream: up to which op of the other one
  std::int32_t op_ = 0, waits_for_ = -1;                                // of the op being written
  MicroBatchScript script_;
};

}  // namespace

MicroBatchScript make_script(const ScriptStamps& stamps, std::int64_t layers, const PlacementPlan& plan, const ResidentStorages& residents,
                             const StepFrame& frame) {
  ScriptWriter writer(stamps, layers, residents, frame);
  writer.run_all(0, Phase::kForward);
  writer.replay(plan.forward);
  writer.run_all(writer.head(), Phase::kForward);
  writer.run_all(writer.head(), Phase::kBackward);
  writer.replay(plan.backward);
  writer.run_all(0, Phase::kBackward);
  return std::move(writer).finish();
}

}  // namespace stepsim
