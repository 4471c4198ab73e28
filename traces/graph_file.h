// A user's own operator graph (schema graph.proto; text, JSON or binary form) <-> OpGraph with the costs it gives.
#pragma once

#include <string>
#include <vector>

#include "sim/cost_model.h"
#include "sim/machine.h"
#include "sim/metrics.h"
#include "sim/op_graph.h"

namespace stepsim {

struct GraphFile {
  OpGraph graph;
  std::vector<GivenCostModel::Row> costs;  // rows of Given work; loads refer to `resources`
  std::vector<Resource> resources;         // that the file declares; appended after a machine's own by the caller
  std::vector<std::string> role_names;     // by bucket
  std::vector<std::string> phase_names;    // by bucket
  PhaseMeaning phases;
  bool needs_cost_model = false;           // some op has modelled work (gemm, copy, ...): a machine is needed
  std::vector<std::optional<Bytes>> device_capacity;  // where the file gives it
};

// InputError with the place: unknown names, duplicate ids, a cycle (names its ops), negative sizes, unit missing, above 200 million ops.
GraphFile read_graph(const std::string& path);

// The text form of a graph with its durations from a result, so that it can be simulated again; for tests and for users who start from `run`.
std::string graph_text(const OpGraph&);

}  // namespace stepsim
