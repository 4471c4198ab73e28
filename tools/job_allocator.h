// How the job's process allocates device memory: what PYTORCH_CUDA_ALLOC_CONF would say.
#pragma once

#include "tools/job.h"
#include "tools/job_values.h"

namespace stepsim {

// Sets job.allocator. InputError for an option that is unknown or changes nothing here.
void resolve_allocator(JobValues& values, Job& job);

}  // namespace stepsim
