// The stack of a job: as the user says, or what the catalog knows of its machine, precision and framework.
#pragma once

#include "tools/job.h"
#include "tools/job_values.h"

namespace stepsim {

// Sets job.stack and the slowdowns of job.gpu; says among the assumptions what stands for them, or that nothing is known. Needs the
// machine, the framework and the precision.
void resolve_stack(JobValues& values, Job& job);

}  // namespace stepsim
