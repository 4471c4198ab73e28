// The placements that have a name.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace stepsim {

struct NamedPlacement {
  std::string_view name;
  std::string_view meaning;  // the flags that say the same
  std::string_view recompute, segments;
  bool offloads = false;
};

std::span<const NamedPlacement> named_placements();
bool is_placement_name(std::string_view name);

// "found "ful", wanted a file or one of none, full, ..."
std::string unknown_placement(const std::string& name);

}  // namespace stepsim
