// The placement section of a job as a policy.
#pragma once

#include <string>

#include "models/placement_table.h"
#include "tools/job_values.h"

namespace stepsim {

// What contradicts itself in the section is refused here, what the model cannot do by check_policy.
PlacementPolicy resolve_placement(JobValues& values, const JobEntries& entries);

}  // namespace stepsim
