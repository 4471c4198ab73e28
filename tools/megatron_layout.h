// Megatron-LM's arguments as a parallel layout: ranks of each kind, pipeline stages and their chunks, sharding. Knows no framework.
#pragma once

#include "models/training_recipe.h"
#include "tools/megatron_run.h"

namespace stepsim {

// Everything but overlap and buckets, which are the preset's. InputError with the arguments' place.
ParallelLayout megatron_layout(const MegatronRun& run, const ModelSpec& model);

}  // namespace stepsim
