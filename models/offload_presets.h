// Placements that frameworks offer by name: those that move activations to the host, and selective ones by op. Each with its source.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/placement_table.h"

namespace stepsim {

struct OffloadPreset {
  std::string_view name, meaning, source;
  RecomputeGranularity recompute = RecomputeGranularity::kNone;  // kFull: of each layer by itself
  std::vector<PlacementRow> rows;
  OffloadPolicy offload;
  std::vector<std::string> keeps{};  // FrameworkPreset::kept_for_reruns: re-runs start from them
};

std::span<const OffloadPreset> offload_presets();
const OffloadPreset* offload_preset(std::string_view name);  // null: none of that name

}  // namespace stepsim
