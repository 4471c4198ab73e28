// Suggests the name that the user probably meant.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace stepsim {

// The shortest candidate that `name` begins; otherwise the one with the least edit distance (insert, delete, replace, swap; case does not
// count), "" if none is near enough (more than a third of the length away). Tie: the first.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

// ", did you mean \"x\"?" or "".
std::string suggestion(std::string_view name, std::span<const std::string> candidates);

}  // namespace stepsim
