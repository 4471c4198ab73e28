// Weight gradients of the head that wait for the end of the passes, so that the last stage's backward passes are shorter (Megatron-LM
// --defer-embedding-wgrad-compute): of the first micro-batches, as many as the recipe says. What their products read lives until then.
#pragma once

#include <cstdint>
#include <vector>

#include "models/pipeline_schedule.h"
#include "models/training_recipe.h"

namespace stepsim {

// Micro-batches whose weight gradient waits, from 0 on.
std::int32_t deferred_head_passes(const TrainingRecipe&, const ParallelLayout&, std::int32_t micro_batches);

// Adds their passes of weight gradients behind the last stage's others. `chunks`: of a stage.
void add_deferred_head_passes(std::vector<StagePasses>&, std::int32_t chunks, std::int32_t deferred);

// InputError where gradients are reduced before those passes.
void check_deferred_head_passes(const TrainingRecipe&, const ParallelLayout&);

}  // namespace stepsim
