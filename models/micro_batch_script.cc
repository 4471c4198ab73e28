#include "models/micro_batch_script.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "models/bucket_ops.h"
#include "models/graph_scopes.h"
#include "models/host_copies.h"
#include "models/script_writer.h"
#include "models/sharded_runs.h"
#include "models/storage_labels.h"
#include "models/unit_runs.h"
#include "models/weight_gradient_ops.h"
#include "sim/check.h"

namespace stepsim {

namespace {

// The embedding, a layer or the head.
struct Unit {
  const TemplateStamp* stamp = nullptr;
  std::int32_t number = 0;
  std::int32_t layer = -1;
  std::array<std::size_t, kPlacesPerMicroBatch> base{};  // into the cells, by place
  std::size_t first_forward = 0, first_backward = 0;     // of its ops among all units'
};

class PlanReplay {
 public:
  PlanReplay(OpGraphBuilder& builder, const ChunkStamps& stamps, const PlacementPlan& plan, std::span<const UnitResidents> residents,
             const StepLabels& labels, const ScriptOptions& options)
      : builder_(builder), stamps_(stamps), residents_(residents), labels_(labels), options_(options), graphs_(options.graphs_scopes) {
    add_units();
    read_moves(plan);
    add_batch();
    add_arrivals();
    if (options.sharding != nullptr) shards_.emplace(*options.sharding, writer_, labels, residents);
  }

  void forward(const PlacementPlan& plan) {
    std::vector<UnitRun> runs;
    if (stamps_.embedding != nullptr) runs.push_back(whole(0, PlanVerb::kForward));
    append_unit_runs(plan.forward, stamps_.embedding != nullptr ? 1 : 0, runs);
    if (stamps_.head != nullptr) runs.push_back(whole(last_unit(), PlanVerb::kForward));
    run_pass(runs, PassKind::kForward);
  }

  void backward(const PlacementPlan& plan) {
    std::vector<UnitRun> runs;
    if (stamps_.head != nullptr) runs.push_back(whole(last_unit(), PlanVerb::kBackward));
    append_unit_runs(plan.backward, stamps_.embedding != nullptr ? 1 : 0, runs);
    if (stamps_.embedding != nullptr) runs.push_back(whole(0, PlanVerb::kBackward));
    if (host_) find_ends_of_backward(runs);
    run_pass(runs, PassKind::kBackward);
  }

  // What run_pass left out, in the same order.
  void weight_gradients() {
    MicroBatchScript& script = writer_.script();
    deferring_ = false;
    for (const auto& [unit, op] : deferred_ops_) run(units_[at(unit)], op, Phase::kBackward);
    if (options_.defers_head) hold_stage_input();
    STEPSIM_CHECK(next_bucket_ == options_.buckets.size());
    script.pass_end[at(PassKind::kWeight)] = writer_.next_op();
  }

  MicroBatchScript finish() && {
    MicroBatchScript& script = writer_.script();
    if (host_) host_->finish();
    if (stamps_.head == nullptr) {
      script.output = output_;
      script.output_op = output_op_;
    }
    if (stamps_.embedding == nullptr) {
      script.input_gradient = cells_[units_.front().base[at(OperandPlace::kInputGradient)]];
      script.input_gradient_op = writer_.last_writer(script.input_gradient);
    }
    label_storages(script.storages, stamps_, labels_);
    return std::move(script);
  }

