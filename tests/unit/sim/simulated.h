// A small graph, run: ends and starts by op, for tests of the engine.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/check.h"
#include "sim/simulate.h"
#include "small_graph.h"

namespace stepsim {

struct Simulated {
  OpGraph graph;
  StepResult result;

  const OpRun& run(OpId op) const {
    for (const OpRun& each : result.timeline) {
      if (each.op == op) return each;
    }
    check_failed("the op ran", __FILE__, __LINE__);
  }
  std::int64_t issued(OpId op) const { return run(op).issued.count(); }
  std::int64_t start(OpId op) const { return run(op).start.count(); }
  std::int64_t end(OpId op) const { return run(op).end.count(); }
  std::int64_t end() const { return result.end.count(); }
};

// Devices and resources 0, 1, ... as many as asked.
inline Machine small_machine(std::int32_t devices, std::int32_t resources) {
  Machine machine = plain_machine(devices);
  for (std::int32_t i = 0; i < resources; ++i) machine.resources.push_back({.name = "resource " + std::to_string(i), .kind = "sm"});
  return machine;
}

inline Simulated simulated(SmallGraph small, const Machine& machine, const SimulateOptions& options = {}) {
  const GivenCostModel costs = small.costs();
  OpGraph graph = std::move(small.builder).build();
  StepResult result = simulate(graph, machine, costs, options);
  return {.graph = std::move(graph), .result = std::move(result)};
}

inline Load load_of(std::int32_t resource, double u) { return {.resource = ResourceId{resource}, .fraction_2e30 = load_fraction(u)}; }

}  // namespace stepsim
