#include "models/offload_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "models/placement_rows.h"
#include "sim/check.h"
#include "sim/op_work.h"

namespace stepsim {

namespace {

// A place in the backward plan: before `op` of a step; one behind the last: after the step.
struct BackwardPlace {
  std::int32_t step = 0, op = 0;
  friend auto operator<=>(const BackwardPlace&, const BackwardPlace&) = default;
};

// What the offload policy has to know of a plan.
class PlanReading {
 public:
  PlanReading(const PlacementPlan& plan, const LayerStack& stack)
      : plan_(plan),
        stack_(stack),
        begins_(stack.slot_begins()),
        dropped_(begins_.back(), false),
        need_(begins_.back()),
        backward_steps_(static_cast<std::size_t>(stack.layers())) {
    for (const PlanStep& step : plan.forward) {
      if (step.verb == PlanVerb::kDrop) dropped_[place(step.layer, step.first)] = true;
    }
    for (std::size_t index = 0; index < plan.backward.size(); ++index) read_step(static_cast<std::int32_t>(index));
    if (plan.backward.empty()) return;
    begin_ = {0, first_of(plan.backward.front())};
  }

  bool dropped(std::int32_t layer, SlotIndex root) const {
    if (dropped_[place(layer, root)]) return true;
    // A layer's input may be dropped as the output of the layer before.
    if (layer == 0 || root != stack_.table(layer).input) return false;
    const SlotIndex output = stack_.table(layer - 1).output;
    return output != kNoSlot && dropped_[place(layer - 1, output)];
  }
  // The first op of the backward plan that reads it.
  std::optional<BackwardPlace> need(std::int32_t layer, SlotIndex root) const { return need_[place(layer, root)]; }
  BackwardPlace begin() const { return begin_; }

  // Before the visit to a layer that comes `lookahead` visits before the one with `place`.
  BackwardPlace visit_before(BackwardPlace place, std::int64_t lookahead) const {
    const std::int64_t visit = visit_of_step_[at(place.step)] - lookahead;
    return visit < 0 ? begin_ : visits_[static_cast<std::size_t>(visit)];
  }

  // Before a layer's first backward op.
  std::optional<BackwardPlace> begin_of(std::int32_t layer) const {
    if (backward_steps_[at(layer)].empty()) return std::nullopt;
    const std::int32_t index = backward_steps_[at(layer)].front();
    return BackwardPlace{index, plan_.backward[at(index)].first};
  }

  // After an op of a layer's backward.
  std::optional<BackwardPlace> after_backward(std::int32_t layer, std::int32_t op) const {
    for (const std::int32_t index : backward_steps_[at(layer)]) {
      const PlanStep& step = plan_.backward[at(index)];
      if (step.first <= op && op <= step.last) return BackwardPlace{index, op + 1};
    }
    return std::nullopt;
  }

 private:
  std::size_t place(std::int32_t layer, SlotIndex root) const { return begins_[at(layer)] + at(root); }
  static std::int32_t first_of(const PlanStep& step) { return step.verb == PlanVerb::kDrop ? 0 : step.first; }

  void read_step(std::int32_t index) {
    const PlanStep& step = plan_.backward[at(index)];
    const bool same = index > 0 && plan_.backward[at(index - 1)].layer == step.layer;
    if (!same) visits_.push_back({index, first_of(step)});
    visit_of_step_.push_back(static_cast<std::int64_t>(visits_.size()) - 1);
    if (step.verb == PlanVerb::kDrop) return;
    if (step.verb == PlanVerb::kBackward) backward_steps_[at(step.layer)].push_back(index);
    for (std::int32_t op = step.first; op <= step.last; ++op) {
      const SlotTable& table = stack_.table(step.layer);
      const auto& needs = step.verb == PlanVerb::kForward ? table.forward_needs[at(op)] : table.backward_needs[at(op)];
      for (const SlotIndex root : needs) note(step.layer, root, {index, op});
    }
  }

  void note(std::int32_t layer, SlotIndex root, BackwardPlace by) {
    std::optional<BackwardPlace>& need = need_[place(layer, root)];
    if (!need) need = by;
  }

