#include "sim/input_error.h"

#include <algorithm>
#include <string_view>

namespace stepsim {

// A line that people read: what they wrote may be as long as a file.
constexpr std::size_t kLongestLine = 500;
constexpr std::size_t kShownFound = 200;
constexpr std::size_t kShownElse = 100;

// "first 200 characters ... (100000 characters)"; a UTF-8 sequence is not cut.
static std::string shortened(std::string_view text, std::size_t shown) {
  std::size_t end = shown;
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  const std::string count = " ... (" + std::to_string(text.size()) + " characters)";
  return text.size() <= shown + count.size() ? std::string(text) : std::string(text.substr(0, end)) + count;
}

static std::string line_of(const std::string& place, std::string_view problem) {
  constexpr std::string_view kBetween = ": ";
  if (place.size() + kBetween.size() + problem.size() <= kLongestLine) return place + ": " + std::string(problem);
  // What is wanted is the program's own text and seldom long: it is cut last.
  const std::size_t wanted_at = std::min(problem.rfind(", wanted "), problem.size());
  const std::string file = shortened(place, kShownElse), found = shortened(problem.substr(0, wanted_at), kShownFound);
  const std::string start = file + ": " + found;
  const std::string_view wanted = problem.substr(wanted_at);
  return start + (start.size() + wanted.size() <= kLongestLine ? std::string(wanted) : shortened(wanted, kShownElse));
}

static std::string place(const SourceLocation& where) {
  if (where.line <= 0) return where.file;
  return where.file + ":" + std::to_string(where.line) + ":" + std::to_string(where.column > 0 ? where.column : 1);
}

InputError::InputError(const SourceLocation& where, const std::string& problem) : std::runtime_error(line_of(place(where), problem)) {}

}  // namespace stepsim
