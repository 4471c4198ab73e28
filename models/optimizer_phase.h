// What follows the last micro-batch on every stage: gradient sums that are still due, the gradient norm, the update, the gathering of
// updated weights and the clearing of gradients. Kernels are bound by memory traffic; bytes per parameter are those of resident_storages.h.
// Order: Megatron-LM core/distributed/finalize_model_grads.py, then core/optimizer/optimizer.py.
#pragma once

#include <span>
#include <vector>

#include "models/data_parallel.h"
#include "models/model_spec.h"
#include "models/resident_storages.h"
#include "models/stage_layout.h"
#include "models/update_kernels.h"

namespace stepsim {

// Parameters of `layers` layers, and of the final norm with the head, that every rank of a tensor-parallel group holds whole but whose
// gradients come from its own part of the sequence: norms, and the biases added after a reduce-scatter (Megatron-LM: attribute
// sequence_parallel).
std::int64_t sequence_parallel_parameters(const ModelSpec&, std::int64_t layers, bool head);

// Likewise, of the routers of so many layers (Megatron-LM core/transformer/moe/router.py).
std::int64_t router_parameters(const ModelSpec&, std::int64_t layers);

// Key and value parameters of one rank in `layers` layers that tensor / kv_heads ranks hold alike, each with the gradient of its own query
// heads only: their sum is due once a step. 0 where every rank has heads of its own.
std::int64_t replicated_kv_parameters(const ModelSpec&, const ParallelLayout&, std::int64_t layers);

// What the passes of a stage left behind.
struct StageTail {
  std::int64_t layers = 0;
  std::int64_t expert_layers = 0;  // of which mixtures of experts
  bool head = false;
  Tensor table_gradient;                  // of a table that another stage holds too (tied embedding); no storage: there is none
  OpId last_compute, last_reduce;         // none: no such op
  std::vector<GradientBucket> unreduced;  // data-parallel sums that are still due
};

// Nothing where the optimizer runs in backward; with no optimizer only the sums of gradients.
void add_optimizer_phase(OpGraphBuilder&, const StepFrame&, const OptimizerContext&, std::span<const StageTail>);

// What cannot run with an optimizer in backward: "--set training.optimizer_in_backward: found X, wanted Y", InputError.
void check_optimizer_in_backward(const TrainingRecipe&, const ParallelLayout&, std::int64_t micro_batches);

// All-gathers of a unit's updated weights on the gather stream, of routed experts' apart: the last; none if nothing of the unit is updated.
// `phase` is where they run.
OpId add_weight_gather(OpGraphBuilder&, const StepFrame&, std::size_t stage, const OptimizerContext&, const UnitResidents&, Phase phase,
                       OpId after);

}  // namespace stepsim
