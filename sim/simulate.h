// Runs a graph on a machine in simulated time. Pure: same arguments, same result. Rules: ARCHITECTURE.md, "Time and order", "Resources", "Memory".
#pragma once

#include "sim/cost_model.h"
#include "sim/machine.h"
#include "sim/memory_ledger.h"
#include "sim/op_graph.h"
#include "sim/step_result.h"

namespace stepsim {

struct SimulateOptions {
  LedgerRule device = LedgerRule::kIssueOrder;
  LedgerRule host = LedgerRule::kDeviceOrder;
  bool stop_at_out_of_memory = false;  // keep only what started before the first claim above capacity
  bool memory = true;                  // false: timeline only
};

// The graph must be a DAG (find_cycle) or the result says deadlock. Costs are asked once per (work, device).
StepResult simulate(const OpGraph&, const Machine&, const CostModel&, const SimulateOptions& = {});

}  // namespace stepsim
