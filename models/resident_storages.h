// What lives from step to step: weights, main gradients and optimizer state of the embedding, each layer and the head, and workspaces of
// libraries. Bytes per parameter: spec/placement_and_memory.md section 3.3 (bf16 18, fp16 20, fp32 16).
#pragma once

#include <vector>

#include "models/framework_preset.h"
#include "models/step_frame.h"
#include "models/training_recipe.h"
#include "sim/op_graph.h"

namespace stepsim {

inline constexpr const char* kOptimizerMoments = "optimizer moments";  // the name of their storages, born in the first iteration

// Bytes of one parameter's copies; 0: there is none. Of a sharded copy each rank holds its share.
struct ParameterBytes {
  std::int64_t weight = 2, gradient = 4;
  std::int64_t gradient_copy = 0;       // fp32 gradient made in the optimizer from a 16-bit one
  std::int64_t master = 4;              // fp32 weight beside a 16-bit one
  std::int64_t moments = 8;             // of a matrix in a layer: Adam's m and v, fp32
  std::int64_t other_moments = 8;       // of all else: Muon gives embeddings, heads and vectors Adam's
  std::int64_t moment_block = 0;        // parameters that share an fp32 scale for each moment; 0: there are no scales
  std::int64_t unsharded_gradient = 0;  // ZeRO 2 and 3: as backward makes it; `gradient` is then the shard's
  std::int64_t reduced_gradient = 4;    // in collectives; FSDP1 casts the reduced shard to what its parameters are

  // Of so many parameters of which `matrices` are those of matrices in layers. Blocks are counted over all of them together, not tensor by
  // tensor, and tensors below 4,096 values, which bitsandbytes keeps in fp32, as all others (norms: 1e-4 of a model).
  Bytes moment_bytes(std::int64_t parameters, std::int64_t matrices) const;
};
// The layout has everything decided (with_preset), the recipe its gradient dtype (with_gradient_dtype).
ParameterBytes parameter_bytes(const TrainingRecipe&, const ParallelLayout&);
ParameterBytes parameter_bytes(const TrainingRecipe&, const ParallelLayout&, const FrameworkPreset&);

// The recipe with the dtype in which backward makes gradients: as given; else, under ZeRO 2 and 3, that of the weights (PyTorch's
// autograd); else fp16 beside fp16 weights (Megatron-LM forces fp32 accumulation for bf16 only: spec/megatron_memory.md section 3.1), else
// the preset's.
TrainingRecipe with_gradient_dtype(const TrainingRecipe&, const ParallelLayout&, const FrameworkPreset&);

// Ids are none where there is no such copy. Parameters are those of all sharding ranks. Routed experts' copies lie behind the others' in
// the same storages, so that an offset finds them: experts' shares are those of expert_replicas().
struct UnitResidents {
  StorageId weights, gradients;
  StorageId master, moments, gradient_copy;
  StorageId unsharded_gradients;        // ZeRO 2 and 3 where they accumulate over the micro-batches
  std::int64_t parameters = 0;          // trained, routed experts' among them
  std::int64_t expert_parameters = 0;   // of which routed experts'
  std::int64_t matrices = 0;            // of `parameters`, those of matrices in layers
  Bytes kept{};                         // of all ranks' trained weights, as they live all step
  Bytes frozen{};                       // likewise, of weights that are not trained
  StorageId old_gradient_copy;          // fp32 gradients of the step before, until this step's first op
  std::vector<std::int64_t> tensors{};  // parameters of each trained weight; empty: not told apart
  // What the host's processor updates of optimizer_share(): its fp32 weights and moments, and the gradients that it is sent.
  std::int64_t offloaded = 0;
  StorageId host_state, host_gradients;
  StorageId low_copies;  // of the products' format, that live from step to step
};

struct ResidentStorages {
  ParameterBytes bytes;
  std::int64_t weight_shards = 1, gradient_shards = 1, optimizer_shards = 1;                       // ranks that share a copy
  std::int64_t expert_weight_shards = 1, expert_gradient_shards = 1, expert_optimizer_shards = 1;  // of routed experts
  std::vector<std::vector<UnitResidents>> stages;  // of each: units of its chunks, one chunk behind another

  static std::int64_t share(std::int64_t parameters, std::int64_t ranks) { return (parameters + ranks - 1) / ranks; }
  // This rank's part of a unit's parameters: what it holds of weights and gradients, what it updates.
  std::int64_t weight_share(const UnitResidents& unit) const { return share_of(unit, weight_shards, expert_weight_shards); }
  std::int64_t gradient_share(const UnitResidents& unit) const { return share_of(unit, gradient_shards, expert_gradient_shards); }
  std::int64_t optimizer_share(const UnitResidents& unit) const { return share_of(unit, optimizer_shards, expert_optimizer_shards); }

 private:
  static std::int64_t share_of(const UnitResidents& unit, std::int64_t ranks, std::int64_t expert_ranks) {
    return share(unit.parameters - unit.expert_parameters, ranks) + share(unit.expert_parameters, expert_ranks);
  }
};

// The parameters of one unit of a stage and its layer, -1 outside the layers.
struct UnitParameters {
  std::int64_t parameters = 0;  // trained, routed experts' among them
  std::int32_t layer = -1;
  std::int64_t expert_parameters = 0;
  Bytes frozen{};                       // of weights that are not trained, as they are kept
  std::int64_t matrices = 0;            // of `parameters`, those of matrices in layers: Muon's
  Bytes kept{};                         // of the trained weights, as they live all step; 0: each in the dtype of the products
  Bytes cached{};                       // of their copies below 16 bits that live from step to step
  std::vector<std::int64_t> tensors{};  // parameters of each trained weight
};

// A workspace that lives all step.
struct ResidentWorkspace {
  const char* name = "";
  Bytes size;
};

// Ranks that share routed experts' copies where the others' are shared by sharding_ranks().
std::int64_t expert_sharding_ranks(const ParallelLayout&);

// Whether the sharded fp32 weights are the only ones: gathers cast them.
bool shards_are_weights(const ParallelLayout&, const FrameworkPreset&, const ParameterBytes&);

// Adds the storages of all stages, each stage's workspaces behind its units. With gradients that are not always allocated, a gradient is
// born by its first write and dies in the optimizer.
ResidentStorages add_residents(OpGraphBuilder&, const StepFrame&, const TrainingRecipe&, const ParallelLayout&, const FrameworkPreset&,
                               const std::vector<std::vector<UnitParameters>>& stages,
                               const std::vector<std::vector<ResidentWorkspace>>& workspaces = {});

}  // namespace stepsim
