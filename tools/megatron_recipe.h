// Megatron-LM's arguments as a training recipe, a placement, and what its kernels and libraries keep. Knows no layout.
#pragma once

#include "models/framework_preset.h"
#include "models/placement_table.h"
#include "models/training_recipe.h"
#include "tools/megatron_run.h"

namespace stepsim {

TrainingRecipe megatron_recipe(const MegatronRun& run);

// --recompute-*.
PlacementPolicy megatron_placement(const MegatronRun& run);

// megatron-core@2025 as the arguments change it: Transformer Engine's layers or local ones, the attention kernel's version, loss, masks.
FrameworkPreset megatron_preset(const MegatronRun& run);

// Bytes of a cuBLAS handle's workspace that CUBLAS_WORKSPACE_CONFIG (":4096:8", ":4096:2:16:8": pairs of KiB and count) decides.
std::optional<Bytes> configured_blas_workspace(const MegatronArguments& arguments);

// Megatron-LM's own layers instead of Transformer Engine's: --transformer-impl local, or the tests' spec and backend of that name.
bool has_local_layers(const MegatronArguments& arguments);

}  // namespace stepsim
