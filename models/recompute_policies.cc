#include "models/recompute_policies.h"

#include <algorithm>
#include <set>
#include <utility>

#include "models/recompute_groups.h"
#include "models/slot_liveness.h"
#include "models/slot_table.h"
#include "sim/check.h"

namespace stepsim {

namespace {

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

// Writes the steps of whole layers.
class LayerSteps {
 public:
  LayerSteps(const LayerTemplate& layer, const FrameworkPreset& framework)
      : table_(layer),
        forward_ops_(static_cast<std::int32_t>(layer.forward.size())),
        backward_ops_(static_cast<std::int32_t>(layer.backward.size())),
        last_of_rerun_(framework.stops_after_last_saved ? table_.last_saving_op() : forward_ops_ - 1) {
    for (SlotIndex root = 0; at(root) < layer.slots.size(); ++root) {
      if (table_.saved[at(root)] && root != table_.input && root != table_.output) inner_.push_back(root);
    }
  }

  void run(std::vector<PlanStep>& steps, std::int32_t layer, bool again) const { run_to(steps, layer, forward_ops_ - 1, again); }
  // The last layer of a re-run need not go on to its output.
  void run_last_again(std::vector<PlanStep>& steps, std::int32_t layer) const { run_to(steps, layer, last_of_rerun_, true); }
  void drop_inner(std::vector<PlanStep>& steps, std::int32_t layer) const {
    for (const SlotIndex root : inner_) steps.push_back({PlanVerb::kDrop, layer, root, root, false});
  }
  void drop_input(std::vector<PlanStep>& steps, std::int32_t layer) const {
    if (table_.input != kNoSlot) steps.push_back({PlanVerb::kDrop, layer, table_.input, table_.input, false});
  }
  void backward(std::vector<PlanStep>& steps, std::int32_t layer) const {
    if (backward_ops_ > 0) steps.push_back({PlanVerb::kBackward, layer, 0, backward_ops_ - 1, false});
  }

 private:
  static void run_to(std::vector<PlanStep>& steps, std::int32_t layer, std::int32_t last, bool again) {
    if (last >= 0) steps.push_back({PlanVerb::kForward, layer, 0, last, again});
  }

  SlotTable table_;
  std::int32_t forward_ops_, backward_ops_, last_of_rerun_;
  std::vector<SlotIndex> inner_;
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
  GroupSteps(const SlotTable& table, std::int64_t layers, std::vector<PlanStep>& steps)
      : table_(table), live_(table, layers), steps_(steps) {}

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
      const bool from_before = root == table_.input;
      STEPSIM_CHECK(!from_before || of_layer > 0);
      const SlotIndex made = from_before ? table_.output : root;
      STEPSIM_CHECK(!table_.makers[at(made)].empty());
      for (const std::int32_t maker : table_.makers[at(made)]) add({from_before ? of_layer - 1 : of_layer, maker});
    };
    for (const std::int32_t op : group.ops) add({layer, op});
    for (const SlotIndex root : group.dropped) need(layer, root);
    while (!open.empty()) {
      const LayerOp op = open.back();
      open.pop_back();
      for (const SlotIndex root : table_.forward_needs[at(op.second)]) need(op.first, root);
    }
    add_runs(ops);
    for (const auto& [of_layer, op] : ops) {
      for (const SlotIndex made : table_.forward_makes[at(op)]) {
        if (live_.lasting(made)) live_.make(of_layer, made);
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

  const SlotTable& table_;
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

PlacementPlan segment_plan(const LayerTemplate& layer_template, std::int64_t layers, const std::vector<std::int64_t>& sizes,
                           const FrameworkPreset& framework) {
  const LayerSteps steps(layer_template, framework);
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
  const auto end = static_cast<std::int32_t>(layers);
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

PlacementPlan halving_plan(const LayerTemplate& layer_template, std::int64_t layers, const FrameworkPreset& framework) {
  STEPSIM_CHECK(layers >= 1);
  const LayerSteps steps(layer_template, framework);
  PlacementPlan plan;
  Halving(steps, plan).add(0, static_cast<std::int32_t>(layers), true);
  return plan;
}

PlacementPlan group_plan(const LayerTemplate& layer_template, std::int64_t layers, const PlacementPolicy& policy,
                         const FrameworkPreset& framework) {
  const SlotTable table(layer_template);
  const LayerSteps whole(layer_template, framework);
  PlacementPlan plan;
  GroupSteps again(table, layers, plan.backward);
  const LayerGroups groups = groups_of_layers(layer_template, table, policy, framework, layers);
  const auto end = static_cast<std::int32_t>(layers);
  for (std::int32_t layer = 0; layer < end; ++layer) {
    whole.run(plan.forward, layer, false);
    for (SlotIndex root = 0; at(root) < layer_template.slots.size(); ++root) {
      if (table.forward_made[at(root)] && again.live().lasting(root) && root != table.input) again.live().make(layer, root);
    }
    for (const RecomputeGroup& group : groups.of(layer)) {
      for (const SlotIndex root : group.dropped) {
        plan.forward.push_back({PlanVerb::kDrop, layer, root, root, false});
        again.live().drop(layer, root);
      }
    }
  }
  again.live().end_run();
  for (std::int32_t layer = end - 1; layer >= 0; --layer) add_backward(plan.backward, again, table, layer, groups.of(layer));
  return plan;
}

}  // namespace stepsim
