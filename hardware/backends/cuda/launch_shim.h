// How kernels are launched, and what lets their text be plain C++ where nvcc is not the compiler: there launch() runs the blocks of a grid
// one after another, the threads of a block as fibers that run until they wait. For tests of the kernels' arithmetic, indices and
// barriers, not for speed. One program has either the kernels of nvcc or these: they are functions of the same names.
//
// On the host there are static shared memory, __syncthreads, __shfl_xor_sync and __ballot_sync of whole warps; no atomics, no dynamic
// shared memory. Shared memory keeps what the block before left in it, as a GPU's may.
#pragma once

#include <cstdint>

#include "sim/check.h"

#ifdef __CUDACC__

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace stepsim::cuda {

using Stream = cudaStream_t;

// Nothing to do for an empty grid. Throws std::runtime_error if the launch is refused.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, Stream stream, const Arguments&... arguments) {
  if (grid.x == 0 || grid.y == 0) return;
  kernel<<<grid, block, 0, stream>>>(arguments...);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) throw std::runtime_error(std::string("kernel launch: ") + cudaGetErrorString(error));
}

}  // namespace stepsim::cuda

#else

#include <cstring>
#include <functional>

// The words of CUDA C++ that only nvcc knows (CUDA C++ Programming Guide, "C++ Language Extensions").
#define __global__
#define __device__
#define __host__
#define __shared__ static thread_local

namespace stepsim::cuda {

// In which order threads take their turns. What a kernel writes does not depend on it, or a barrier is missing.
struct HostStream {
  bool descending = false;  // threads of a block, and blocks of the grid
};
using Stream = const HostStream*;  // null: ascending

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned columns = 1, unsigned rows = 1, unsigned layers = 1) : x(columns), y(rows), z(layers) {}
};

inline constinit thread_local dim3 threadIdx{0, 0, 0}, blockIdx{0, 0, 0}, blockDim{}, gridDim{};

// Runs `thread` once for each thread of the grid, with threadIdx and the others set. STEPSIM_CHECK: blocks are whole warps, z is 1; all
// threads of a block, or of a warp, meet at each of its barriers.
void run_grid(dim3 grid, dim3 block, Stream stream, const std::function<void()>& thread);

void __syncthreads();
std::uint64_t value_of_lane(std::uint64_t value, unsigned lane_mask);  // that of the lane whose number differs in lane_mask; waits for all
std::uint32_t lanes_where(bool condition);                             // bit i: that of lane i; waits for all

template <class T>
T __shfl_xor_sync(unsigned lanes, T value, int lane_mask) {
  STEPSIM_CHECK(lanes == 0xFFFFFFFFU);
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = value_of_lane(bits, static_cast<unsigned>(lane_mask));
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

inline std::uint32_t __ballot_sync(unsigned lanes, bool condition) {
  STEPSIM_CHECK(lanes == 0xFFFFFFFFU);
  return lanes_where(condition);
}

inline int __ffs(std::uint32_t word) { return __builtin_ffs(static_cast<int>(word)); }

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, Stream stream, const Arguments&... arguments) {
  run_grid(grid, block, stream, [&] { kernel(arguments...); });
}

}  // namespace stepsim::cuda

#endif

namespace stepsim::cuda {

constexpr std::int64_t ceil_div(std::int64_t count, std::int64_t size) { return (count + size - 1) / size; }

// Largest grids: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability" (2^31 - 1 and 65535 since 3.0).
inline dim3 grid_of(std::int64_t x, std::int64_t y = 1) {
  STEPSIM_CHECK(x >= 0);
  STEPSIM_CHECK(x < (std::int64_t{1} << 31));
  STEPSIM_CHECK(y >= 0);
  STEPSIM_CHECK(y < (std::int64_t{1} << 16));
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y));
}

}  // namespace stepsim::cuda
