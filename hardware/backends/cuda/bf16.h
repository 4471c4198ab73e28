// bfloat16 in memory, the same type on the host and on the device: 16 bits, the upper half of an fp32 number. Arithmetic is fp32.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hardware/backends/cuda/launch_shim.h"

namespace stepsim::cuda {

struct Bf16 {
  std::uint16_t bits;
};

__host__ __device__ inline float widened(float value) { return value; }
__host__ __device__ inline float widened(Bf16 value) {
  const std::uint32_t bits = std::uint32_t{value.bits} << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

// To the nearest, halves to even; NaN stays NaN.
template <class T>
__host__ __device__ T rounded(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
#ifdef __CUDA_ARCH__
    return Bf16{__bfloat16_as_ushort(__float2bfloat16_rn(value))};  // one instruction from sm_80 on
#else
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    if (value != value) return Bf16{static_cast<std::uint16_t>((bits >> 16) | 0x40U)};  // quiet, so that the rest may be cut off
    return Bf16{static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
#endif
  }
}

}  // namespace stepsim::cuda
