// A plan's steps grouped by the unit that runs them: what sharding gathers weights for and reduces gradients behind.
#pragma once

#include <vector>

#include "models/placement_plan.h"

namespace stepsim {

// Consecutive steps of one unit.
struct UnitRun {
  std::int32_t unit = 0;
  std::vector<PlanStep> lead;  // steps of offload before its first op: ahead of what sharding does for the run
  std::vector<PlanStep> steps;
};

// Layer l of the steps is unit first_layer + l. A step of offload belongs to the run that follows it.
void append_unit_runs(const std::vector<PlanStep>& steps, std::int32_t first_layer, std::vector<UnitRun>& runs);

}  // namespace stepsim
