#include "schema/field_path.h"

#include <charconv>

namespace stepsim {

static std::optional<FieldStep> parse_step(std::string_view text) {
  const std::size_t open = text.find('[');
  FieldStep step{std::string(text.substr(0, open)), 0, open != std::string_view::npos};
  if (step.name.empty()) return std::nullopt;
  if (!step.indexed) return step;
  const char* const last = text.data() + text.size() - 1;
  const auto [end, error] = std::from_chars(text.data() + open + 1, last, step.index);
  if (*last != ']' || error != std::errc() || end != last || step.index < 0) return std::nullopt;
  return step;
}

std::optional<std::vector<FieldStep>> parse_path(std::string_view path) {
  std::vector<FieldStep> steps;
  while (true) {
    const std::size_t dot = path.find('.');
    std::optional<FieldStep> step = parse_step(path.substr(0, dot));
    if (!step) return std::nullopt;
    steps.push_back(std::move(*step));
    if (dot == std::string_view::npos) return steps;
    path.remove_prefix(dot + 1);
  }
}

PathSearch::PathSearch(std::string_view path) : wanted_(parse_path(path).value_or(std::vector<FieldStep>())) {}

bool PathSearch::matches(const std::vector<FieldStep>& above, std::string_view name, int index) {
  const std::size_t depth = above.size() + 1;
  if (depth > wanted_.size() || depth <= deepest_) return false;
  for (std::size_t i = 0; i + 1 < depth; ++i) {
    if (above[i].name != wanted_[i].name || above[i].index != wanted_[i].index) return false;
  }
  if (name != wanted_[depth - 1].name || index != wanted_[depth - 1].index) return false;
  deepest_ = depth;
  return true;
}

}  // namespace stepsim
