// Sums and maxima over the threads of a block, in an order that depends on the number of threads alone. All threads get the result.
#pragma once

#include <cmath>

#include "hardware/backends/cuda/launch_shim.h"

namespace stepsim::cuda {

struct Sum {
  static constexpr float kIdentity = 0;
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Maximum {
  static constexpr float kIdentity = -INFINITY;
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <class Combine>
__device__ float over_warp(float value, Combine combine) {
  for (int mask = 16; mask > 0; mask /= 2) value = combine(value, __shfl_xor_sync(0xFFFFFFFFU, value, mask));
  return value;
}

// Blocks of one dimension, whole warps.
template <class Combine>
__device__ float over_block(float value, Combine combine) {
  __shared__ float of_warp[32];
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  value = over_warp(value, combine);
  if (lane == 0) of_warp[warp] = value;
  __syncthreads();
  value = over_warp(lane < warps ? of_warp[lane] : Combine::kIdentity, combine);
  __syncthreads();  // before of_warp is written again
  return value;
}

__device__ inline float block_sum(float value) { return over_block(value, Sum{}); }

__device__ inline float block_maximum(float value) { return over_block(value, Maximum{}); }

}  // namespace stepsim::cuda
