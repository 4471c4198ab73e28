// How large the graph of a step will be, before any of it is made: absurd requests are refused with a number instead of filling memory.
#pragma once

#include "models/layer_stack.h"
#include "models/placement_plan.h"

namespace stepsim {

// Limits of spec/cli.md, "Exit codes".
inline constexpr std::int64_t kMostGraphOps = 200'000'000;
inline constexpr std::int64_t kMostGraphBytes = std::int64_t{16} << 30;

// Ops of a graph and the memory that a run of it takes at its most; both stay at the largest int64 rather than wrap.
//
// Graph, timeline and memory log stay to the end; the most is taken while the ledger and, beside it, the partition of the time are made,
// or, with one micro-batch, while the graph is stamped from its script. Not counted: JSON and other outputs, and what does not grow with
// the graph.
struct GraphSize {
  std::int64_t ops = 0;
  std::int64_t bytes = 0;
  friend GraphSize operator+(const GraphSize&, const GraphSize&);  // as saturated
};

// A lower bound that needs no plan: every op of every layer once.
GraphSize least_graph_size(const LayerStack&, std::int64_t micro_batches);
inline GraphSize least_graph_size(const LayerTemplate& layer, std::int64_t layers, std::int64_t micro_batches) {
  return least_graph_size(LayerStack(layer, layers), micro_batches);
}
GraphSize graph_size(const LayerStack&, const PlacementPlan&, std::int64_t micro_batches);
inline GraphSize graph_size(const LayerTemplate& layer, const PlacementPlan& plan, std::int64_t layers, std::int64_t micro_batches) {
  return graph_size(LayerStack(layer, layers), plan, micro_batches);
}

// How many model chunks a pipeline has and on how many devices.
struct PipelineShape {
  std::int64_t stages = 1, chunks = 1;  // chunks of a stage
};

// What a pipeline adds to the layers: streams and costs of every stage, passes, and transfers between the chunks. 0 with one stage.
GraphSize pipeline_size(const LayerStack&, const PipelineShape&, std::int64_t micro_batches);
inline GraphSize pipeline_size(const LayerTemplate& layer, const PipelineShape& shape, std::int64_t micro_batches) {
  return pipeline_size(LayerStack(layer, 1), shape, micro_batches);
}

// InputError above a limit, "--layers: found ...", "--pp: found ..." or "--global-batch: found ...": whichever factor is the largest, the
// first of equals.
void check_graph_size(const GraphSize&, std::int64_t layers, const PipelineShape&, std::int64_t micro_batches);

}  // namespace stepsim
