#include "tools/placement_names.h"

#include <vector>

#include "schema/nearest_name.h"

namespace stepsim {

static constexpr NamedPlacement kNamed[] = {
    {"none", "--recompute none: every saved tensor is kept", "none", ""},
    {"full", "--recompute full: only the layers' inputs are kept", "full", ""},
    {"selective", "--recompute selective: the attention core runs again", "selective", ""},
    {"halving", "--recompute full --recompute-segments halving: Chen 2016, recursive", "full", "halving"},
};

std::span<const NamedPlacement> named_placements() { return kNamed; }

bool is_placement_name(std::string_view name) {
  for (const NamedPlacement& placement : kNamed) {
    if (placement.name == name) return true;
  }
  return false;
}

std::string unknown_placement(const std::string& name) {
  std::vector<std::string> names;
  std::string list;
  for (const NamedPlacement& placement : kNamed) {
    names.emplace_back(placement.name);
    list += (list.empty() ? "" : ", ") + names.back();
  }
  return "found \"" + name + "\", wanted a file or one of " + list + suggestion(name, names);
}

}  // namespace stepsim
