// What lives from step to step: weights, main gradients and optimizer state of the embedding, each layer and the head, and the libraries'
// workspace. Bytes per parameter: spec/placement_and_memory.md section 3.3 (bf16 18, fp16 20, fp32 16).
#pragma once

#include <vector>

#include "models/framework_preset.h"
#include "models/step_frame.h"
#include "models/training_recipe.h"
#include "sim/op_graph.h"

namespace stepsim {

// Bytes of one parameter's copies; 0: there is none. Of a sharded copy each rank holds its share.
struct ParameterBytes {
  std::int64_t weight = 2, gradient = 4;
  std::int64_t gradient_copy = 0;       // fp32 gradient made in the optimizer from a 16-bit one
  std::int64_t master = 4;              // fp32 weight beside a 16-bit one
  std::int64_t moments = 8;             // Adam's m and v, fp32
  std::int64_t unsharded_gradient = 0;  // ZeRO 2 and 3: as backward makes it; `gradient` is then the reduced shard's
};
// The layout has everything decided (with_preset), the recipe its gradient dtype (with_gradient_dtype).
ParameterBytes parameter_bytes(const TrainingRecipe&, const ParallelLayout&);

// The recipe with the dtype in which backward makes gradients: as given; else, under ZeRO 2 and 3, that of the weights (PyTorch's
// autograd); else fp16 beside fp16 weights (Megatron-LM forces fp32 accumulation for bf16 only: spec/megatron_memory.md section 3.1), else
// the preset's.
TrainingRecipe with_gradient_dtype(const TrainingRecipe&, const ParallelLayout&, const FrameworkPreset&);

// Ids are none where there is no such copy. Parameters are those of all sharding ranks.
struct UnitResidents {
  StorageId weights, gradients;
  StorageId master, moments, gradient_copy;
  StorageId unsharded_gradients;  // ZeRO 2 and 3 where they accumulate over the micro-batches
  std::int64_t parameters = 0;    // 0: every id is none
};

struct ResidentStorages {
  ParameterBytes bytes;
  std::int64_t weight_shards = 1, gradient_shards = 1, optimizer_shards = 1;  // ranks that share a copy
  std::vector<std::vector<UnitResidents>> stages;                             // of each: units of its chunks, one chunk behind another

  static std::int64_t share(std::int64_t parameters, std::int64_t ranks) { return (parameters + ranks - 1) / ranks; }
};

// The parameters of one unit of a stage and its layer, -1 outside the layers.
struct UnitParameters {
  std::int64_t parameters = 0;
  std::int32_t layer = -1;
};

// Adds the storages of all stages. With gradients that are not always allocated, a gradient is born by its first write and dies in the
// optimizer.
ResidentStorages add_residents(OpGraphBuilder&, const StepFrame&, const TrainingRecipe&, const ParallelLayout&, const FrameworkPreset&,
                               const std::vector<std::vector<UnitParameters>>& stages, Bytes library_workspace);

}  // namespace stepsim
