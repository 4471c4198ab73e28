// Results as JSON text, field names as README.md lists them. Numbers: times in seconds, sizes in bytes, rates per second, fractions of 1.
#pragma once

#include <string>
#include <vector>

#include "tools/graph_run.h"
#include "tools/memory_report.h"
#include "tools/placement_alternatives.h"

namespace stepsim {

// Of what run_json writes.
inline constexpr int kSchemaVersion = 1;

std::string run_json(const Job& job, const StepRun& run, const PlacementAlternatives& alternatives, const MemoryAnswers& answers = {});

struct GraphNames {
  std::vector<std::string> roles, phases;  // by bucket
};
std::string graph_run_json(const OpGraph& graph, const CostModel& costs, const GraphRun& run, const GraphNames& names, double wall_s);

}  // namespace stepsim