 private:
  // Cells hold the current storage code of: the units' own roots, the outputs between units (0 the chunk's input), their gradients, the
  // batch, what layers share.
  void add_units() {
    const std::size_t units = stamps_.units();
    STEPSIM_CHECK(residents_.size() == units);
    std::size_t own = 0, forward = 0, backward = 0;
    units_.resize(units);
    for (std::size_t number = 0; number < units; ++number) {
      Unit& unit = units_[number];
      unit.stamp = &stamps_.unit(number);
      unit.number = static_cast<std::int32_t>(number);
      unit.layer = stamps_.layer_of(number);
      unit.base[at(OperandPlace::kOwn)] = own;
      unit.first_forward = forward;
      unit.first_backward = backward;
      own += unit.stamp->roots.size();
      forward += unit.stamp->forward.size();
      backward += unit.stamp->backward.size();
      const bool sharded = options_.sharding != nullptr;
      weights_.push_back(code_of_resident(sharded && options_.sharding->weights ? StorageId{} : residents_[number].weights));
      gradients_.push_back(code_of_resident(sharded ? residents_[number].unsharded_gradients : residents_[number].gradients));
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
      unit.base[at(OperandPlace::kShared)] = unit.base[at(OperandPlace::kSharedGradient)] = batch_base_ + stamps_.batch.size();
    }
    cells_.assign(batch_base_ + stamps_.batch.size() + stamps_.shared, kNoCode);
    writer_.script().ops.reserve(forward + backward);
    writer_.script().storages.reserve(own);
    first_run_.assign(forward, -1);
    last_forward_.assign(forward, -1);
    last_backward_.assign(backward, -1);
    if (options_.defers_weight_gradients) {
      // Only linear layers are put off (sail-sg/zero-bubble-pipeline-parallelism, WeightGradStore); the embedding has none.
      for (const Unit& unit : units_) {
        const bool embedding = unit.number == 0 && stamps_.embedding != nullptr;
        deferrable_.push_back(embedding ? std::vector<bool>(unit.stamp->backward.size(), false) : weight_gradient_ops(*unit.stamp));
      }
    } else if (options_.defers_head) {
      for (const Unit& unit : units_) {
        std::vector<bool>& marked = deferrable_.emplace_back();
        for (const TemplateOp& op : unit.stamp->source->backward) marked.push_back(op.deferrable);
      }
    }
  }

  // Before the passes: which storages come in slices, and which of those that go come back.
  void read_moves(const PlacementPlan& plan) {
    for (const PlanStep& step : plan.forward) {
      if (!moves_storage(step.verb)) continue;
      if (!host_) host_.emplace(builder_, writer_, labels_, options_.offload);
      if (step.slices > 1) slices_of_[slot_cell(step)] = step.slices;
    }
    for (const PlanStep& step : plan.backward) {
      if (step.verb == PlanVerb::kCopyIn) comes_back_.insert({slot_cell(step), step.slice});
    }
  }

  // Each unit's last backward op that is not put off. The plan runs each of them once.
  void find_ends_of_backward(const std::vector<UnitRun>& runs) {
    end_of_backward_.assign(units_.size(), -1);
    for (const UnitRun& run : runs) {
      for (const PlanStep& step : run.steps) {
        if (step.verb != PlanVerb::kBackward) continue;
        for (std::int32_t op = step.first; op <= step.last; ++op) {
          const bool later = !deferrable_.empty() && deferrable_[at(run.unit)][at(op)];
          if (!later) end_of_backward_[at(run.unit)] = op;
        }
      }
    }
  }

  // Tensors of the batch that the chunk's templates name.
  void add_batch() {
    std::vector<bool> used(stamps_.batch.size(), false);
    for (const Unit& unit : units_) {
      for (const StampOperand& root : unit.stamp->roots) {
        if (root.place == OperandPlace::kBatch && root.size.value > 0) used[at(root.index)] = true;
      }
    }
    for (std::size_t tensor = 0; tensor < stamps_.batch.size(); ++tensor) {
      if (!used[tensor]) continue;
      cells_[batch_base_ + tensor] = writer_.add_storage({.size = stamps_.batch[tensor].size,
                                                          .role = labels_.outside_layers,
                                                          .name = stamps_.batch[tensor].label,
                                                          .unit = -1,
                                                          .slot = static_cast<SlotIndex>(tensor)});
    }
  }

