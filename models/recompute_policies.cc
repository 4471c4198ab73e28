#include "models/recompute_policies.h"

#include <algorithm>
#include <set>
#include <utility>

#include "models/recompute_groups.h"
#include "models/slot_liveness.h"
#include "sim/check.h"

namespace stepsim {

namespace {

// Writes the steps of whole layers.
class LayerSteps {
 public:
  LayerSteps(const LayerStack& stack, const FrameworkPreset& framework) : stack_(stack) {
    for (std::int32_t index = 0; index < stack.kinds(); ++index) {
      const LayerTemplate& layer = stack.kind(index);
      const SlotTable& table = stack.kind_table(index);
      Kind& kind = kinds_.emplace_back();
      kind.input = table.input;
      kind.forward_ops = static_cast<std::int32_t>(layer.forward.size());
      kind.backward_ops = static_cast<std::int32_t>(layer.backward.size());
      kind.last_of_rerun = framework.stops_after_last_saved ? table.last_saving_op() : kind.forward_ops - 1;
      for (SlotIndex root = 0; at(root) < layer.slots.size(); ++root) {
        if (table.saved[at(root)] && root != table.input && root != table.output) kind.inner.push_back(root);
      }
    }
  }

  void run(std::vector<PlanStep>& steps, std::int32_t layer, bool again) const { run_to(steps, layer, kind(layer).forward_ops - 1, again); }
  // The last layer of a re-run need not go on to its output.
  void run_last_again(std::vector<PlanStep>& steps, std::int32_t layer) const { run_to(steps, layer, kind(layer).last_of_rerun, true); }
  void drop_inner(std::vector<PlanStep>& steps, std::int32_t layer) const {
    for (const SlotIndex root : kind(layer).inner) steps.push_back({PlanVerb::kDrop, layer, root, root, false});
  }
  void drop_input(std::vector<PlanStep>& steps, std::int32_t layer) const {
    const SlotIndex input = kind(layer).input;
    if (input != kNoSlot) steps.push_back({PlanVerb::kDrop, layer, input, input, false});
  }
  void backward(std::vector<PlanStep>& steps, std::int32_t layer) const {
    if (kind(layer).backward_ops > 0) steps.push_back({PlanVerb::kBackward, layer, 0, kind(layer).backward_ops - 1, false});
  }

 private:
  struct Kind {
    SlotIndex input = kNoSlot;
    std::int32_t forward_ops = 0, backward_ops = 0, last_of_rerun = -1;
    std::vector<SlotIndex> inner;  // saved
  };
  const Kind& kind(std::int32_t layer) const { return kinds_[at(stack_.kind_of(layer))]; }
  static void run_to(std::vector<PlanStep>& steps, std::int32_t layer, std::int32_t last, bool again) {
    if (last >= 0) steps.push_back({PlanVerb::kForward, layer, 0, last, again});
  }

  const LayerStack& stack_;
  std::vector<Kind> kinds_;
};

// Recursive halving over layers [low, high), whose first input is stored.
class Halving {
 public:
  Halving(const LayerSteps& steps, PlacementPlan& plan) : steps_(steps), plan_(plan) {}

  // `first`: these layers end with the stage's last one, so their way forward is the step's own forward pass.
  void add(std::int32_t low, std::int32_t high, bool first) {
    if (high - low == 1) {
      if (first) {
        steps_.run(plan_.forward, low, false);
      } else {
        steps_.run_last_again(plan_.backward, low);
      }
      steps_.backward(plan_.backward, low);
      return;
    }
    const std::int32_t middle = low + (high - low + 1) / 2;  // the larger half first: one stored input less for odd counts
    std::vector<PlanStep>& way = first ? plan_.forward : plan_.backward;
    for (std::int32_t layer = low; layer < middle; ++layer) {
      steps_.run(way, layer, !first);
      steps_.drop_inner(way, layer);
      if (layer > low) steps_.drop_input(way, layer);
    }
    add(middle, high, first);
    add(low, middle, false);
  }

 private:
  const LayerSteps& steps_;
  PlacementPlan& plan_;
};

using LayerOp = std::pair<std::int32_t, std::int32_t>;  // layer, forward op

// Writes the steps of groups, following which storages are there.
class GroupSteps {
 public:
  GroupSteps(const LayerStack& stack, std::vector<PlanStep>& steps) : stack_(stack), live_(stack), steps_(steps) {}

  SlotLiveness& live() { return live_; }

  // What runs so that `group` is there: its ops and the smallest set of makers back to storages that are there.
  void make_again(std::int32_t layer, const RecomputeGroup& group) {
    std::set<LayerOp> ops;
    std::vector<LayerOp> open;
    const auto add = [&](LayerOp op) {
      if (ops.insert(op).second) open.push_back(op);
    };
    const auto need = [&](std::int32_t of_layer, SlotIndex root) {
      if (live_.live(of_layer, root)) return;
      const bool from_before = root == stack_.table(of_layer).input;
      STEPSIM_CHECK(!from_before || of_layer > 0);
      const std::int32_t by = from_before ? of_layer - 1 : of_layer;
      const SlotTable& table = stack_.table(by);
      const SlotIndex made = from_before ? table.output : root;
      STEPSIM_CHECK(!table.makers[at(made)].empty());
      for (const std::int32_t maker : table.makers[at(made)]) add({by, maker});
    };
    for (const std::int32_t op : group.ops) add({layer, op});
    for (const SlotIndex root : group.dropped) need(layer, root);
    while (!open.empty()) {
      const LayerOp op = open.back();
      open.pop_back();
      for (const SlotIndex root : stack_.table(op.first).forward_needs[at(op.second)]) need(op.first, root);
    }
    add_runs(ops);
    for (const auto& [of_layer, op] : ops) {
      for (const SlotIndex made : stack_.table(of_layer).forward_makes[at(op)]) {
        if (live_.lasting(of_layer, made)) live_.make(of_layer, made);
      }
    }
  }

