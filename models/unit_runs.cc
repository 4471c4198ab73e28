#include "models/unit_runs.h"

#include <utility>

namespace stepsim {

void append_unit_runs(const std::vector<PlanStep>& steps, std::int32_t first_layer, std::vector<UnitRun>& runs) {
  std::vector<PlanStep> moves;  // since the last step of a unit
  for (const PlanStep& step : steps) {
    const std::int32_t unit = step.layer + first_layer;
    if (moves_storage(step.verb)) {
      moves.push_back(step);
      continue;
    }
    const bool goes_on = !runs.empty() && runs.back().unit == unit;
    if (!goes_on) runs.push_back({.unit = unit, .lead = std::exchange(moves, {}), .steps = {}});
    runs.back().steps.insert(runs.back().steps.end(), moves.begin(), moves.end());
    runs.back().steps.push_back(step);
    moves.clear();
  }
  if (!moves.empty()) runs.back().steps.insert(runs.back().steps.end(), moves.begin(), moves.end());
}

}  // namespace stepsim