  // Storages that transfers write: the first unit's input, the last one's output gradient; parts of them where an all-gather joins them.
  void add_arrivals() {
    MicroBatchScript& script = writer_.script();
    if (stamps_.embedding == nullptr) {
      const Unit& first = units_.front();
      const SlotIndex slot = first.stamp->table.input;
      const ScriptStorage storage{
          .size = first.stamp->source->slots[at(slot)].size, .role = {}, .name = {}, .layer = first.layer, .unit = 0, .slot = slot};
      const std::size_t place = first.base[at(OperandPlace::kInput)];
      const auto sliced = slices_of_.find(place);
      if (sliced != slices_of_.end()) {
        claim_slices(place, storage, sliced->second);
      } else {
        cells_[place] = writer_.add_storage(storage);
      }
      const std::vector<std::int32_t> codes = sliced != slices_of_.end() ? sliced_[place] : std::vector<std::int32_t>{cells_[place]};
      script.input = arrival(codes, ScriptWriter::Arrival::kInput);
      if (!options_.input_gather) script.input_slices = static_cast<std::int32_t>(codes.size());
    }
    if (stamps_.head != nullptr) return;
    const Unit& last = units_.back();
    const SlotIndex slot = last.stamp->table.root[at(last.stamp->source->output_gradient)];
    const std::int32_t code = writer_.add_storage({.size = last.stamp->source->slots[at(slot)].size,
                                                   .role = labels_.role(Role::kActivationGradients),
                                                   .name = last.stamp->names[at(slot)],
                                                   .layer = last.layer,
                                                   .unit = kUnlabelled});
    cells_[last.base[at(OperandPlace::kOutputGradient)]] = code;
    script.gradient = arrival({code}, ScriptWriter::Arrival::kGradient);
  }

  // Of a storage or its slices: the first that a transfer writes.
  std::int32_t arrival(const std::vector<std::int32_t>& codes, ScriptWriter::Arrival by) {
    if (!options_.input_gather) {
      for (const std::int32_t code : codes) writer_.arrives(code, by);
      return codes.front();
    }
    const std::int32_t received = writer_.add_storage({.size = Bytes(size_of(codes).value / options_.input_gather->ranks),
                                                       .role = labels_.role(Role::kCommunication),
                                                       .name = builder_.label("received part"),
                                                       .unit = kUnlabelled});
    whole_of_[static_cast<std::size_t>(by)] = codes;
    writer_.arrives(received, by);
    return received;
  }

  Bytes size_of(const std::vector<std::int32_t>& codes) const {
    Bytes sum{};
    for (const std::int32_t code : codes) sum += writer_.size(code);
    return sum;
  }

  // The all-gather of a received part.
  void join_parts(ScriptWriter::Arrival by, std::int32_t part, Phase phase) {
    const std::vector<std::int32_t>& whole = whole_of_[static_cast<std::size_t>(by)];
    if (!options_.input_gather || part < 0) return;
    Collective work = *options_.input_gather;
    work.message = size_of(whole);
    const bool forward = by == ScriptWriter::Arrival::kInput;
    writer_.begin({.work = builder_.work(work),
                   .kind = builder_.label(forward ? "pipeline input all-gather" : "pipeline gradient all-gather",
                                          static_cast<std::int32_t>(Group::kTensor)),
                   .phase = phase,
                   .stream = PassStream::kTensor,
                   .queued = true,
                   .layer = -1});
    writer_.read(part, Bytes(0), writer_.size(part));
    for (const std::int32_t code : whole) writer_.write(code, Bytes(0), writer_.size(code));
    writer_.end();
  }

  std::int32_t last_unit() const { return static_cast<std::int32_t>(units_.size()) - 1; }

  UnitRun whole(std::int32_t unit, PlanVerb verb) const {
    const TemplateStamp& stamp = *units_[at(unit)].stamp;
    const std::size_t ops = (verb == PlanVerb::kForward ? stamp.forward : stamp.backward).size();
    UnitRun run{.unit = unit, .lead = {}, .steps = {}};
    if (ops > 0) run.steps.push_back({.verb = verb, .layer = 0, .first = 0, .last = static_cast<std::int32_t>(ops) - 1});
    return run;
  }