  const PlacementPlan& plan_;
  const LayerStack& stack_;
  std::vector<std::size_t> begins_;                        // by layer
  std::vector<bool> dropped_;                              // by layer and root
  std::vector<std::optional<BackwardPlace>> need_;         // by layer and root
  std::vector<std::vector<std::int32_t>> backward_steps_;  // by layer
  std::vector<BackwardPlace> visits_;                      // their begins
  std::vector<std::int64_t> visit_of_step_;
  BackwardPlace begin_;
};

// A place in the forward plan: after an op of a layer, -1: before its first one. (layers, -1): the end.
struct ForwardPlace {
  std::int32_t layer = 0, op = -1;
  friend auto operator<=>(const ForwardPlace&, const ForwardPlace&) = default;
};

// Where one layer's slots are made and read last in forward.
struct SlotPlaces {
  std::vector<std::int32_t> made, last_read;  // by root: forward op; -1: before the layer
};

SlotPlaces slot_places(const LayerTemplate& layer, const SlotTable& table) {
  SlotPlaces places{std::vector<std::int32_t>(layer.slots.size(), -1), std::vector<std::int32_t>(layer.slots.size(), -1)};
  for (std::size_t root = 0; root < layer.slots.size(); ++root) {
    if (static_cast<SlotIndex>(root) != table.input && !table.makers[root].empty()) places.made[root] = table.makers[root].back();
  }
  for (std::size_t op = 0; op < layer.forward.size(); ++op) {
    for (const SlotIndex root : table.forward_needs[op]) places.last_read[at(root)] = static_cast<std::int32_t>(op);
  }
  return places;
}

// A name of the policy, resolved in a layer.
struct NamedGroup {
  std::vector<SlotIndex> roots;
  std::int32_t last_forward = -1, last_backward = -1;  // of a module; of other names the last op that makes or reads one of its tensors
};

NamedGroup named_group(const LayerTemplate& layer, const SlotTable& table, const SlotPlaces& places, RowSlots& slots,
                       const std::string& name) {
  NamedGroup group{.roots = slots.of(name, true)};
  for (const OffloadModule& module : offload_modules(layer, table)) {
    if (module.name == name) return {group.roots, module.last_forward, module.last_backward};
  }
  for (const SlotIndex root : group.roots) {
    group.last_forward = std::max({group.last_forward, places.made[at(root)], places.last_read[at(root)]});
    for (std::size_t op = 0; op < layer.backward.size(); ++op) {
      const std::vector<SlotIndex>& needs = table.backward_needs[op];
      if (std::binary_search(needs.begin(), needs.end(), root)) {
        group.last_backward = std::max(group.last_backward, static_cast<std::int32_t>(op));
      }
    }
  }
  return group;
}

class Selecting {
 public:
  Selecting(const PlacementPlan& plan, const LayerStack& stack, const PlacementPolicy& policy, std::int64_t stage)
      : stack_(stack), layers_(static_cast<std::int32_t>(stack.layers())), policy_(policy), stage_(stage), reading_(plan, stack) {
    for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
      places_.push_back(slot_places(stack.kind(kind), stack.kind_table(kind)));
      slots_.emplace_back(stack.kind(kind), stack.kind_table(kind));
    }
    for (const std::string& name : policy.offload.selection.names) add_group(name);
  }

  std::vector<MovedTensor> tensors() {
    select();
    const OffloadSelection& selection = policy_.offload.selection;
    keep_small();
    std::stable_sort(moved_.begin(), moved_.end(), [this](const MovedTensor& a, const MovedTensor& b) {
      return std::tuple(a.layer, issue_op(a), a.name, a.root) < std::tuple(b.layer, issue_op(b), b.name, b.root);
    });
    keep_groups(selection);
    keep_stage_share(selection.less_per_stage);
    if (selection.budget) keep_beyond(*selection.budget);
    return std::move(moved_);
  }

