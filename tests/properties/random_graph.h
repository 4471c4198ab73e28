// Random graphs of a few tens of ops with everything that the engine knows, from a seed. Times of a few picoseconds, so that instants
// coincide and roundings show.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/cost_model.h"
#include "sim/machine.h"
#include "sim/op_graph.h"

namespace stepsim {

struct RandomGraphShape {
  std::int32_t most_ops = 40;
  bool sharing = true;  // loads on shared resources
  bool queues = true;
  bool parts = true;  // rendezvous ops
  bool host = true;   // issuers, run-ahead, issue_after, launch groups
  bool markers = true;
  bool start_edges = true;
  bool any_ready = true;  // streams that start any ready op
  bool gates = true;      // a gated host pool
  bool shuffled = true;   // issue order other than by id, and edges against it: may deadlock
  bool zero_durations = true;
  std::int64_t longest = 12;  // ps
};

struct RandomCase {
  OpGraph graph;
  std::vector<GivenCostModel::Row> rows;
  Machine machine;
};

RandomCase random_case(std::uint64_t seed, const RandomGraphShape& shape);

}  // namespace stepsim
