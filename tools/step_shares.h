// What the length of a step hangs on: its longest chain, over all devices, cut into what ran there. Knows no error of any model.
#pragma once

#include <compare>
#include <map>
#include <vector>

#include "sim/critical_path.h"

namespace stepsim {

// What a cost model is right or wrong about as one thing. Recomputation runs the kernels of the forward pass.
enum class StepPass : std::uint8_t { kForward, kBackward, kOther };
struct KernelKind {
  StepPass pass = StepPass::kForward;
  // A matrix product by its shape and layout, an attention kernel by its head dimension, memory-bound kernels by their kind, collectives by
  // kind, library and ranks, copies by direction: not by their bytes.
  OpWork work{};
  friend auto operator<=>(const KernelKind&, const KernelKind&) = default;
};
OpWork without_size(const OpWork& work);

struct StepShares {
  Duration step{};
  std::map<KernelKind, Duration> work{};  // of the chain, without what sharing slows it
  Duration slowed{};                      // by sharing
  Duration host{};                        // between the ops of the chain: launches
  // All of them add up to `step`: where every op of the chain takes 1 % longer, so does the step.
};

// Of a step that ran to its end; `path` is its critical_path().
StepShares step_shares(const OpGraph& graph, const StepResult& result, const std::vector<PathStep>& path);

}  // namespace stepsim