  // A tensor's group as `layer` has it: its last ops are -1 where the layer has nothing of the name.
  const NamedGroup& group(const MovedTensor& tensor, std::int32_t layer) const {
    return groups_[at(tensor.name)][at(stack_.kind_of(layer))];
  }
  const PlanReading& reading() const { return reading_; }
  const SlotPlaces& places(std::int32_t layer) const { return places_[at(stack_.kind_of(layer))]; }
  // The tensor's counterpart in another layer, of the same name; none if that is of a kind that has none.
  std::optional<SlotIndex> counterpart(const MovedTensor& tensor, std::int32_t layer) const {
    if (stack_.kind_of(tensor.layer) == stack_.kind_of(layer)) return tensor.root;
    const std::vector<Slot>& slots = stack_.layer(layer).slots;
    const std::string& name = stack_.layer(tensor.layer).slots[at(tensor.root)].name;
    const auto found = std::find_if(slots.begin(), slots.end(), [&](const Slot& slot) { return slot.name == name; });
    if (found == slots.end()) return std::nullopt;
    return stack_.table(layer).root[static_cast<std::size_t>(found - slots.begin())];
  }

  // The forward op of its layer after which its copy is issued, where that is in its own layer.
  std::int32_t issue_op(const MovedTensor& tensor) const {
    const std::int32_t made = places(tensor.layer).made[at(tensor.root)];
    switch (policy_.offload.schedule.copy_out) {
      case CopyOutPlace::kProduction:
        return made;
      case CopyOutPlace::kModuleEnd:
        return std::max(made, group(tensor, tensor.layer).last_forward);
      case CopyOutPlace::kLayerEnd:
      case CopyOutPlace::kNextLayer:
        return static_cast<std::int32_t>(stack_.layer(tensor.layer).forward.size()) - 1;
    }
    check_failed("place of a copy", __FILE__, __LINE__);
  }

 private:
  std::int32_t add_group(const std::string& name) {
    const auto known = std::find(names_.begin(), names_.end(), name);
    if (known != names_.end()) return static_cast<std::int32_t>(known - names_.begin());
    names_.push_back(name);
    std::vector<NamedGroup>& of_kinds = groups_.emplace_back();
    for (std::int32_t kind = 0; kind < stack_.kinds(); ++kind) {
      of_kinds.push_back(named_group(stack_.kind(kind), stack_.kind_table(kind), places_[at(kind)], slots_[at(kind)], name));
    }
    return static_cast<std::int32_t>(names_.size()) - 1;
  }

  // Rows have the last word on a tensor; else the first name that selects it.
  void select() {
    const OffloadSelection& selection = policy_.offload.selection;
    std::vector<std::vector<std::int32_t>> name_of;  // by kind and root
    for (std::int32_t kind = 0; kind < stack_.kinds(); ++kind) {
      name_of.emplace_back(stack_.kind(kind).slots.size(), -1);
      for (std::size_t name = groups_.size(); name-- > 0;) {
        for (const SlotIndex root : groups_[name][at(kind)].roots) name_of.back()[at(root)] = static_cast<std::int32_t>(name);
      }
    }
    const LastRows rows(stack_, policy_.rows);
    const std::int64_t first = selection.first_layers > 0 ? std::min<std::int64_t>(selection.first_layers, layers_) : layers_;
    const std::int64_t end = std::min(first, layers_ - std::min<std::int64_t>(selection.keep_last_layers, layers_));
    for (std::int32_t layer = 0; layer < layers_; ++layer) {
      const std::vector<std::int32_t>& name_of_root = name_of[at(stack_.kind_of(layer))];
      for (SlotIndex root = 0; at(root) < name_of_root.size(); ++root) {
        const std::int32_t index = rows.row(layer, root);
        const PlacementRow* row = index == LastRows::kNone ? nullptr : &policy_.rows[at(index)];
        MovedTensor tensor{.layer = layer, .root = root, .name = name_of_root[at(root)]};
        if (row != nullptr) {
          if (row->action != PlacementAction::kOffload) continue;
          tensor.name = add_group(row->module_or_slot);
          tensor.slices = row->slices;
          tensor.of_slices = row->of_slices;
        } else if (layer >= end || tensor.name < 0) {
          continue;
        }
        if (!reading_.dropped(layer, root) && reading_.need(layer, root)) moved_.push_back(tensor);
      }
    }
  }