  void run_pass(const std::vector<UnitRun>& runs, PassKind pass) {
    MicroBatchScript& script = writer_.script();
    const bool backward = pass == PassKind::kBackward;
    deferring_ = backward && !deferrable_.empty();
    if (backward) {
      join_parts(ScriptWriter::Arrival::kGradient, script.gradient, Phase::kBackward);
    } else {
      join_parts(ScriptWriter::Arrival::kInput, script.input, Phase::kForward);
    }
    if (shards_) shards_->begin_pass(pass, units_of(runs));
    for (std::size_t index = 0; index < runs.size(); ++index) {
      for (const PlanStep& step : runs[index].lead) move(step, pass);
      if (pass == PassKind::kForward) {
        script.forward_units.push_back(runs[index].unit);
        script.forward_begins.push_back(writer_.next_op());
      }
      if (host_ && shards_) host_->flush();  // compute copies weights before the run's first op
      if (shards_) shards_->before_run(index, weights_, gradients_);
      replay(runs[index], pass);
      script.unit_ends[at(pass)].push_back(writer_.last_compute_op());
      if (shards_) shards_->after_run(index, weights_, gradients_, options_.reduces);
      if (backward && !options_.updates.empty()) update_after(runs, index);
    }
    // schedules.py backward_step: its caller holds the output until it returns.
    if (backward && options_.keeps_output && stamps_.head == nullptr) writer_.hold_by_last(output_);
    if (host_) host_->flush();
    script.pass_end[at(pass)] = writer_.next_op();
    if (pass != PassKind::kForward) return;
    // The caller holds the batch until its forward pass returns (Megatron-LM forward_step, and every training loop like it).
    for (std::size_t tensor = 0; tensor < stamps_.batch.size(); ++tensor) {
      const std::int32_t code = cells_[batch_base_ + tensor];
      if (code != kNoCode && writer_.next_op() > 0) writer_.hold_by_last(code);
    }
    if (stamps_.head != nullptr) return;
    output_ = cells_[units_.back().base[at(OperandPlace::kOutput)]];
    output_op_ = writer_.last_writer(output_);
  }

  // The head's input that waits for its weight gradient has autograd's graph behind it. The graph's leaf is what the stage received, which
  // so stays with its gradient (Megatron-LM layers.py embedding_activation_buffer: two hidden states a micro-batch more than the spec's
  // rule in gpt3_mcore_te_tp2_pp2_defer_embedding_wgrad_compute).
  void hold_stage_input() {
    if (stamps_.embedding != nullptr || deferred_ops_.empty()) return;
    for (const OperandPlace place : {OperandPlace::kInput, OperandPlace::kInputGradient}) {
      const std::int32_t code = cells_[units_.front().base[at(place)]];
      if (code != kNoCode) writer_.hold_by_last(code);
    }
  }

  // An optimizer in backward: a unit is updated behind its last run; where its gradients are sharded, behind their reduction, on its
  // stream.
  void update_after(const std::vector<UnitRun>& runs, std::size_t index) {
    const auto runs_again = [&](const Unit& unit) {
      return std::any_of(runs.begin() + static_cast<std::ptrdiff_t>(index) + 1, runs.end(),
                         [&](const UnitRun& run) { return run.unit == unit.number; });
    };
    for (const Unit& unit : units_) {
      const bool with_root = shards_ && shards_->in_root(unit.number);
      const bool here = with_root ? index + 1 == runs.size() : runs[index].unit == unit.number && !runs_again(unit);
      if (here) update(unit);
    }
  }

  void update(const Unit& unit) {
    for (const UpdateKernel& kernel : options_.updates[at(unit.number)]) {
      writer_.begin({.work = kernel.work,
                     .kind = kernel.kind,
                     .phase = Phase::kOptimizer,
                     .stream = shards_ ? PassStream::kReduce : PassStream::kCompute,
                     .layer = unit.layer});
      for (const Tensor& tensor : kernel.reads) writer_.read(~tensor.storage.index, tensor.offset, tensor.size);
      for (const Tensor& tensor : kernel.writes) writer_.write(~tensor.storage.index, tensor.offset, tensor.size);
      writer_.end();
    }
  }

  static std::vector<std::int32_t> units_of(const std::vector<UnitRun>& runs) {
    std::vector<std::int32_t> units;
    for (const UnitRun& run : runs) units.push_back(run.unit);
    return units;
  }

