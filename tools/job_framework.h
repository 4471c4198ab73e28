// The framework section of a job: which preset, what the job changes of it, and what the resolved job says of both.
#pragma once

#include "models/framework_catalog.h"
#include "tools/job_values.h"

namespace stepsim {

// Sets job.framework. Fields of the preset are not noted yet: what matters follows from the rest of the job.
DescribedFramework resolve_framework(JobValues& values, const JobEntries& entries, Job& job);

// Of the kernels that the preset prefers, the newest that the machine has.
void take_flash_of_machine(Job& job);

// Notes "framework.FIELD" of each field that the job changed, or that matters to it and has no path of its own (parallel.p2p, ...).
void note_framework(JobValues& values, const DescribedFramework& framework, const Job& job);

}  // namespace stepsim
