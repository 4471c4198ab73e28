// Which ops the length of the step hangs on: the longest chain of edges, stream order and launches through a finished timeline.
#pragma once

#include <vector>

#include "sim/cost_model.h"
#include "sim/op_graph.h"
#include "sim/step_result.h"

namespace stepsim {

struct PathStep {
  OpId op{};
  DeviceId device{};
  TimePoint start{};
  Duration duration{};
};

// From the first op to the one that ends last, each step the latest-ending thing that the next one waited for (tie: lower id).
std::vector<PathStep> critical_path(const OpGraph&, const StepResult&);

// The longest path through the DAG by given durations, without resources or issue: a lower bound of every schedule (Boost.Graph).
Duration longest_path(const OpGraph&, std::span<const Duration> duration_of_op);

}  // namespace stepsim
