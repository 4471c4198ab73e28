// Small training steps that a real backend runs: models, and what becomes of their activations. Knows no backend.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/step_builder.h"

namespace stepsim {

struct BackendModel {
  std::string name;  // "gpt 4x256"
  ModelSpec model{};
  std::int64_t sequence = 0, micro_batch = 1;
};

// Sizes whose layers save more than a core's own cache holds, and whose step takes about a hundred milliseconds of a core.
std::vector<BackendModel> processor_models();
// Of a GPU's size: tens of milliseconds of its tensor cores (kernels.md section 4).
std::vector<BackendModel> gpu_models();

struct BackendPlacement {
  std::string_view name;
  PlacementPolicy policy{};
};

// none, full, uniform 2, selective core_attn, offload without and with prefetch, recompute and offload together.
std::vector<BackendPlacement> backend_placements();
PlacementPolicy backend_placement(std::string_view name);  // STEPSIM_CHECK: one of those

struct BackendRecipe {
  double dropout = 0.1;
  Precision precision = Precision::kFp32;
  std::int32_t tensor = 1;
};

// One micro-batch, unfused attention, the preset stepsim-kernels.
StepRequest backend_request(const BackendModel& model, const PlacementPolicy& policy, const BackendRecipe& recipe = {});

}  // namespace stepsim
