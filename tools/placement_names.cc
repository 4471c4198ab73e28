#include "tools/placement_names.h"

#include <vector>

#include "models/offload_presets.h"
#include "schema/nearest_name.h"

namespace stepsim {

static constexpr NamedPlacement kUsual[] = {
    {"none", "--recompute none: every saved tensor is kept", "none", ""},
    {"full", "--recompute full: only the layers' inputs are kept", "full", ""},
    {"selective", "--recompute selective: the attention core runs again", "selective", ""},
    {"halving", "--recompute full --recompute-segments halving: Chen 2016, recursive", "full", "halving"},
};

// Those of models/offload_presets.h stand behind the usual ones.
static std::vector<NamedPlacement> all_placements() {
  std::vector<NamedPlacement> placements(std::begin(kUsual), std::end(kUsual));
  for (const OffloadPreset& preset : offload_presets()) {
    placements.push_back({preset.name, preset.meaning, preset.recompute == RecomputeGranularity::kFull ? "full" : "none", "", true});
  }
  return placements;
}

std::span<const NamedPlacement> named_placements() {
  static const std::vector<NamedPlacement> placements = all_placements();
  return placements;
}

bool is_placement_name(std::string_view name) {
  for (const NamedPlacement& placement : named_placements()) {
    if (placement.name == name) return true;
  }
  return false;
}

std::string unknown_placement(const std::string& name) {
  std::vector<std::string> names;
  std::string list;
  for (const NamedPlacement& placement : named_placements()) {
    names.emplace_back(placement.name);
    list += (list.empty() ? "" : ", ") + names.back();
  }
  return "found \"" + name + "\", wanted a file or one of " + list + suggestion(name, names);
}

}  // namespace stepsim
