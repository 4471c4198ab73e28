// Moves the copies of a step to where a latency-hiding scheduler puts them, as compilers do before a program runs.
#pragma once

#include "models/offload_policy.h"
#include "sim/cost_model.h"
#include "sim/machine.h"
#include "sim/op_graph.h"

namespace stepsim {

// The graph in the order of list_schedule() with copies from and to the host as what may move, under the order's estimates; the memory
// limit is each device's capacity (the least of them). As given for Order::kProgram.
OpGraph latency_hidden(OpGraph graph, const OffloadSchedule&, const Machine&, const CostModel&);

}  // namespace stepsim
