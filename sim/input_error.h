// The one exception for bad input: one line "file:line:column: found X, wanted Y", of 500 characters at most: longer texts are cut and
// their length is stated. Thrown by loaders, caught in main (exit 2).
#pragma once

#include <stdexcept>
#include <string>

namespace stepsim {

struct SourceLocation {
  std::string file;  // as the user named it; a flag ("--tp") has line 0
  int line = 0;      // 1-based; 0: the file as a whole, printed without line and column
  int column = 0;    // 1-based
};

class InputError : public std::runtime_error {
 public:
  InputError(const SourceLocation& where, const std::string& problem);
};

// Of a flag, not of a file.
[[noreturn]] inline void refuse(const std::string& flag, const std::string& problem) { throw InputError({flag}, problem); }
[[noreturn]] inline void refuse(const std::string& flag, const std::string& found, const std::string& wanted) {
  refuse(flag, "found " + found + ", wanted " + wanted);
}

}  // namespace stepsim