  void replay(const UnitRun& unit_run, PassKind pass) {
    Unit& unit = units_[at(unit_run.unit)];
    for (const PlanStep& step : unit_run.steps) {
      if (moves_storage(step.verb)) {
        move(step, pass);
        continue;
      }
      if (step.verb == PlanVerb::kDrop) {
        cells_[cell(unit, unit.stamp->roots[at(step.first)])] = kNoCode;
        continue;
      }
      const Phase phase = step.verb == PlanVerb::kBackward ? Phase::kBackward : step.again ? Phase::kRecompute : Phase::kForward;
      for (std::int32_t op = step.first; op <= step.last; ++op) {
        if (deferring_ && phase == Phase::kBackward && deferrable_[at(unit.number)][at(op)]) {
          deferred_ops_.emplace_back(unit.number, op);
        } else {
          run(unit, op, phase);
        }
      }
    }
  }

  static std::int32_t code_of_resident(StorageId storage) { return storage.valid() ? ~storage.index : kNoCode; }

  static std::size_t cell(const Unit& unit, const StampOperand& operand) { return unit.base[at(operand.place)] + at(operand.index); }

  // The code of an operand that must be there. In a re-run, a fresh copy of a kept storage stands for it.
  std::int32_t code_of(const Unit& unit, const StampOperand& operand, Phase phase) const {
    switch (operand.place) {
      case OperandPlace::kWeights:
        return weights_[at(unit.number)];
      case OperandPlace::kWeightGradients:
        return gradients_[at(unit.number)];
      case OperandPlace::kTiedWeights:
        return weights_.front();
      case OperandPlace::kTiedWeightGradients:
        return gradients_.front();
      default:
        break;
    }
    const std::size_t place = cell(unit, operand);
    if (phase == Phase::kRecompute) {
      for (auto copy = copies_.rbegin(); copy != copies_.rend(); ++copy) {
        if (copy->first == place) return copy->second;
      }
    }
    STEPSIM_CHECK(cells_[place] != kNoCode);
    return cells_[place];
  }

  static bool is_shared(const StampOperand& operand) {
    return operand.place == OperandPlace::kShared || operand.place == OperandPlace::kSharedGradient;
  }

  static SlotIndex shared_root(const TemplateStamp& stamp, const StampOperand& operand) {
    const auto found = std::find_if(stamp.roots.begin(), stamp.roots.end(),
                                    [&](const StampOperand& root) { return root.place == operand.place && root.index == operand.index; });
    STEPSIM_CHECK(found != stamp.roots.end());
    return static_cast<SlotIndex>(found - stamp.roots.begin());
  }

  // Of layers' additions to a shared gradient the first makes it, whichever layer that is.
  bool makes_shared_gradient(const Unit& unit, const StampOperand& operand) const {
    return operand.place == OperandPlace::kSharedGradient && cells_[cell(unit, operand)] == kNoCode;
  }

  void claim(const Unit& unit, const StampOperand& operand, Phase phase) {
    const TemplateStamp& stamp = *unit.stamp;
    const std::size_t place = cell(unit, operand);
    SlotIndex slot = operand.index;
    if (operand.place == OperandPlace::kOutput) slot = stamp.table.output;
    if (operand.place == OperandPlace::kInputGradient) slot = stamp.table.root[at(stamp.source->input_gradient)];
    if (is_shared(operand)) slot = shared_root(stamp, operand);
    const bool again = phase == Phase::kRecompute;
    const ScriptStorage storage{.size = stamp.source->slots[at(slot)].size,
                                .role = {},
                                .name = {},
                                .layer = unit.layer,
                                .unit = unit.number,
                                .slot = slot,
                                .made_again = again};
    const auto sliced = slices_of_.find(place);
    if (sliced != slices_of_.end() && !again) {
      claim_slices(place, storage, sliced->second);
      return;
    }
    const std::int32_t code = writer_.add_storage(storage);
    if (again && (cells_[place] != kNoCode || on_host_.contains(place))) {
      copies_.emplace_back(place, code);  // not dropped: backward goes on reading the kept one, wherever it is
    } else {
      cells_[place] = code;
    }
  }

