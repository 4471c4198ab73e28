// The low-level form of a placement: for one stage, the order in which ops run and saved storages are dropped. Every policy is such a list.
// An op may run several times (recursive schedules). The step builder replays the list into a graph; nothing else decides what is
// recomputed.
#pragma once

#include <cstdint>
#include <vector>

#include "models/layer_stack.h"
#include "models/placement_table.h"

namespace stepsim {

enum class PlanVerb : std::uint8_t {
  kForward,   // run forward ops [first, last] of the layer: the first time forward, later as recompute
  kBackward,  // run backward ops [first, last] of the layer
  kDrop,      // later readers of slot `first` need a re-run (its storage dies with its last reader so far)
  // Of slot `first`, or of one of its slices: offload. Copies are issued where they stand; compute waits where it stands.
  kCopyOut,
  kWaitOut,         // compute waits for the copy out
  kRelease,         // compute waits for the copy out; then the program lets go of the device storage
  kReleaseByEvent,  // the program lets go; the memory is free when the copy has ended
  kCopyIn,          // into a new device storage, which later readers read
};

struct PlanStep {
  PlanVerb verb = PlanVerb::kForward;
  std::int32_t layer = 0;              // of the stage, 0-based
  std::int32_t first = 0, last = 0;    // op indices of the template, both included; kDrop and offload: slot index in `first`
  bool again = false;                  // kForward: a re-run (phase recompute)
  std::int16_t slice = 0, slices = 1;  // offload: which of how many parts of the storage
};

// One micro-batch through the stage's layers: forward of all of them, then (after the head) backward of all of them.
struct PlacementPlan {
  std::vector<PlanStep> forward;   // until the head may run
  std::vector<PlanStep> backward;  // from the head's gradient on
};
inline bool moves_storage(PlanVerb verb) { return verb >= PlanVerb::kCopyOut; }

// The policy as it concerns layers [first_layer, first_layer + layers) of a model, numbered from 0: rows cut to them, block's and the
// segments' counts at most so many. As in Megatron-LM, each model chunk of a pipeline applies the method to its own layers.
// Rows of other micro-batches than `micro_batch` are left out.
PlacementPolicy chunk_policy(const PlacementPolicy&, std::int64_t first_layer, std::int64_t layers, std::int64_t micro_batch = 0);

// `stage`: of the pipeline, for policies that treat stages differently.
PlacementPlan make_plan(const LayerStack&, const PlacementPolicy&, const FrameworkPreset&, std::int64_t stage = 0);
inline PlacementPlan make_plan(const LayerTemplate& layer, std::int64_t layers, const PlacementPolicy& policy,
                               const FrameworkPreset& framework, std::int64_t stage = 0) {
  return make_plan(LayerStack(layer, layers), policy, framework, stage);
}

// Every op reads only live slots, every backward op runs exactly once, dropped storages are re-made and released ones copied back before
// use. "" or what is wrong.
std::string plan_error(const PlacementPlan&, const LayerStack&);
inline std::string plan_error(const PlacementPlan& plan, const LayerTemplate& layer, std::int64_t layers) {
  return plan_error(plan, LayerStack(layer, layers));
}

// Forward ops run in all (first runs and re-runs), as a multiple of one forward of all layers.
double forward_runs(const PlacementPlan&, const LayerStack&);
inline double forward_runs(const PlacementPlan& plan, const LayerTemplate& layer, std::int64_t layers) {
  return forward_runs(plan, LayerStack(layer, layers));
}

}  // namespace stepsim
