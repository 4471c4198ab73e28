// What `run` prints for people: at most 26 lines of 110 columns, the verdict first.
#pragma once

#include <string>

#include "tools/memory_report.h"
#include "tools/placement_alternatives.h"

namespace stepsim {

std::string run_summary(const Job& job, const StepRun& run, const PlacementAlternatives& alternatives, const MemoryAnswers& answers = {});

}  // namespace stepsim
