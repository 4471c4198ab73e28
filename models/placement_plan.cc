#include "models/placement_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "models/offload_plan.h"
#include "models/recompute_policies.h"
#include "models/slot_liveness.h"
#include "sim/check.h"

namespace stepsim {

namespace {

// `count` segments as equal as possible, the larger ones first.
std::vector<std::int64_t> equal_segments(std::int64_t layers, std::int64_t count) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(count), layers / count);
  for (std::int64_t segment = 0; segment < layers % count; ++segment) ++sizes[static_cast<std::size_t>(segment)];
  return sizes;
}

std::vector<std::int64_t> uniform_segments(std::int64_t layers, std::int64_t size) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(layers / size), size);
  if (layers % size != 0) sizes.push_back(layers % size);
  return sizes;
}

// Walks a plan and keeps the first thing that is wrong with it.
class PlanCheck {
 public:
  explicit PlanCheck(const LayerStack& stack)
      : stack_(stack), layers_(stack.layers()), live_(stack), slots_begin_(stack.slot_begins()), forward_begin_{0}, backward_begin_{0} {
    for (std::int64_t layer = 0; layer < layers_; ++layer) {
      forward_begin_.push_back(forward_begin_.back() + stack.layer(layer).forward.size());
      backward_begin_.push_back(backward_begin_.back() + stack.layer(layer).backward.size());
    }
    forward_ran_.assign(forward_begin_.back(), false);
    backward_ran_.assign(backward_begin_.back(), false);
    written_in_.assign(slots_begin_.back(), 0);
    gradient_made_.assign(slots_begin_.back(), false);
  }

  std::string error(const PlacementPlan& plan) {
    walk(plan.forward, "forward");
    if (error_.empty() && std::find(forward_ran_.begin(), forward_ran_.end(), false) != forward_ran_.end()) {
      error_ = "the forward part does not run every forward op";
    }
    const SlotIndex output = stack_.table(layers_ - 1).output;
    if (error_.empty() && output != kNoSlot && !live_.live(static_cast<std::int32_t>(layers_ - 1), output)) {
      error_ = "the last layer's output is dropped before the head reads it";
    }
    end_run();
    if (error_.empty()) walk(plan.backward, "backward");
    if (error_.empty() && std::find(backward_ran_.begin(), backward_ran_.end(), false) != backward_ran_.end()) {
      error_ = "the backward part does not run every backward op";
    }
    return error_;
  }

 private:
  void walk(const std::vector<PlanStep>& steps, std::string_view part) {
    for (std::size_t step = 0; step < steps.size() && error_.empty(); ++step) {
      check_step(steps[step], part == "forward");
      if (!error_.empty()) error_ = fmt::format("step {} of {}: {}", step, part, error_);
    }
  }

  void check_step(const PlanStep& step, bool forward_part) {
    if (step.layer < 0 || step.layer >= layers_) return fail(fmt::format("layer {} of {}", step.layer, layers_));
    const LayerTemplate& layer = stack_.layer(step.layer);
    const std::size_t ops = step.verb == PlanVerb::kForward    ? layer.forward.size()
                            : step.verb == PlanVerb::kBackward ? layer.backward.size()
                                                               : layer.slots.size();
    const bool of_slot = step.verb == PlanVerb::kDrop || moves_storage(step.verb);
    const std::int32_t last = of_slot ? step.first : step.last;
    if (step.first < 0 || step.first > last || at(last) >= ops) return fail(fmt::format("range {} to {} of {}", step.first, last, ops));
    if (step.verb == PlanVerb::kDrop) return check_drop(step);
    if (moves_storage(step.verb)) return check_move(step);
    if (forward_part && (step.verb == PlanVerb::kBackward || step.again)) return fail("a backward op or a re-run in the forward part");
    if (step.verb == PlanVerb::kBackward) end_run();
    for (std::int32_t op = step.first; op <= last && error_.empty(); ++op) {
      step.verb == PlanVerb::kForward ? check_forward(step, op) : check_backward(step.layer, op);
    }
  }

