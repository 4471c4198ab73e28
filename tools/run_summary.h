// What `run` prints for people: at most 26 lines of 110 columns, the verdict first.
#pragma once

#include <string>

#include "tools/step_run.h"

namespace stepsim {

std::string run_summary(const Job& job, const StepRun& run);

}  // namespace stepsim
