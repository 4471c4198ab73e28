#include "sim/input_error.h"

namespace stepsim {

static std::string place(const SourceLocation& where) {
  if (where.line <= 0) return where.file;
  return where.file + ":" + std::to_string(where.line) + ":" + std::to_string(where.column > 0 ? where.column : 1);
}

InputError::InputError(const SourceLocation& where, const std::string& problem) : std::runtime_error(place(where) + ": " + problem) {}

}  // namespace stepsim
