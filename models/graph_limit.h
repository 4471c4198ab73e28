// How large the graph of a step will be, before any of it is made: absurd requests are refused with a number instead of filling memory.
#pragma once

#include "models/layer_template.h"
#include "models/placement_plan.h"

namespace stepsim {

// Limits of spec/cli.md, "Exit codes".
inline constexpr std::int64_t kMostGraphOps = 200'000'000;
inline constexpr std::int64_t kMostGraphBytes = std::int64_t{16} << 30;

// Ops and bytes of a graph; both stay at the largest int64 rather than wrap.
struct GraphSize {
  std::int64_t ops = 0;
  std::int64_t bytes = 0;  // of the tables of sim/op_graph.h
};

// A lower bound that needs no plan: every op of every layer once.
GraphSize least_graph_size(const LayerTemplate& layer, std::int64_t layers, std::int64_t micro_batches);
GraphSize graph_size(const LayerTemplate& layer, const PlacementPlan&, std::int64_t micro_batches);

// InputError "--layers: found ..." or "--global-batch: found ..." above a limit, whichever factor is larger.
void check_graph_size(const GraphSize&, std::int64_t layers, std::int64_t micro_batches);

}  // namespace stepsim