  const Slot& slot(const MovedTensor& tensor) const { return stack_.layer(tensor.layer).slots[at(tensor.root)]; }

  std::int64_t bytes(const MovedTensor& tensor) const {
    const std::int64_t whole = slot(tensor).size.value;
    return tensor.slices == tensor.of_slices ? whole : whole / tensor.of_slices * tensor.slices;
  }

  void keep_small() {
    const OffloadSelection& selection = policy_.offload.selection;
    std::erase_if(moved_, [&](const MovedTensor& tensor) {
      const Slot& each = slot(tensor);
      const std::int64_t bits = bits_of(each.dtype);
      const std::int64_t elements = bits >= 8 ? each.size.value / (bits / 8) : each.size.value * (8 / bits);
      return each.size.value == 0 || elements < selection.least_elements || each.size < selection.least_bytes;
    });
  }

  // Groups are (layer, name) in the order of their copies.
  void keep_groups(const OffloadSelection& selection) {
    std::vector<std::pair<std::int32_t, std::int32_t>> groups;
    std::set<std::pair<std::int32_t, std::int32_t>> known;
    std::set<std::int32_t> names;
    for (const MovedTensor& tensor : moved_) {
      if (known.emplace(tensor.layer, tensor.name).second) groups.emplace_back(tensor.layer, tensor.name);
      names.insert(tensor.name);
    }
    std::size_t end = groups.size();
    std::size_t kept = static_cast<std::size_t>(selection.keep_last_groups) + (selection.keep_last_of_each_name ? names.size() : 0);
    end -= std::min(end, kept);
    if (selection.groups_fraction < 1) {
      end = std::min(end, static_cast<std::size_t>(std::ceil(selection.groups_fraction * static_cast<double>(groups.size()) - 1e-9)));
    }
    if (end == groups.size()) return;
    const std::set<std::pair<std::int32_t, std::int32_t>> moved(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(end));
    std::erase_if(moved_, [&](const MovedTensor& tensor) { return !moved.contains({tensor.layer, tensor.name}); });
  }

  // Whole groups from the end, until they hold what the stage keeps.
  void keep_stage_share(Bytes less_per_stage) {
    const bool everything = stage_ > 0 && less_per_stage.value > std::numeric_limits<std::int64_t>::max() / stage_;
    std::int64_t to_keep = everything ? std::numeric_limits<std::int64_t>::max() : less_per_stage.value * stage_;
    while (to_keep > 0 && !moved_.empty()) {
      const std::pair last(moved_.back().layer, moved_.back().name);
      while (!moved_.empty() && std::pair(moved_.back().layer, moved_.back().name) == last) {
        to_keep -= bytes(moved_.back());
        moved_.pop_back();
      }
    }
  }

  void keep_beyond(Bytes budget) {
    std::vector<std::size_t> order(moved_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [this](std::size_t a, std::size_t b) { return bytes(moved_[a]) > bytes(moved_[b]); });
    std::vector<bool> fits(moved_.size(), false);
    std::int64_t left = budget.value;
    for (const std::size_t i : order) {
      if (bytes(moved_[i]) > left) continue;
      left -= bytes(moved_[i]);
      fits[i] = true;
    }
    std::vector<MovedTensor> moved;
    for (std::size_t i = 0; i < moved_.size(); ++i) {
      if (fits[i]) moved.push_back(moved_[i]);
    }
    moved_ = std::move(moved);
  }

  const LayerStack& stack_;
  std::int32_t layers_;
  const PlacementPolicy& policy_;
  std::int64_t stage_;
  PlanReading reading_;
  std::vector<SlotPlaces> places_;  // by kind
  std::vector<RowSlots> slots_;     // likewise
  std::vector<std::string> names_;
  std::vector<std::vector<NamedGroup>> groups_;  // by name and kind
  std::vector<MovedTensor> moved_;
};

// Steps that stand at one place, in the order (time among the copies, releases after copies, tensor).
template <class Place>
struct Insertion {
  Place place;
  std::int64_t order = 0;
  std::int32_t kind = 0;
  PlanStep step;
  friend bool operator<(const Insertion& a, const Insertion& b) {
    return std::tie(a.place, a.order, a.kind) < std::tie(b.place, b.order, b.kind);
  }
};

constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max();

class Placing {
 public:
  Placing(const Selecting& selecting, const std::vector<MovedTensor>& moved, std::int64_t layers, const OffloadSchedule& schedule)
      : selecting_(selecting), moved_(moved), layers_(static_cast<std::int32_t>(layers)), schedule_(schedule) {}