  // The last slice has what a division leaves.
  void claim_slices(std::size_t place, ScriptStorage storage, std::int32_t count) {
    const Bytes whole = storage.size;
    std::vector<std::int32_t>& codes = sliced_[place];
    codes.clear();
    storage.size = Bytes(whole.value / count);
    for (std::int32_t slice = 0; slice < count; ++slice) {
      if (slice + 1 == count) storage.size = Bytes(whole.value - whole.value / count * (count - 1));
      codes.push_back(writer_.add_storage(storage));
    }
    cells_[place] = codes.front();
  }

  // The slices of an operand, null where its storage is whole. An op that touches a part of it is taken to touch all slices.
  const std::vector<std::int32_t>* slices(const Unit& unit, const StampOperand& operand, Phase phase) const {
    if (sliced_.empty() || at(operand.place) >= kPlacesPerMicroBatch) return nullptr;
    const std::size_t place = cell(unit, operand);
    const auto found = sliced_.find(place);
    if (found == sliced_.end()) return nullptr;
    const bool fresh = phase == Phase::kRecompute &&
                       std::any_of(copies_.begin(), copies_.end(), [place](const auto& copy) { return copy.first == place; });
    return fresh ? nullptr : &found->second;
  }

  void read(const Unit& unit, const StampOperand& operand, Phase phase) {
    if (const std::vector<std::int32_t>* codes = slices(unit, operand, phase)) {
      for (const std::int32_t code : *codes) writer_.read(code, Bytes(0), writer_.size(code));
    } else {
      const std::int32_t code = code_of(unit, operand, phase);
      const Bytes whole = code < 0 && kept_smaller(unit) ? builder_.storage(StorageId{~code}).size : operand.offset + operand.size;
      const Bytes offset = std::min(operand.offset, whole);
      writer_.read(code, offset, std::min(operand.size, whole - offset));
    }
  }

  // Weights that are kept in fewer bits than they are computed in: where each of them lies is not said.
  bool kept_smaller(const Unit& unit) const {
    const StorageId weights = residents_[at(unit.number)].weights;
    return weights.valid() && builder_.storage(weights).size < unit.stamp->own_weights;
  }

  void write(const Unit& unit, const StampOperand& operand, Phase phase) {
    if (const std::vector<std::int32_t>* codes = slices(unit, operand, phase)) {
      for (const std::int32_t code : *codes) writer_.write(code, Bytes(0), writer_.size(code));
      return;
    }
    const std::int32_t code = code_of(unit, operand, phase);
    // Weights and gradients that live all step belong to the compute stream until they are reduced.
    STEPSIM_CHECK(code >= 0 || writer_.op().stream == PassStream::kCompute);
    writer_.write(code, operand.offset, operand.size);
  }

  void hold(const Unit& unit, const StampOperand& operand, Phase phase) {
    if (const std::vector<std::int32_t>* codes = slices(unit, operand, phase)) {
      for (const std::int32_t code : *codes) writer_.hold(code);
    } else {
      writer_.hold(code_of(unit, operand, phase));
    }
  }

  std::size_t slot_cell(const PlanStep& step) const {
    const Unit& unit = units_[at(step.layer + (stamps_.embedding != nullptr ? 1 : 0))];
    return cell(unit, unit.stamp->roots[at(step.first)]);
  }

