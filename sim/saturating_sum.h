// Addition of times and sizes that stops at the largest int64 instead of wrapping: a step longer than 106 days ends "at the end of time".
#pragma once

#include <cstdint>
#include <limits>

#include "sim/units.h"

namespace stepsim {

// Both arguments are not negative.
inline std::int64_t saturating_sum(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<std::int64_t>::max() : sum;
}
inline Duration saturating_sum(Duration a, Duration b) { return Duration(saturating_sum(a.count(), b.count())); }

}  // namespace stepsim