  PlacementPlan insert(const PlacementPlan& plan) {
    for (const MovedTensor& tensor : moved_) out_.push_back(out_place(tensor));
    waited_by_.resize(moved_.size());
    if (schedule_.in_flight) limit_in_flight();
    for (std::size_t index = 0; index < moved_.size(); ++index) place(index);
    std::stable_sort(forward_.begin(), forward_.end());
    std::stable_sort(backward_.begin(), backward_.end());
    return {merged_forward(plan.forward), merged_backward(plan.backward)};
  }

 private:
  ForwardPlace out_place(const MovedTensor& tensor) const {
    if (schedule_.copy_out == CopyOutPlace::kNextLayer) return {tensor.layer + 1, -1};
    return {tensor.layer, selecting_.issue_op(tensor)};
  }

  static PlanStep step(PlanVerb verb, const MovedTensor& tensor, std::int32_t slice) {
    return {.verb = verb,
            .layer = tensor.layer,
            .first = tensor.root,
            .last = tensor.root,
            .slice = static_cast<std::int16_t>(slice),
            .slices = static_cast<std::int16_t>(tensor.of_slices)};
  }

  void add_forward(ForwardPlace place, std::int64_t order, PlanVerb verb, const MovedTensor& tensor) {
    for (std::int32_t slice = 0; slice < tensor.slices; ++slice) {
      forward_.push_back({place, order, verb == PlanVerb::kCopyOut ? 0 : 1, step(verb, tensor, slice)});
    }
  }

  void place(std::size_t index) {
    const MovedTensor& tensor = moved_[index];
    add_forward(out_[index], static_cast<std::int64_t>(index), PlanVerb::kCopyOut, tensor);
    const ForwardPlace end{layers_, -1}, read{tensor.layer, selecting_.places(tensor.layer).last_read[at(tensor.root)]};
    const ForwardPlace earliest = std::max(out_[index], read);
    auto [wanted, order] = release_place(index);
    if (wanted > end && schedule_.in_place) return;  // backward finds it where it is
    ForwardPlace release = std::min(wanted, end);
    if (release < earliest) {
      release = earliest;
      order = kLast;
    }
    const bool never_waits = schedule_.release == ReleasePlace::kEvent || (schedule_.release == ReleasePlace::kWait && !waited_by_[index]);
    const bool event = never_waits && !schedule_.synchronous;
    if (schedule_.synchronous && out_[index] < release)
      add_forward(out_[index], static_cast<std::int64_t>(index), PlanVerb::kWaitOut, tensor);
    add_forward(release, order, event ? PlanVerb::kReleaseByEvent : PlanVerb::kRelease, tensor);
    const BackwardPlace in = in_place_of(tensor);
    for (std::int32_t slice = 0; slice < tensor.slices; ++slice) {
      const BackwardPlace need = *selecting_.reading().need(tensor.layer, tensor.root);
      backward_.push_back({in, std::int64_t{need.step} << 32 | need.op, 0, step(PlanVerb::kCopyIn, tensor, slice)});
    }
  }