  // A step of offload.
  void move(const PlanStep& step, PassKind pass) {
    const Unit& unit = units_[at(step.layer + (stamps_.embedding != nullptr ? 1 : 0))];
    const std::string& name = unit.stamp->source->slots[at(step.first)].name;
    const std::size_t place = slot_cell(step);
    const auto sliced = sliced_.find(place);
    std::int32_t& code = sliced == sliced_.end() ? cells_[place] : sliced->second[static_cast<std::size_t>(step.slice)];
    std::int32_t& away = away_[{place, step.slice}];
    switch (step.verb) {
      case PlanVerb::kCopyOut:
        STEPSIM_CHECK(code != kNoCode);
        away = code;
        host_->copy_out(code, unit.layer, name, comes_back_.contains({place, step.slice}));
        return;
      case PlanVerb::kWaitOut:
        host_->wait(away, pass == PassKind::kForward ? Phase::kForward : Phase::kBackward, false);
        return;
      case PlanVerb::kRelease:
        host_->wait(away, pass == PassKind::kForward ? Phase::kForward : Phase::kBackward, true);
        code = kNoCode;
        on_host_.insert(place);
        return;
      case PlanVerb::kReleaseByEvent:
        host_->release_by_event(away);
        code = kNoCode;
        on_host_.insert(place);
        return;
      case PlanVerb::kCopyIn:
        STEPSIM_CHECK(code == kNoCode);
        on_host_.erase(place);
        code =
            host_->copy_in(away, {.size = {}, .role = {}, .name = {}, .layer = unit.layer, .unit = unit.number, .slot = step.first}, name);
        return;
      case PlanVerb::kForward:
      case PlanVerb::kBackward:
      case PlanVerb::kDrop:
        break;
    }
    check_failed("a step of offload", __FILE__, __LINE__);
  }

  void run(const Unit& unit, std::int32_t index, Phase phase) {
    const bool backward = phase == Phase::kBackward;
    if (host_) host_->flush();
    const StampOp& source = (backward ? unit.stamp->backward : unit.stamp->forward)[at(index)];
    if (backward) copies_.clear();
    const std::int32_t number = writer_.begin({.work = source.work,
                                               .kind = source.kind,
                                               .phase = phase,
                                               .stream = pass_stream(source.stream),
                                               .queued = source.queued,
                                               .group = source.group,
                                               .layer = unit.layer,
                                               .graph = graphs_.of(*unit.stamp->source, unit.layer, index, phase, writer_.next_op())});
    writer_.script().graphs = std::max(writer_.script().graphs, writer_.op().graph + 1);
    writer_.op().launched_after = std::exchange(host_read_, source.host_reads ? number : -1);
    if (phase == Phase::kForward && !batch_claimed_) claim_batch();
    for (const StampOperand& operand : source.reads) read(unit, operand, phase);
    for (const StampOperand& operand : source.updates) {
      if (makes_shared_gradient(unit, operand)) {
        claim(unit, operand, phase);
      } else {
        read(unit, operand, phase);
      }
      write(unit, operand, phase);
    }
    for (const StampOperand& operand : source.writes) {
      if (operand.place == OperandPlace::kSharedGradient ? makes_shared_gradient(unit, operand) : operand.claims) {
        claim(unit, operand, phase);
      }
      write(unit, operand, phase);
    }
    for (const StampOperand& operand : source.holds) hold(unit, operand, phase);
    wait_for_listed(unit, source, backward);
    record_run(unit, index, number, phase);
    if (host_ && backward && !end_of_backward_.empty() && end_of_backward_[at(unit.number)] == index) host_->end_of_backward(unit.layer);
    writer_.end();
    while (backward && next_bucket_ < options_.buckets.size() && complete(options_.buckets[next_bucket_])) {
      const GradientBucket& bucket = options_.buckets[next_bucket_++];
      buckets_.reduce(writer_, bucket, next_bucket_ == options_.buckets.size());
    }
  }

  bool complete(const GradientBucket& bucket) const {
    return std::all_of(bucket.makers.begin(), bucket.makers.end(), [this](const auto& maker) {
      return last_backward_[units_[at(maker.first)].first_backward + at(maker.second)] >= 0;
    });
  }

  void claim_batch() {
    batch_claimed_ = true;
    for (std::size_t tensor = 0; tensor < stamps_.batch.size(); ++tensor) {
      const std::int32_t code = cells_[batch_base_ + tensor];
      if (code != kNoCode) writer_.write(code, Bytes(0), stamps_.batch[tensor].size);
    }
  }

  void wait_for_listed(const Unit& unit, const StampOp& source, bool backward) {
    for (const std::int32_t before : source.after) {
      writer_.wait_for(backward ? last_backward_[unit.first_backward + at(before)] : last_forward_[unit.first_forward + at(before)]);
    }
  }