 private:
  void add_runs(const std::set<LayerOp>& ops) {
    bool fresh = true;
    for (const auto& [layer, op] : ops) {
      if (!fresh && steps_.back().layer == layer && steps_.back().last == op - 1) {
        steps_.back().last = op;
      } else {
        steps_.push_back({PlanVerb::kForward, layer, op, op, true});
      }
      fresh = false;
    }
  }

  const LayerStack& stack_;
  SlotLiveness live_;
  std::vector<PlanStep>& steps_;
};

// The group of each backward op's reads is made again before it; backward ops between two re-runs are one step.
void add_backward(std::vector<PlanStep>& steps, GroupSteps& again, const SlotTable& table, std::int32_t layer,
                  const std::vector<RecomputeGroup>& groups) {
  const auto ops = static_cast<std::int32_t>(table.backward_needs.size());
  std::int32_t first = 0;
  for (std::int32_t op = 0; op < ops; ++op) {
    for (const SlotIndex root : table.backward_needs[at(op)]) {
      if (again.live().live(layer, root)) continue;
      const auto group = std::find_if(groups.begin(), groups.end(), [root](const RecomputeGroup& each) {
        return std::binary_search(each.dropped.begin(), each.dropped.end(), root);
      });
      STEPSIM_CHECK(group != groups.end());
      if (op > first) steps.push_back({PlanVerb::kBackward, layer, first, op - 1, false});
      first = op;
      again.make_again(layer, *group);
    }
  }
  if (ops > first) steps.push_back({PlanVerb::kBackward, layer, first, ops - 1, false});
}

}  // namespace

PlacementPlan segment_plan(const LayerStack& stack, const std::vector<std::int64_t>& sizes, const FrameworkPreset& framework) {
  const LayerSteps steps(stack, framework);
  PlacementPlan plan;
  std::vector<std::int32_t> begins;
  std::int32_t begin = 0;
  for (const std::int64_t size : sizes) {
    begins.push_back(begin);
    for (std::int32_t layer = begin; layer < begin + size; ++layer) {
      steps.run(plan.forward, layer, false);
      steps.drop_inner(plan.forward, layer);
      if (layer > begin) steps.drop_input(plan.forward, layer);
    }
    begin += static_cast<std::int32_t>(size);
  }
  const auto end = static_cast<std::int32_t>(stack.layers());
  STEPSIM_CHECK(begin <= end);
  for (std::int32_t layer = begin; layer < end; ++layer) steps.run(plan.forward, layer, false);
  for (std::int32_t layer = end - 1; layer >= begin; --layer) steps.backward(plan.backward, layer);
  std::int32_t high = begin;
  for (std::size_t segment = begins.size(); segment-- > 0; high = begins[segment]) {
    for (std::int32_t layer = begins[segment]; layer < high - 1; ++layer) steps.run(plan.backward, layer, true);
    steps.run_last_again(plan.backward, high - 1);
    for (std::int32_t layer = high - 1; layer >= begins[segment]; --layer) steps.backward(plan.backward, layer);
  }
  return plan;
}

PlacementPlan halving_plan(const LayerStack& stack, const FrameworkPreset& framework) {
  STEPSIM_CHECK(stack.layers() >= 1);
  const LayerSteps steps(stack, framework);
  PlacementPlan plan;
  Halving(steps, plan).add(0, static_cast<std::int32_t>(stack.layers()), true);
  return plan;
}

PlacementPlan group_plan(const LayerStack& stack, const PlacementPolicy& policy, const FrameworkPreset& framework) {
  const LayerSteps whole(stack, framework);
  PlacementPlan plan;
  GroupSteps again(stack, plan.backward);
  const LayerGroups groups = groups_of_layers(stack, policy, framework);
  const auto end = static_cast<std::int32_t>(stack.layers());
  for (std::int32_t layer = 0; layer < end; ++layer) {
    whole.run(plan.forward, layer, false);
    const SlotTable& table = stack.table(layer);
    for (SlotIndex root = 0; at(root) < table.root.size(); ++root) {
      if (table.forward_made[at(root)] && again.live().lasting(layer, root) && root != table.input) again.live().make(layer, root);
    }
    for (const RecomputeGroup& group : groups.of(layer)) {
      for (const SlotIndex root : group.dropped) {
        plan.forward.push_back({PlanVerb::kDrop, layer, root, root, false});
        again.live().drop(layer, root);
      }
    }
  }
  again.live().end_run();
  for (std::int32_t layer = end - 1; layer >= 0; --layer) add_backward(plan.backward, again, stack.table(layer), layer, groups.of(layer));
  return plan;
}

}  // namespace stepsim