  // And its order among what stands there. Beyond the end: the program never comes to it.
  std::pair<ForwardPlace, std::int64_t> release_place(std::size_t index) const {
    const MovedTensor& tensor = moved_[index];
    const std::int64_t distance = std::min<std::int64_t>(schedule_.release_distance, layers_);
    const auto layer = static_cast<std::int32_t>(tensor.layer + distance);
    if (schedule_.synchronous) return {out_[index], static_cast<std::int64_t>(index)};
    switch (schedule_.release) {
      case ReleasePlace::kWait:
        if (waited_by_[index]) return {out_[*waited_by_[index]], static_cast<std::int64_t>(*waited_by_[index])};
        [[fallthrough]];
      case ReleasePlace::kEvent:
        return {out_[index], static_cast<std::int64_t>(index)};
      case ReleasePlace::kLayerStart:
        return {layer < layers_ ? ForwardPlace{layer, -1} : ForwardPlace{layers_ + 1, -1}, kLast};
      case ReleasePlace::kSamePlace:
        return {layer < layers_ ? ForwardPlace{layer, made_in(tensor, layer)} : ForwardPlace{layers_ + 1, -1}, kLast};
      case ReleasePlace::kTensor: {
        const std::size_t by = index + static_cast<std::size_t>(schedule_.release_distance);
        if (by >= moved_.size()) return {{layers_ + 1, -1}, kLast};
        return {out_[by], static_cast<std::int64_t>(by)};
      }
    }
    check_failed("place of a release", __FILE__, __LINE__);
  }

  // Where a later layer makes the tensor's counterpart; before its first op where it has none.
  std::int32_t made_in(const MovedTensor& tensor, std::int32_t layer) const {
    const std::optional<SlotIndex> root = selecting_.counterpart(tensor, layer);
    return root ? selecting_.places(layer).made[at(*root)] : -1;
  }

  BackwardPlace in_place_of(const MovedTensor& tensor) const {
    const PlanReading& reading = selecting_.reading();
    const BackwardPlace need = *reading.need(tensor.layer, tensor.root);
    if (schedule_.lookahead == 0 || schedule_.synchronous) return need;
    const std::int64_t layer = tensor.layer + schedule_.lookahead;
    std::optional<BackwardPlace> wanted;
    switch (schedule_.copy_in) {
      case CopyInPlace::kLayerStart:
        wanted = reading.visit_before(need, schedule_.lookahead);
        break;
      case CopyInPlace::kFirstOp:
        wanted = reading.visit_before(need, schedule_.lookahead);
        if (*wanted != reading.begin()) ++wanted->op;
        break;
      case CopyInPlace::kModuleEnd:
        if (layer < layers_) wanted = after_module(tensor, static_cast<std::int32_t>(layer));
        break;
      case CopyInPlace::kSamePlace:
        if (layer < layers_) wanted = counterpart_need(tensor, static_cast<std::int32_t>(layer));
        break;
    }
    return std::min(need, wanted.value_or(reading.begin()));
  }

  // A layer that has nothing of the name, or no such tensor, stands for it with its own begin.
  std::optional<BackwardPlace> after_module(const MovedTensor& tensor, std::int32_t layer) const {
    const std::int32_t last = selecting_.group(tensor, layer).last_backward;
    return last < 0 && selecting_.group(tensor, tensor.layer).last_backward >= 0 ? selecting_.reading().begin_of(layer)
                                                                                 : selecting_.reading().after_backward(layer, last);
  }
  std::optional<BackwardPlace> counterpart_need(const MovedTensor& tensor, std::int32_t layer) const {
    const std::optional<SlotIndex> root = selecting_.counterpart(tensor, layer);
    return root ? selecting_.reading().need(layer, *root) : selecting_.reading().begin_of(layer);
  }

  // When a group's copies are issued, compute waits for those of the group of the same name that came `in_flight` groups before.
  void limit_in_flight() {
    std::map<std::int32_t, std::vector<std::vector<std::size_t>>> groups;  // by name: tensors of each layer
    for (std::size_t index = 0; index < moved_.size(); ++index) {
      auto& of_name = groups[moved_[index].name];
      if (of_name.empty() || moved_[of_name.back().front()].layer != moved_[index].layer) of_name.emplace_back();
      of_name.back().push_back(index);
    }
    const auto limit = static_cast<std::size_t>(std::min<std::int64_t>(*schedule_.in_flight, layers_));
    for (const auto& [name, of_name] : groups) {
      for (std::size_t group = limit; group < of_name.size(); ++group) {
        const std::size_t by = of_name[group].back();
        for (const std::size_t index : of_name[group - limit]) {
          waited_by_[index] = by;
          if (schedule_.release == ReleasePlace::kWait) continue;  // it waits where it lets go
          add_forward(out_[by], static_cast<std::int64_t>(by), PlanVerb::kWaitOut, moved_[index]);
        }
      }
    }
  }

