#include "traces/graph_source.h"

#include <fmt/format.h>

#include "schema/read_message.h"
#include "sim/input_error.h"

namespace stepsim {

std::string FieldPath::text() const {
  std::string path = above == nullptr ? "" : above->text() + ".";
  path += name;
  return index < 0 ? path : path + "[" + std::to_string(index) + "]";
}

void GraphSource::fail(const FieldPath& path, const std::string& problem) const {
  for (const FieldPath* field = &path; field != nullptr && !text.empty(); field = field->above) {
    const SourceLocation where = locate_field(text, file, field->text());
    if (where.line > 0) throw InputError(where, problem);
  }
  throw InputError({.file = file}, path.text() + ": " + problem);
}

Bytes GraphSource::bytes(const FieldPath& path, std::string_view quantity) const {
  try {
    return parse_bytes(quantity);
  } catch (const QuantityError& error) {
    fail(path, error.what());
  }
}

Duration GraphSource::duration(const FieldPath& path, std::string_view quantity) const {
  try {
    return parse_duration(quantity);
  } catch (const QuantityError& error) {
    fail(path, error.what());
  }
}

std::int64_t GraphSource::within(const FieldPath& path, std::int64_t value, std::int64_t low, std::int64_t high) const {
  if (value < low || value > high) fail(path, fmt::format("found {}, wanted a whole number from {} to {}", value, low, high));
  return value;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  return text.size() <= kLongest ? fmt::format("\"{}\"", text) : fmt::format("\"{}...\"", text.substr(0, kLongest));
}

}  // namespace stepsim
