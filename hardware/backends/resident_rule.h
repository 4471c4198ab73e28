// Numbers that follow from a seed and a place: what weights are at the start of a step, the same on every backend. Compiles for host and
// device.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define STEPSIM_HOST_DEVICE __host__ __device__
#else
#define STEPSIM_HOST_DEVICE
#endif

namespace stepsim {

// Uniform in [centre - width, centre + width): of row r and column c, from mixed(seed, r, c). `rows` and `columns` of a part of a matrix;
// its first row and column are those of the whole.
struct ResidentRule {
  std::uint64_t seed = 0;
  std::int64_t rows = 0, columns = 0;
  std::int64_t first_row = 0, first_column = 0;
  float centre = 0, width = 0;
};

// The finalizer of splitmix64 (Steele et al., OOPSLA 2014, figure 15).
STEPSIM_HOST_DEVICE constexpr std::uint64_t mixed(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

STEPSIM_HOST_DEVICE constexpr std::uint64_t mixed(std::uint64_t seed, std::int64_t a, std::int64_t b) {
  return mixed(mixed(mixed(seed) ^ static_cast<std::uint64_t>(a)) ^ static_cast<std::uint64_t>(b));
}

// In [-1, 1), in steps of 2^-23.
STEPSIM_HOST_DEVICE constexpr float uniform(std::uint64_t bits) {
  return static_cast<float>(static_cast<std::int64_t>(bits >> 40) - (1 << 23)) * 0x1p-23F;
}

// Element i of the part, row by row.
STEPSIM_HOST_DEVICE constexpr float resident_value(const ResidentRule& rule, std::int64_t i) {
  const std::int64_t row = rule.first_row + i / rule.columns, column = rule.first_column + i % rule.columns;
  return rule.centre + rule.width * uniform(mixed(rule.seed, row, column));
}

}  // namespace stepsim
