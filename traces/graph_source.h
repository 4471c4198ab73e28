// The text that a graph is read from: turns a field path into a place, and text into quantities. Knows no message.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sim/units.h"

namespace stepsim {

// A field below another, without allocation: "ops[3].after[1]".
struct FieldPath {
  const FieldPath* above = nullptr;
  std::string_view name;
  std::int32_t index = -1;  // -1: not repeated

  std::string text() const;
};

struct GraphSource {
  std::string_view text;  // empty for the binary form
  std::string file;

  // InputError at the field, or at the nearest one above it that is there; the binary form names the path instead.
  [[noreturn]] void fail(const FieldPath& path, const std::string& problem) const;

  Bytes bytes(const FieldPath& path, std::string_view quantity) const;
  Duration duration(const FieldPath& path, std::string_view quantity) const;
  // `value` if low <= value <= high.
  std::int64_t within(const FieldPath& path, std::int64_t value, std::int64_t low, std::int64_t high) const;
};

constexpr std::int32_t kLargestIndex = 1'000'000'000;  // of layers, micro-batches and launch groups
std::string in_quotes(std::string_view text);          // "x", shortened if long

}  // namespace stepsim
