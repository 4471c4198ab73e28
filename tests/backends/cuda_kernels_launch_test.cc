// The host's way of running kernels: what CUDA promises of threads, blocks, warps and barriers, and of bf16.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "hardware/backends/cuda/bf16.h"
#include "hardware/backends/cuda/block_sum.cuh"
#include "hardware/backends/cuda/launch_shim.h"

namespace stepsim::cuda {
namespace {

void number_kernel(std::vector<int>* seen) {
  const unsigned block = blockIdx.x + gridDim.x * blockIdx.y, thread = threadIdx.x + blockDim.x * threadIdx.y;
  ++seen->at(block * blockDim.x * blockDim.y + thread);
}

TEST(CudaKernelLaunch, EveryThreadRunsOnce) {
  std::vector<int> seen(3 * 2 * 64);
  launch(number_kernel, grid_of(3, 2), dim3(16, 4), nullptr, &seen);
  EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
  launch(number_kernel, grid_of(0), dim3(32), nullptr, &seen);
  EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), 0), 3 * 2 * 64);
}

// Each thread passes its number on twice, through memory that the block shares.
void shift_kernel(int* result) {
  __shared__ int shared[64];
  const unsigned thread = threadIdx.x;
  shared[thread] = static_cast<int>(thread);
  __syncthreads();
  const int left = shared[(thread + 63) % 64];
  __syncthreads();
  shared[thread] = left;
  __syncthreads();
  result[blockIdx.x * 64 + thread] = shared[(thread + 63) % 64];
}

TEST(CudaKernelLaunch, BarriersSeparateWritesFromReads) {
  for (const bool descending : {false, true}) {
    const HostStream stream{.descending = descending};
    std::vector<int> result(128);
    launch(shift_kernel, grid_of(2), dim3(64), &stream, result.data());
    for (int i = 0; i < 128; ++i) EXPECT_EQ(result[static_cast<std::size_t>(i)], (i % 64 + 62) % 64) << i;
  }
}

void shift_kernel_without_barrier(int* result) {
  __shared__ int shared[64];
  shared[threadIdx.x] = static_cast<int>(threadIdx.x);
  result[threadIdx.x] = shared[(threadIdx.x + 63) % 64];
  __syncthreads();
  shared[threadIdx.x] = -1;
}

// What the tests of the kernels rely on: the order of turns shows where a barrier is missing.
TEST(CudaKernelLaunch, MissingBarriersShowInTheOrderOfThreads) {
  std::vector<int> up(64), down(64);
  const HostStream descending{.descending = true};
  launch(shift_kernel_without_barrier, grid_of(1), dim3(64), nullptr, up.data());
  launch(shift_kernel_without_barrier, grid_of(1), dim3(64), &descending, down.data());
  EXPECT_NE(up, down);
}

void divergent_kernel(bool exits) {
  if (threadIdx.x == 5) {
    if (exits) return;
    __shfl_xor_sync(0xFFFFFFFFU, 1.0F, 1);
  }
  __syncthreads();
}

TEST(CudaKernelLaunch, ThreadsThatDoNotMeetAreABug) {
  EXPECT_THROW(launch(divergent_kernel, grid_of(1), dim3(32), nullptr, true), std::logic_error);
  EXPECT_THROW(launch(divergent_kernel, grid_of(1), dim3(32), nullptr, false), std::logic_error);
  EXPECT_THROW(launch(divergent_kernel, grid_of(1), dim3(33), nullptr, false), std::logic_error);
}

void lane_kernel(unsigned* from, unsigned* lanes) {
  from[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFFU, threadIdx.x, 4);
  lanes[threadIdx.x] = __ballot_sync(0xFFFFFFFFU, threadIdx.x % 3 == 0);
}

TEST(CudaKernelLaunch, LanesSeeTheirWarp) {
  std::vector<unsigned> from(64), lanes(64);
  launch(lane_kernel, grid_of(1), dim3(64), nullptr, from.data(), lanes.data());
  for (unsigned i = 0; i < 64; ++i) {
    EXPECT_EQ(from[i], i ^ 4U);
    for (unsigned lane = 0; lane < 32; ++lane) EXPECT_EQ(lanes[i] >> lane & 1U, (i / 32 * 32 + lane) % 3 == 0 ? 1U : 0U);
  }
  EXPECT_EQ(__ffs(0), 0);
  EXPECT_EQ(__ffs(0x80000000U), 32);
}

void sum_kernel(float* sums, float* maxima) {
  const auto mine = static_cast<float>(threadIdx.x) - 200;
  sums[threadIdx.x] = block_sum(mine);
  maxima[threadIdx.x] = block_maximum(-mine);
}

TEST(CudaKernelLaunch, BlockSums) {
  for (const unsigned threads : {32U, 96U, 512U}) {
    std::vector<float> sums(threads), maxima(threads);
    launch(sum_kernel, grid_of(1), dim3(threads), nullptr, sums.data(), maxima.data());
    // 0 + 1 + ... + (n - 1) - 200 n; the largest of 200 - i is that of i = 0
    const float wanted = static_cast<float>(threads * (threads - 1) / 2) - 200 * static_cast<float>(threads);
    EXPECT_EQ(sums, std::vector<float>(threads, wanted));
    EXPECT_EQ(maxima, std::vector<float>(threads, 200));
  }
}

std::uint16_t bf16_bits(float value) { return rounded<Bf16>(value).bits; }

TEST(CudaKernelLaunch, Bf16IsRoundedToNearestEven) {
  EXPECT_EQ(bf16_bits(1), 0x3F80);
  EXPECT_EQ(bf16_bits(-2.5F), 0xC020);
  EXPECT_EQ(bf16_bits(0x1.01p0F), 0x3F80);      // half of a step of 2^-7 above 1: to the even one below
  EXPECT_EQ(bf16_bits(0x1.03p0F), 0x3F82);      // one and a half: to the even one above
  EXPECT_EQ(bf16_bits(0x1.010002p0F), 0x3F81);  // a little more than half
  EXPECT_EQ(bf16_bits(0x1.FFp127F), 0x7F80);    // beyond the largest, 0x1.FEp127
  EXPECT_EQ(bf16_bits(-INFINITY), 0xFF80);
  EXPECT_TRUE(std::isnan(widened(rounded<Bf16>(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(widened(Bf16{0x3F81}), 1.0078125F);  // 1 + 2^-7
}

}  // namespace
}  // namespace stepsim::cuda