  void record_run(const Unit& unit, std::int32_t index, std::int32_t number, Phase phase) {
    if (phase == Phase::kBackward) {
      last_backward_[unit.first_backward + at(index)] = number;
      return;
    }
    const std::size_t place = unit.first_forward + at(index);
    last_forward_[place] = number;
    if (phase == Phase::kForward) first_run_[place] = number;
    if (phase == Phase::kRecompute) writer_.op().origin = first_run_[place];
  }

  static constexpr std::int32_t kUnlabelled = -1;  // of a storage that has its role and name already

  OpGraphBuilder& builder_;
  const ChunkStamps& stamps_;
  std::span<const UnitResidents> residents_;
  const StepLabels& labels_;
  const ScriptOptions& options_;
  GraphScopes graphs_;
  ScriptWriter writer_;
  std::optional<ShardedRuns> shards_;
  std::vector<Unit> units_;
  std::vector<std::int32_t> weights_, gradients_;  // by unit: codes
  std::vector<std::int32_t> cells_;
  std::size_t batch_base_ = 0;
  std::array<std::vector<std::int32_t>, 3> whole_of_;                   // by Arrival: what its all-gather writes
  std::vector<std::pair<std::size_t, std::int32_t>> copies_;            // cell and code, of the re-run that goes on
  std::optional<HostCopies> host_;                                      // none: the plan moves nothing
  std::map<std::size_t, std::int32_t> slices_of_;                       // by cell: of how many slices its storage will be made
  std::map<std::size_t, std::vector<std::int32_t>> sliced_;             // by cell: codes of its slices
  std::set<std::pair<std::size_t, std::int16_t>> comes_back_;           // cells and slices that are copied back
  std::map<std::pair<std::size_t, std::int16_t>, std::int32_t> away_;   // by cell and slice: what was copied out
  std::set<std::size_t> on_host_;                                       // cells of what is to be copied back
  std::vector<std::int32_t> end_of_backward_;                           // by unit: its last backward op that is not put off
  std::vector<std::int32_t> first_run_, last_forward_, last_backward_;  // script op by unit and op, -1: none yet
  std::vector<std::vector<bool>> deferrable_;                           // by unit: backward ops
  std::vector<std::pair<std::int32_t, std::int32_t>> deferred_ops_;     // unit and op
  bool deferring_ = false, batch_claimed_ = false;
  std::int32_t output_ = -1, output_op_ = -1;  // as the forward pass left it
  BucketOps buckets_;
  std::int32_t host_read_ = -1;  // the op that was written last, if the host waits for it
  std::size_t next_bucket_ = 0;
};

// A chunk that holds nothing hands on what it receives.
MicroBatchScript handed_on(OpGraphBuilder& builder, const ChunkStamps& stamps, const StepLabels& labels) {
  const TemplateStamp& layer = stamps.layer(std::max<std::int64_t>(stamps.first_layer - 1, 0));
  MicroBatchScript script;
  const auto add = [&](SlotIndex slot, LabelId role) {
    const Bytes size = layer.source->slots[at(slot)].size;
    script.storages.push_back({.size = size, .role = role, .name = builder.label("handed on"), .unit = -1});
    return static_cast<std::int32_t>(script.storages.size()) - 1;
  };
  script.input = script.output = add(layer.table.input, labels.outside_layers);
  script.gradient = script.input_gradient =
      add(layer.table.root[at(layer.source->output_gradient)], labels.role(Role::kActivationGradients));
  return script;
}

}  // namespace

MicroBatchScript make_script(OpGraphBuilder& builder, const ChunkStamps& stamps, const PlacementPlan& plan,
                             std::span<const UnitResidents> residents, const StepLabels& labels, const ScriptOptions& options) {
  if (stamps.units() == 0) return handed_on(builder, stamps, labels);
  PlanReplay replay(builder, stamps, plan, residents, labels, options);
  replay.forward(plan);
  replay.backward(plan);
  replay.weight_gradients();
  return std::move(replay).finish();
}

}  // namespace stepsim
