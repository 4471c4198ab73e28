// Settings of a job that change nothing in it, for a user who believes that they do. Knows no graph.
#pragma once

#include <string>
#include <vector>

#include "tools/job.h"

namespace stepsim {

// A sentence each, in the order of the flags: "--zero 3 has no effect: ...". Only what the user gave, never what a preset or a default
// says, and only what asks for something: not a 1 or a 0 that says what is so anyhow. The job's layout has been checked.
std::vector<std::string> idle_settings(const Job& job);

}  // namespace stepsim
