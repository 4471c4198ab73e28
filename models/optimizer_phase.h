// What follows the last micro-batch: gradient sums over the tensor-parallel group, the gradient norm, the update and the clearing of
// gradients. All of it is bound by memory traffic; bytes per parameter are those of resident_storages.h.
#pragma once

#include "models/model_spec.h"
#include "models/resident_storages.h"

namespace stepsim {

// Parameters that every rank of a tensor-parallel group holds whole but whose gradients come from its own part of the sequence: norms, and
// the biases added after a reduce-scatter (Megatron-LM: attribute sequence_parallel). Per step, all layers.
std::int64_t sequence_parallel_parameters(const ModelSpec&);

// Key and value parameters of one rank that tensor / kv_heads ranks hold alike, each with the gradient of its own query heads only: their
// sum is due once a step. 0 where every rank has heads of its own. Per step, all layers.
std::int64_t replicated_kv_parameters(const ModelSpec&, const ParallelLayout&);

void add_optimizer_phase(OpGraphBuilder&, const StepFrame&, const ModelSpec&, const TrainingRecipe&, const ParallelLayout&,
                         const FrameworkPreset&, const ResidentStorages&);

}  // namespace stepsim
