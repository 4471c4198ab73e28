// The ops of a graph file on their way into an OpGraphBuilder.
#pragma once

#include <string>
#include <vector>

#include "sim/op_graph.h"
#include "traces/graph_file.h"
#include "traces/graph_source.h"
#include "traces/graph_tables.h"

namespace stepsim {

namespace graph_file {
class Graph;
}

// Adds every op to the builder and its cost to the file. Returns the names by op id, "#3" for one without.
std::vector<std::string> add_ops(const graph_file::Graph& graph, const GraphSource& source, GraphTables& tables, OpGraphBuilder& builder,
                                 GraphFile& file);

}  // namespace stepsim
