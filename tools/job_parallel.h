// Reads the parallel layout of a job: ranks against GPUs, pipeline, data parallelism, and which stage the report is about.
#pragma once

#include "tools/job_values.h"

namespace stepsim {

// Fills job.parallel (what the user left open is the framework's), job.gpus, job.reported_stage and the global batch. The model, framework
// and micro-batch must be there. A value without effect in the layout is noted only if it was given.
void resolve_parallel(JobValues& values, Job& job);

}  // namespace stepsim
