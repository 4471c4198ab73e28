// The execution plan of a graph and its program.
#pragma once

#include "hardware/backends/execution_plan.h"

namespace stepsim {

// A storage is released by the last op in issue order that touches it: memory is ordered by the host, as in stream-ordered allocators.
// STEPSIM_CHECK: program_error() finds nothing.
ExecutionPlan execution_plan(const OpGraph& graph, const KernelProgram& program, std::vector<StorageId> observed = {});

}  // namespace stepsim