  void check_drop(const PlanStep& step) {
    const SlotTable& table = stack_.table(step.layer);
    const std::string& name = slot_name(step.layer, step.first);
    if (table.root[at(step.first)] != step.first) return fail(fmt::format("drops \"{}\", a view", name));
    if (!table.forward_made[at(step.first)]) return fail(fmt::format("drops \"{}\", not made in forward", name));
    if (table.shared[at(step.first)]) return fail(fmt::format("drops \"{}\", which other layers read", name));
    if (!live_.live(step.layer, step.first)) return fail(fmt::format("drops \"{}\" twice", name));
    live_.drop(step.layer, step.first);
  }

  // A slot of which one slice is away is away.
  void check_move(const PlanStep& step) {
    const std::string& name = slot_name(step.layer, step.first);
    if (step.slices < 1 || step.slice < 0 || step.slice >= step.slices) return fail(fmt::format("slice {} of {}", step.slice, step.slices));
    const SlotTable& table = stack_.table(step.layer);
    if (table.root[at(step.first)] != step.first) return fail(fmt::format("moves \"{}\", a view", name));
    if (table.shared[at(step.first)]) return fail(fmt::format("moves \"{}\", which other layers read", name));
    const std::tuple slice(step.layer, step.first, step.slice);
    if (step.verb == PlanVerb::kCopyOut) {
      if (!live_.live(step.layer, step.first)) return fail(fmt::format("copies out \"{}\", which is not there", name));
      if (!out_.insert(slice).second) return fail(fmt::format("copies out \"{}\" twice", name));
      return;
    }
    if (!out_.contains(slice)) return fail(fmt::format("waits for, lets go of or copies back \"{}\", which was not copied out", name));
    if (step.verb == PlanVerb::kWaitOut) return;
    auto& away = away_[{step.layer, step.first}];
    if (step.verb == PlanVerb::kCopyIn) {
      if (away.erase(step.slice) == 0) return fail(fmt::format("copies back \"{}\", which was not let go of", name));
      if (away.empty()) live_.make(step.layer, step.first);
      return;
    }
    if (!away.insert(step.slice).second) return fail(fmt::format("lets go of \"{}\" twice", name));
    if (away.size() == 1) live_.drop(step.layer, step.first);
    written_in_[place(step.layer, step.first)] = 0;
  }

  void check_forward(const PlanStep& step, std::int32_t op) {
    std::vector<bool>::reference ran = forward_ran_[forward_begin_[at(step.layer)] + at(op)];
    if (ran != step.again) return fail(ran ? "a second run that is not called a re-run" : "a re-run before the first run");
    ran = true;
    const TemplateOp& each = stack_.layer(step.layer).forward[at(op)];
    const SlotTable& table = stack_.table(step.layer);
    for (const SlotIndex root : table.forward_needs[at(op)]) {
      const std::vector<std::int32_t>& updaters = table.updaters[at(root)];
      const bool updates = std::binary_search(updaters.begin(), updaters.end(), op);
      const bool fresh = written_in_[place(step.layer, root)] == run_;
      const bool there = updates ? fresh : live_.live(step.layer, root) || (fresh && away(step.layer, root));
      if (!there) {
        return fail(fmt::format("layer {} \"{}\" needs \"{}\", which is not there", step.layer, each.name, slot_name(step.layer, root)));
      }
    }
    check_shared(step.layer, each, SlotKind::kShared);
    for (const SlotIndex root : table.forward_makes[at(op)]) {
      if (table.shared[at(root)]) shared_made_.insert(slot_name(step.layer, root));
      if (!away(step.layer, root)) live_.make(step.layer, root);  // else a fresh copy for this run: backward reads what is copied back
      written_in_[place(step.layer, root)] = run_;
      if (root == table.output && has_input(step.layer + 1)) written_in_[place(step.layer + 1, stack_.table(step.layer + 1).input)] = run_;
    }
  }

