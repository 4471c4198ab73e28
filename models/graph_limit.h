// How large the graph of a step will be, before any of it is made: absurd requests are refused with a number instead of filling memory.
#pragma once

#include "models/layer_template.h"
#include "models/placement_plan.h"

namespace stepsim {

// Limits of spec/cli.md, "Exit codes".
inline constexpr std::int64_t kMostGraphOps = 200'000'000;
inline constexpr std::int64_t kMostGraphBytes = std::int64_t{16} << 30;

// Ops of a graph and the memory that a run of it takes at its most; both stay at the largest int64 rather than wrap.
//
// Graph, timeline and memory log stay to the end; the most is taken while two ledgers work, the step's and that of the first iteration, or,
// with one micro-batch, while the graph is stamped from its script. Transfers between stages are not counted: they are few.
// Not counted: JSON and other outputs, and what does not grow with the graph.
struct GraphSize {
  std::int64_t ops = 0;
  std::int64_t bytes = 0;
};

// A lower bound that needs no plan: every op of every layer once.
GraphSize least_graph_size(const LayerTemplate& layer, std::int64_t layers, std::int64_t micro_batches);
GraphSize graph_size(const LayerTemplate& layer, const PlacementPlan&, std::int64_t layers, std::int64_t micro_batches);

// InputError "--layers: found ..." or "--global-batch: found ..." above a limit, whichever factor is larger.
void check_graph_size(const GraphSize&, std::int64_t layers, std::int64_t micro_batches);

}  // namespace stepsim
