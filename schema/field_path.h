// Paths of fields: "rows[2].action". A name without [index] is its first value.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stepsim {

struct FieldStep {
  std::string name;
  int index = 0;
  bool indexed = false;  // written with [index]
};

// None if it is no path: an empty name, text after ], an index that is no number.
std::optional<std::vector<FieldStep>> parse_path(std::string_view path);

// Asked for every field of a text, in order: is it the one that is looked for, or nearer to it than all before?
class PathSearch {
 public:
  explicit PathSearch(std::string_view path);
  bool matches(const std::vector<FieldStep>& above, std::string_view name, int index);

 private:
  std::vector<FieldStep> wanted_;
  std::size_t deepest_ = 0;  // steps of the best match so far
};

}  // namespace stepsim
