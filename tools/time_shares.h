// Where a step's time goes, by name of op: what the compute stream of the device that ends last runs and what it waits for.
#pragma once

#include <map>
#include <string>

#include "tools/step_run.h"

namespace stepsim {

// "forward gate and up": running that op, of all layers and micro-batches; "waiting for forward copy out query"; "waiting for other
// stages", "waiting for the host's launches", "idle". Adds up to the step.
std::map<std::string, Duration> time_shares(const OpGraph& graph, const GraphRun& run);

}  // namespace stepsim
