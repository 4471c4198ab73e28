// Copies of graphs: with other costs, or several graphs beside each other in one.
#pragma once

#include <functional>

#include "sim/op_graph.h"

namespace stepsim {

// Adds all of `graph` to the builder, behind what it has: devices, streams, queues, issuers, pools, storages, ops. `work`: of an op of
// `graph`, what it is in the copy.
void append_graph(OpGraphBuilder& builder, const OpGraph& graph, const std::function<OpWork(OpId)>& work);

// The same graph with other works by op.
OpGraph with_works(const OpGraph& graph, const std::function<OpWork(OpId)>& work);

// Graphs beside each other, with nothing in common: their devices, storages and ops follow each other in the given order.
OpGraph side_by_side(std::span<const OpGraph* const> graphs);

}  // namespace stepsim