  bool away(std::int32_t layer, SlotIndex root) const {
    if (root == stack_.table(layer).output && has_input(layer + 1)) return away(layer + 1, stack_.table(layer + 1).input);
    const auto found = away_.find({layer, root});
    return found != away_.end() && !found->second.empty();
  }

  void check_backward(std::int32_t layer, std::int32_t op) {
    std::vector<bool>::reference ran = backward_ran_[backward_begin_[at(layer)] + at(op)];
    const TemplateOp& each = stack_.layer(layer).backward[at(op)];
    const SlotTable& table = stack_.table(layer);
    if (ran) return fail(fmt::format("layer {} \"{}\" runs backward twice", layer, each.name));
    ran = true;
    for (const SlotIndex root : table.backward_needs[at(op)]) {
      if (live_.live(layer, root)) continue;
      return fail(fmt::format("layer {} backward \"{}\" reads \"{}\", which is not there", layer, each.name, slot_name(layer, root)));
    }
    for (const auto* slots : {&each.reads, &each.updates, &each.holds}) {
      for (const SlotIndex slot : *slots) check_gradient(layer, table.root[at(slot)], each.name);
    }
    check_shared(layer, each, SlotKind::kShared);
    check_shared(layer, each, SlotKind::kSharedGradient);
    for (const SlotIndex slot : each.writes) gradient_made_[place(layer, table.root[at(slot)])] = true;
    for (const auto* slots : {&each.writes, &each.updates}) {
      for (const SlotIndex slot : *slots) {
        const SlotIndex root = table.root[at(slot)];
        if (stack_.layer(layer).slots[at(root)].kind == SlotKind::kSharedGradient) shared_made_.insert(slot_name(layer, root));
      }
    }
  }

  // The last layer's output gradient comes from the head, the others' from the layer behind.
  void check_gradient(std::int32_t layer, SlotIndex root, const std::string& name) {
    const SlotTable& table = stack_.table(layer);
    const LayerTemplate& source = stack_.layer(layer);
    if (!error_.empty() || table.forward_made[at(root)]) return;
    const SlotKind kind = source.slots[at(root)].kind;
    if (kind != SlotKind::kGradient && kind != SlotKind::kWorkspace && kind != SlotKind::kInput) return;
    bool made = gradient_made_[place(layer, root)];
    if (source.output_gradient != kNoSlot && root == table.root[at(source.output_gradient)])
      made = layer + 1 == layers_ || behind_made(layer + 1);
    if (!made) fail(fmt::format("layer {} backward \"{}\" reads \"{}\", which is not made yet", layer, name, slot_name(layer, root)));
  }

  bool behind_made(std::int32_t layer) const {
    const SlotIndex gradient = stack_.layer(layer).input_gradient;
    return gradient == kNoSlot || gradient_made_[place(layer, stack_.table(layer).root[at(gradient)])];
  }

  // What an op reads that another layer makes: a shared storage, the sum of its gradients. An update of that sum may be its first write.
  void check_shared(std::int32_t layer, const TemplateOp& op, SlotKind kind) {
    const SlotTable& table = stack_.table(layer);
    const bool gradient = kind == SlotKind::kSharedGradient;
    for (const auto* slots : {&op.reads, &op.holds, &op.updates}) {
      if (gradient && slots == &op.updates) continue;
      for (const SlotIndex slot : *slots) {
        const SlotIndex root = table.root[at(slot)];
        const bool elsewhere = stack_.layer(layer).slots[at(root)].kind == kind && !table.forward_made[at(root)];
        if (!elsewhere || shared_made_.contains(slot_name(layer, root)) || !error_.empty()) continue;
        fail(fmt::format("layer {} \"{}\" reads \"{}\", which no layer has made", layer, op.name, slot_name(layer, root)));
      }
    }
  }

  const std::string& slot_name(std::int32_t layer, SlotIndex slot) const { return stack_.layer(layer).slots[at(slot)].name; }
  bool has_input(std::int32_t layer) const { return layer < layers_ && stack_.table(layer).input != kNoSlot; }
  std::size_t place(std::int32_t layer, SlotIndex root) const { return slots_begin_[at(layer)] + at(root); }
  void end_run() {
    ++run_;
    live_.end_run();
  }
  void fail(std::string problem) { error_ = std::move(problem); }

