// Sums and maxima over a row in sixteen lanes: the same order of additions whatever the address, which compilers turn into vector
// instructions although fp32 additions may not be reordered.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace stepsim::cpu {

inline constexpr std::int64_t kLanes = 16;

// value(i) for i in [0, count), combined lane by lane, then lanes pairwise.
template <class Number, class Value, class Combine>
Number over_lanes(std::int64_t count, Number empty, const Value& value, const Combine& combine) {
  std::array<Number, kLanes> lanes;
  lanes.fill(empty);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const auto at = static_cast<std::size_t>(lane);
      lanes[at] = combine(lanes[at], value(i + lane));
    }
  }
  for (std::int64_t lane = 0; i + lane < count; ++lane) {
    const auto at = static_cast<std::size_t>(lane);
    lanes[at] = combine(lanes[at], value(i + lane));
  }
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] = combine(lanes[lane], lanes[lane + half]);
  }
  return lanes[0];
}

template <class Number, class Value>
Number lane_sum(std::int64_t count, const Value& value) {
  return over_lanes(count, Number{0}, value, [](Number a, Number b) { return a + b; });
}

// Not of an empty row.
inline float lane_maximum(const float* values, std::int64_t count) {
  return over_lanes(
      count, values[0], [values](std::int64_t i) { return values[i]; }, [](float a, float b) { return a < b ? b : a; });
}

}  // namespace stepsim::cpu
