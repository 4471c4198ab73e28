// A schedule of a chain as a graph that sim/ runs, so that the engine and the replay judge each other.
#pragma once

#include <vector>

#include "sim/cost_model.h"
#include "sim/machine.h"
#include "sim/op_graph.h"
#include "tools/studies/chain_sequence.h"

namespace stepsim {

// One device with a compute stream and two copy streams (on one engine or two); a time unit is a picosecond, a size unit a byte.
struct ChainGraph {
  OpGraph graph;
  Machine machine{};                         // its capacities are the budget
  std::vector<GivenCostModel::Row> costs{};  // of a GivenCostModel
};

// simulate() of it under device order takes as long as the replay, and its peaks are the replay's if the schedule is settled(). The
// schedule must replay without a violation (STEPSIM_CHECK).
ChainGraph chain_graph(const Chain& chain, const ChainBudget& budget, const ChainSchedule& schedule);

}  // namespace stepsim