  const LayerStack& stack_;
  std::int64_t layers_;
  SlotLiveness live_;
  std::vector<std::size_t> slots_begin_, forward_begin_, backward_begin_;      // by layer
  std::vector<bool> forward_ran_, backward_ran_;                               // by layer and op
  std::int32_t run_ = 1;                                                       // of forward ops without a backward op between
  std::vector<std::int32_t> written_in_;                                       // by layer and root: in which run
  std::vector<bool> gradient_made_;                                            // by layer and root
  std::set<std::tuple<std::int32_t, SlotIndex, std::int16_t>> out_;            // layer, root, slice: copied out
  std::map<std::pair<std::int32_t, SlotIndex>, std::set<std::int16_t>> away_;  // slices let go of
  std::set<std::string> shared_made_;                                          // names of shared storages and of their gradients
  std::string error_;
};

}  // namespace

PlacementPolicy chunk_policy(const PlacementPolicy& policy, std::int64_t first_layer, std::int64_t layers, std::int64_t micro_batch) {
  PlacementPolicy own = policy;
  own.rows.clear();
  for (PlacementRow row : policy.rows) {
    if (micro_batch < row.first_micro_batch || (row.last_micro_batch >= 0 && micro_batch > row.last_micro_batch)) continue;
    row.first_layer = std::max<std::int64_t>(row.first_layer - first_layer, 0);
    row.last_layer = row.last_layer < 0 ? layers - 1 : std::min(row.last_layer - first_layer, layers - 1);
    if (row.first_layer <= row.last_layer) own.rows.push_back(row);
  }
  if (policy.granularity == RecomputeGranularity::kFull) own.num_layers = std::min(policy.num_layers, layers);
  own.segments = std::min(policy.segments, layers);
  return own;
}

namespace {

PlacementPlan recompute_plan(const LayerStack& stack, const PlacementPolicy& policy, const FrameworkPreset& framework) {
  const std::int64_t layers = stack.layers();
  STEPSIM_CHECK(layers >= 1);
  if (policy.halving) return halving_plan(stack, framework);
  if (!policy.segment_sizes.empty()) return segment_plan(stack, policy.segment_sizes, framework);
  if (policy.segments > 0) return segment_plan(stack, equal_segments(layers, policy.segments), framework);
  if (policy.granularity != RecomputeGranularity::kFull) return group_plan(stack, policy, framework);
  STEPSIM_CHECK(policy.num_layers >= 1);
  STEPSIM_CHECK(policy.num_layers <= layers);
  const bool uniform = policy.method == RecomputeMethod::kUniform;
  return segment_plan(stack, uniform ? uniform_segments(layers, policy.num_layers) : equal_segments(policy.num_layers, policy.num_layers),
                      framework);
}

}  // namespace

PlacementPlan make_plan(const LayerStack& stack, const PlacementPolicy& policy, const FrameworkPreset& framework, std::int64_t stage) {
  return with_offload(recompute_plan(stack, policy, framework), stack, policy, stage);
}

std::string plan_error(const PlacementPlan& plan, const LayerStack& stack) {
  if (stack.layers() < 1) return "no layers";
  return PlanCheck(stack).error(plan);
}

double forward_runs(const PlacementPlan& plan, const LayerStack& stack) {
  double once = 0;
  const std::vector<std::int64_t> layers = stack.layers_of_kinds();
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
    once += static_cast<double>(layers[at(kind)]) * static_cast<double>(stack.kind(kind).forward.size());
  }
  if (once == 0) return 0;
  double runs = 0;
  for (const auto* steps : {&plan.forward, &plan.backward}) {
    for (const PlanStep& step : *steps) {
      if (step.verb == PlanVerb::kForward) runs += static_cast<double>(step.last - step.first + 1);
    }
  }
  return runs / once;
}

}  // namespace stepsim