  std::vector<PlanStep> merged_forward(const std::vector<PlanStep>& steps) const {
    std::vector<PlanStep> merged;
    std::size_t next = 0;
    const auto take = [&](ForwardPlace until) {
      for (; next < forward_.size() && forward_[next].place <= until; ++next) merged.push_back(forward_[next].step);
    };
    for (PlanStep step : steps) {
      if (step.verb != PlanVerb::kForward) {
        merged.push_back(step);
        continue;
      }
      if (step.first == 0) take({step.layer, -1});
      for (std::int32_t op = step.first; op <= step.last; ++op) {
        if (next == forward_.size() || forward_[next].place != ForwardPlace{step.layer, op}) continue;
        PlanStep part = step;
        part.last = op;
        merged.push_back(part);
        take({step.layer, op});
        step.first = op + 1;
      }
      if (step.first <= step.last) merged.push_back(step);
    }
    take({layers_, -1});
    STEPSIM_CHECK(next == forward_.size());
    return merged;
  }

  std::vector<PlanStep> merged_backward(const std::vector<PlanStep>& steps) const {
    std::vector<PlanStep> merged;
    std::size_t next = 0;
    const auto take = [&](BackwardPlace until) {
      for (; next < backward_.size() && backward_[next].place <= until; ++next) merged.push_back(backward_[next].step);
    };
    for (std::size_t index = 0; index < steps.size(); ++index) {
      const auto number = static_cast<std::int32_t>(index);
      PlanStep step = steps[index];
      if (step.verb == PlanVerb::kDrop) {
        merged.push_back(step);
        continue;
      }
      const std::int32_t last = step.last;
      while (next < backward_.size() && backward_[next].place <= BackwardPlace{number, last + 1}) {
        const std::int32_t op = std::max(step.first, backward_[next].place.op);
        if (op > step.first) {
          PlanStep part = step;
          part.last = op - 1;
          merged.push_back(part);
          step.first = op;
        }
        take({number, op});
      }
      if (step.first <= last) merged.push_back(step);
    }
    STEPSIM_CHECK(next == backward_.size());
    return merged;
  }

  const Selecting& selecting_;
  const std::vector<MovedTensor>& moved_;
  std::int32_t layers_;
  const OffloadSchedule& schedule_;
  std::vector<ForwardPlace> out_;                      // by tensor
  std::vector<std::optional<std::size_t>> waited_by_;  // by tensor: with whose copy compute waits for its
  std::vector<Insertion<ForwardPlace>> forward_;
  std::vector<Insertion<BackwardPlace>> backward_;
};

}  // namespace

std::vector<MovedTensor> moved_tensors(const PlacementPlan& plan, const LayerStack& stack, const PlacementPolicy& policy,
                                       std::int64_t stage) {
  return Selecting(plan, stack, policy, stage).tensors();
}

PlacementPlan with_offload(PlacementPlan plan, const LayerStack& stack, const PlacementPolicy& policy, std::int64_t stage) {
  if (!policy.offloads() || plan.backward.empty()) return plan;
  const std::int64_t layers = stack.layers();
  Selecting selecting(plan, stack, policy, stage);
  const std::vector<MovedTensor> moved = selecting.tensors();
  if (moved.empty()) return plan;
  OffloadSchedule schedule = policy.offload.schedule;
  if (schedule.paced_by_kept_layers) {
    std::set<std::int32_t> moving;
    for (const MovedTensor& tensor : moved) moving.insert(tensor.layer);
    schedule.release_distance = std::max<std::int64_t>(1, layers - static_cast<std::int64_t>(moving.size()));
    schedule.lookahead = schedule.release_distance - 1;
  }
  return Placing(selecting, moved, layers, schedule).insert(plan);
}

}  // namespace stepsim
