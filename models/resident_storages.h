// What lives from step to step: weights, main gradients and optimizer state of the embedding, each layer and the head, and the libraries'
// workspace. Bytes per parameter: spec/placement_and_memory.md section 3.3 (bf16 18, fp16 20, fp32 16).
#pragma once

#include <vector>

#include "models/framework_preset.h"
#include "models/step_frame.h"
#include "models/training_recipe.h"
#include "sim/op_graph.h"

namespace stepsim {

// Bytes of one parameter's copies; 0: there is none.
struct ParameterBytes {
  std::int64_t weight = 2, gradient = 4;
  std::int64_t gradient_copy = 0;  // fp32 gradient made in the optimizer from a 16-bit one
  std::int64_t master = 4;         // fp32 weight beside a 16-bit one
  std::int64_t moments = 8;        // Adam's m and v, fp32
};
ParameterBytes parameter_bytes(const TrainingRecipe&, const FrameworkPreset&);

// The recipe with its gradient dtype: as given; else fp16 beside fp16 weights (Megatron-LM forces fp32 accumulation for bf16 only:
// spec/megatron_memory.md section 3.1), else the preset's.
TrainingRecipe with_gradient_dtype(const TrainingRecipe&, const FrameworkPreset&);

struct UnitResidents {
  StorageId weights, gradients;
  StorageId master, moments, gradient_copy;  // none where ParameterBytes has none
  std::int64_t parameters = 0;               // 0: every id is none
};

struct ResidentStorages {
  ParameterBytes bytes;
  std::vector<UnitResidents> units;  // the embedding, the layers, the head
};

// Per device, the tied head's table with the embedding.
struct UnitParameters {
  std::int64_t embedding = 0, layer = 0, head = 0;
};

// Adds the storages. With gradients that are not always allocated, a gradient is born by its first write and dies in the optimizer.
ResidentStorages add_residents(OpGraphBuilder&, const StepFrame&, const TrainingRecipe&, const FrameworkPreset&, const UnitParameters&,
                               std::int64_t layers, Bytes library_workspace);

}  // namespace stepsim
