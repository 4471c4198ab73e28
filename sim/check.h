// STEPSIM_CHECK: an invariant that holds unless stepsim itself has a bug. On in every build; never reachable from user input.
#pragma once

namespace stepsim {

// Throws std::logic_error that names the condition and the place; main turns it into exit code 1.
[[noreturn]] void check_failed(const char* condition, const char* file, int line);

}  // namespace stepsim

#define STEPSIM_CHECK(condition) \
  (static_cast<bool>(condition) ? void(0) : ::stepsim::check_failed(#condition, __FILE__, __LINE__))
