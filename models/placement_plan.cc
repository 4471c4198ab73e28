#include "models/placement_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "models/offload_plan.h"
#include "models/recompute_policies.h"
#include "models/slot_liveness.h"
#include "models/slot_table.h"
#include "sim/check.h"

namespace stepsim {

namespace {

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

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
  PlanCheck(const LayerTemplate& layer, std::int64_t layers)
      : layer_(layer),
        table_(layer),
        layers_(layers),
        live_(table_, layers),
        forward_ran_(static_cast<std::size_t>(layers) * layer.forward.size(), false),
        backward_ran_(static_cast<std::size_t>(layers) * layer.backward.size(), false),
        written_in_(static_cast<std::size_t>(layers) * layer.slots.size(), 0),
        gradient_made_(static_cast<std::size_t>(layers) * layer.slots.size(), false) {}

  std::string error(const PlacementPlan& plan) {
    walk(plan.forward, "forward");
    if (error_.empty() && std::find(forward_ran_.begin(), forward_ran_.end(), false) != forward_ran_.end()) {
      error_ = "the forward part does not run every forward op";
    }
    if (error_.empty() && table_.output != kNoSlot && !live_.live(static_cast<std::int32_t>(layers_ - 1), table_.output)) {
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
    const std::size_t ops = step.verb == PlanVerb::kForward    ? layer_.forward.size()
                            : step.verb == PlanVerb::kBackward ? layer_.backward.size()
                                                               : layer_.slots.size();
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
    if (table_.root[at(step.first)] != step.first) return fail(fmt::format("drops \"{}\", a view", layer_.slots[at(step.first)].name));
    if (!table_.forward_made[at(step.first)])
      return fail(fmt::format("drops \"{}\", not made in forward", layer_.slots[at(step.first)].name));
    if (!live_.live(step.layer, step.first)) return fail(fmt::format("drops \"{}\" twice", layer_.slots[at(step.first)].name));
    live_.drop(step.layer, step.first);
  }

  // A slot of which one slice is away is away.
  void check_move(const PlanStep& step) {
    const std::string& name = layer_.slots[at(step.first)].name;
    if (step.slices < 1 || step.slice < 0 || step.slice >= step.slices) return fail(fmt::format("slice {} of {}", step.slice, step.slices));
    if (table_.root[at(step.first)] != step.first) return fail(fmt::format("moves \"{}\", a view", name));
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
    std::vector<bool>::reference ran = forward_ran_[at(step.layer) * layer_.forward.size() + at(op)];
    if (ran != step.again) return fail(ran ? "a second run that is not called a re-run" : "a re-run before the first run");
    ran = true;
    const std::string& name = layer_.forward[at(op)].name;
    for (const SlotIndex root : table_.forward_needs[at(op)]) {
      const std::vector<std::int32_t>& updaters = table_.updaters[at(root)];
      const bool updates = std::binary_search(updaters.begin(), updaters.end(), op);
      const bool fresh = written_in_[place(step.layer, root)] == run_;
      const bool there = updates ? fresh : live_.live(step.layer, root) || (fresh && away(step.layer, root));
      if (!there)
        return fail(fmt::format("layer {} \"{}\" needs \"{}\", which is not there", step.layer, name, layer_.slots[at(root)].name));
    }
    for (const SlotIndex root : table_.forward_makes[at(op)]) {
      if (!away(step.layer, root)) live_.make(step.layer, root);  // else a fresh copy for this run: backward reads what is copied back
      written_in_[place(step.layer, root)] = run_;
      if (root == table_.output && table_.input != kNoSlot && step.layer + 1 < layers_) {
        written_in_[place(step.layer + 1, table_.input)] = run_;
      }
    }
  }

  bool away(std::int32_t layer, SlotIndex root) const {
    if (root == table_.output && table_.input != kNoSlot && layer + 1 < layers_) return away(layer + 1, table_.input);
    const auto found = away_.find({layer, root});
    return found != away_.end() && !found->second.empty();
  }

  void check_backward(std::int32_t layer, std::int32_t op) {
    std::vector<bool>::reference ran = backward_ran_[at(layer) * layer_.backward.size() + at(op)];
    const TemplateOp& each = layer_.backward[at(op)];
    if (ran) return fail(fmt::format("layer {} \"{}\" runs backward twice", layer, each.name));
    ran = true;
    for (const SlotIndex root : table_.backward_needs[at(op)]) {
      if (live_.live(layer, root)) continue;
      return fail(fmt::format("layer {} backward \"{}\" reads \"{}\", which is not there", layer, each.name, layer_.slots[at(root)].name));
    }
    for (const auto* slots : {&each.reads, &each.updates, &each.holds}) {
      for (const SlotIndex slot : *slots) check_gradient(layer, table_.root[at(slot)], each.name);
    }
    for (const SlotIndex slot : each.writes) gradient_made_[place(layer, table_.root[at(slot)])] = true;
  }

  // The last layer's output gradient comes from the head, the others' from the layer behind.
  void check_gradient(std::int32_t layer, SlotIndex root, const std::string& name) {
    if (!error_.empty() || table_.forward_made[at(root)]) return;
    const SlotKind kind = layer_.slots[at(root)].kind;
    if (kind != SlotKind::kGradient && kind != SlotKind::kWorkspace && kind != SlotKind::kInput) return;
    bool made = gradient_made_[place(layer, root)];
    if (layer_.output_gradient != kNoSlot && root == table_.root[at(layer_.output_gradient)]) {
      made = layer + 1 == layers_ || layer_.input_gradient == kNoSlot ||
             gradient_made_[place(layer + 1, table_.root[at(layer_.input_gradient)])];
    }
    if (!made) fail(fmt::format("layer {} backward \"{}\" reads \"{}\", which is not made yet", layer, name, layer_.slots[at(root)].name));
  }

  std::size_t place(std::int32_t layer, SlotIndex root) const { return at(layer) * layer_.slots.size() + at(root); }
  void end_run() {
    ++run_;
    live_.end_run();
  }
  void fail(std::string problem) { error_ = std::move(problem); }

  const LayerTemplate& layer_;
  SlotTable table_;
  std::int64_t layers_;
  SlotLiveness live_;
  std::vector<bool> forward_ran_, backward_ran_;                               // by layer and op
  std::int32_t run_ = 1;                                                       // of forward ops without a backward op between
  std::vector<std::int32_t> written_in_;                                       // by layer and root: in which run
  std::vector<bool> gradient_made_;                                            // by layer and root
  std::set<std::tuple<std::int32_t, SlotIndex, std::int16_t>> out_;            // layer, root, slice: copied out
  std::map<std::pair<std::int32_t, SlotIndex>, std::set<std::int16_t>> away_;  // slices let go of
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

PlacementPlan recompute_plan(const LayerTemplate& layer, std::int64_t layers, const PlacementPolicy& policy,
                             const FrameworkPreset& framework) {
  STEPSIM_CHECK(layers >= 1);
  if (policy.halving) return halving_plan(layer, layers, framework);
  if (!policy.segment_sizes.empty()) return segment_plan(layer, layers, policy.segment_sizes, framework);
  if (policy.segments > 0) return segment_plan(layer, layers, equal_segments(layers, policy.segments), framework);
  if (policy.granularity != RecomputeGranularity::kFull) return group_plan(layer, layers, policy, framework);
  STEPSIM_CHECK(policy.num_layers >= 1);
  STEPSIM_CHECK(policy.num_layers <= layers);
  const bool uniform = policy.method == RecomputeMethod::kUniform;
  return segment_plan(layer, layers,
                      uniform ? uniform_segments(layers, policy.num_layers) : equal_segments(policy.num_layers, policy.num_layers),
                      framework);
}

}  // namespace

PlacementPlan make_plan(const LayerTemplate& layer, std::int64_t layers, const PlacementPolicy& policy, const FrameworkPreset& framework,
                        std::int64_t stage) {
  return with_offload(recompute_plan(layer, layers, policy, framework), layer, layers, policy, stage);
}

std::string plan_error(const PlacementPlan& plan, const LayerTemplate& layer, std::int64_t layers) {
  if (layers < 1) return "no layers";
  return PlanCheck(layer, layers).error(plan);
}

double forward_runs(const PlacementPlan& plan, const LayerTemplate& layer, std::int64_t layers) {
  if (layer.forward.empty()) return 0;
  double runs = 0;
  for (const auto* steps : {&plan.forward, &plan.backward}) {
    for (const PlanStep& step : *steps) {
      if (step.verb == PlanVerb::kForward) runs += static_cast<double>(step.last - step.first + 1);
    }
  }
  return runs / (static_cast<double>(layers) * static_cast<double>(layer.forward.size()));
}

}  // namespace stepsim
