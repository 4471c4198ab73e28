// Runs a graph on a machine in simulated time. Pure: same arguments, same result. Rules: ARCHITECTURE.md, "Time and order", "Resources",
// "Memory".
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
  // Keep what started and was claimed not later than the first claim above capacity (out_of_memory.at): later runs, their parts and later
  // memory events are dropped, the runs that are kept go to their own ends, and `end` is the last of those. Nothing runs where the
  // residents alone exceed the capacity.
  bool stop_at_out_of_memory = false;
  bool memory = true;  // false: timeline only
};

// The graph must be a DAG (find_cycle) or the result says deadlock. Costs are asked once per (work, device); their loads are on resources
// of the machine (STEPSIM_CHECK). Time stops at its end, 106 days: what would be later happens then.
StepResult simulate(const OpGraph&, const Machine&, const CostModel&, const SimulateOptions& = {});

}  // namespace stepsim
