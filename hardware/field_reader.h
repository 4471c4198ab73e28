// Reads fields of a catalog or user file as quantities and fractions, and says where a bad one stands. Knows no Protobuf.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/units.h"

namespace stepsim {

class FieldReader {
 public:
  // `overridden` are the paths that --set gave: errors in them name the flag.
  FieldReader(std::string_view text, std::string file, std::vector<std::string> overridden)
      : text_(text), file_(std::move(file)), overridden_(std::move(overridden)) {}

  // All throw InputError for a missing field (none) and for a value outside the stated range.
  BytesPerSecond rate(const std::string& path, const std::optional<std::string>& value) const;   // > 0
  FlopsPerSecond flops(const std::string& path, const std::optional<std::string>& value) const;  // > 0
  Bytes bytes(const std::string& path, const std::optional<std::string>& value) const;           // > 0
  Duration duration(const std::string& path, const std::optional<std::string>& value) const;     // >= 0, below a second
  double number(const std::string& path, std::optional<double> value, double above, double at_most) const;
  std::int32_t count(const std::string& path, std::optional<std::int32_t> value) const;  // >= 1
  // `problem` is "found X, wanted Y" or "found none, wanted Y".
  [[noreturn]] void fail(const std::string& path, const std::string& problem) const;

 private:
  template <class Parse>
  auto quantity(const std::string& path, const std::optional<std::string>& value, const char* example, Parse parse) const;

  std::string_view text_;
  std::string file_;
  std::vector<std::string> overridden_;
};

}  // namespace stepsim
