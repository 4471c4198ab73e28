// Graphs and results for the tests of the writers.
#pragma once

#include <string>
#include <vector>

#include "sim/cost_model.h"
#include "sim/machine.h"
#include "sim/op_graph.h"
#include "sim/simulate.h"
#include "traces/chrome_trace_writer.h"
#include "traces/graph_file.h"

namespace stepsim {

inline StepResult run_graph(const GraphFile& file, const SimulateOptions& options = {}) {
  const MachineAndCosts on = on_machine(file, plain_machine(file.graph.device_count()));
  return simulate(file.graph, on.machine, GivenCostModel(on.costs), options);
}

inline std::string chrome_trace(const OpGraph& graph, const StepResult& result, const ChromeTraceOptions& options = {}) {
  std::string text;
  write_chrome_trace(graph, result, options, [&](std::string_view piece) { text += piece; });
  return text;
}

// (from, to) of every edge between ops that share no stream, sorted: what the flows of a trace must be.
inline std::vector<std::pair<std::int32_t, std::int32_t>> edges_across_streams(const OpGraph& graph) {
  std::vector<std::pair<std::int32_t, std::int32_t>> edges;
  for (std::int32_t to = 0; to < static_cast<std::int32_t>(graph.ops().size()); ++to) {
    for (const Edge& edge : graph.predecessors(OpId{to})) {
      bool shared = graph.parts(edge.from).empty() && graph.parts(OpId{to}).empty();
      for (const StreamId a : graph.parts(edge.from)) {
        for (const StreamId b : graph.parts(OpId{to})) shared = shared || a == b;
      }
      if (!shared) edges.emplace_back(edge.from.index, to);
    }
  }
  std::sort(edges.begin(), edges.end());
  return edges;
}

// The same with what a trace shows beside edges: from the sender of a point-to-point op to each of its receivers, both the same op.
inline std::vector<std::pair<std::int32_t, std::int32_t>> flows_of(const OpGraph& graph) {
  std::vector<std::pair<std::int32_t, std::int32_t>> flows = edges_across_streams(graph);
  for (std::int32_t op = 0; op < static_cast<std::int32_t>(graph.ops().size()); ++op) {
    if (op_class(graph.work(OpId{op})) != OpClass::kPointToPoint) continue;
    for (std::size_t part = 1; part < graph.parts(OpId{op}).size(); ++part) flows.emplace_back(op, op);
  }
  std::sort(flows.begin(), flows.end());
  return flows;
}

}  // namespace stepsim
