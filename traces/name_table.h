// Names of one kind of thing in a graph file, numbered as they come.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace stepsim {

class NameTable {
 public:
  // The next number; none if the name is taken.
  std::optional<std::int32_t> add(const std::string& name) {
    const auto number = static_cast<std::int32_t>(names_.size());
    if (!numbers_.emplace(name, number).second) return std::nullopt;
    names_.push_back(name);
    return number;
  }
  // A thing without a name takes a number too.
  void add_nameless() { names_.emplace_back(); }
  std::optional<std::int32_t> find(const std::string& name) const {
    const auto found = numbers_.find(name);
    return found == numbers_.end() ? std::nullopt : std::optional(found->second);
  }
  const std::vector<std::string>& names() const { return names_; }
  std::int32_t size() const { return static_cast<std::int32_t>(names_.size()); }

 private:
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::int32_t> numbers_;
};

}  // namespace stepsim
