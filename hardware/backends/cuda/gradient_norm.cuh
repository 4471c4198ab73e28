// The norm of all gradients and clipping by it. The sum of squares stays on the device, in a number that the caller keeps: between the two
// calls ranks may sum it, and the host does not wait for it.
#pragma once

#include <cmath>

#include "hardware/backends/cuda/block_sum.cuh"
#include "hardware/backends/cuda/map.cuh"
#include "hardware/backends/cuda/pack.cuh"
#include "hardware/backends/cuda/scratch.h"
#include "hardware/backends/kernel_calls.h"

namespace stepsim::cuda {

constexpr std::int64_t kSquaresElements = 1 << 15;  // that a block sums

// A row is a part of a tensor, the last one shorter.
template <class T>
struct SquareSums {
  static constexpr int kWidth = kPackWidth<T>;
  const T* gradient;
  float* part_sums;  // by row
  std::int64_t count;
  bool packs_fit() const { return aligned_for<kWidth>(gradient); }
  template <int width>
  __device__ void apply_row(std::int64_t row) const {
    const T* const from = gradient + row * kSquaresElements;
    const std::int64_t left = count - row * kSquaresElements;
    const std::int64_t elements = left < kSquaresElements ? left : kSquaresElements;
    const std::int64_t whole = elements / width * width;
    float sum = 0;
    each_column<width>(whole, [&](std::int64_t first) {
      const Values<width> x = load<width>(from + first);
      for (int i = 0; i < width; ++i) sum += x[i] * x[i];
    });
    each_column<1>(elements - whole, [&](std::int64_t i) {
      const float x = widened(from[whole + i]);
      sum += x * x;
    });
    sum = block_sum(sum);
    if (threadIdx.x == 0) part_sums[row] = sum;
  }
};

struct TotalOfParts {
  static constexpr int kWidth = 1;
  const float* part_sums;
  float* total;
  std::int64_t parts;
  bool packs_fit() const { return true; }
  template <int width>
  __device__ void apply_row(std::int64_t) const {
    float sum = 0;
    each_column<1>(parts, [&](std::int64_t part) { sum += part_sums[part]; });
    sum = block_sum(sum);
    if (threadIdx.x == 0) *total = sum;
  }
};

template <class T>
struct ClipElements {
  static constexpr int kWidth = kPackWidth<T>;
  T* gradient;
  const float* squared_norm;
  float most;
  bool packs_fit() const { return aligned_for<kWidth>(gradient); }
  template <int width>
  __device__ void apply(std::int64_t first) const {
    const float wanted = most / (sqrtf(*squared_norm) + 1e-6F);  // torch.nn.utils.clip_grad_norm_
    const float factor = wanted > 1 ? 1 : wanted;                // a norm that is NaN shows
    Values<width> values = load<width>(gradient + first);
    for (int i = 0; i < width; ++i) values[i] *= factor;
    store(gradient + first, values);
  }
};

inline std::int64_t elements_of(const Tensor& tensor, DType type) { return tensor.size.value * 8 / bits_of(type); }
inline std::int64_t parts_of(const Tensor& tensor, DType type) { return ceil_div(elements_of(tensor, type), kSquaresElements); }

inline std::size_t scratch_bytes(const GradientNormCall& call) {
  std::int64_t parts = 0;
  for (const Tensor& gradient : call.gradients) parts += parts_of(gradient, call.type);
  return static_cast<std::size_t>(parts) * sizeof(float);
}

// Writes the sum of squares of all gradients to squared_norm, on the device.
inline void run(const GradientNormCall& call, const StorageAddresses& addresses, float* squared_norm, Scratch scratch, Stream stream) {
  auto* const part_sums = scratch.of<float>(scratch_bytes(call));
  std::int64_t parts = 0;
  with_type(call.type, [&]<class T>(T) {
    for (const Tensor& gradient : call.gradients) {
      const SquareSums<T> op{addresses.of<T>(gradient), part_sums + parts, elements_of(gradient, call.type)};
      const std::int64_t rows = parts_of(gradient, call.type);
      for_rows(op, matrix(rows, kSquaresElements), stream);
      parts += rows;
    }
  });
  for_rows(TotalOfParts{part_sums, squared_norm, parts}, matrix(1, parts), stream);
}

inline void run(const GradientClipCall& call, const StorageAddresses& addresses, const float* squared_norm, Stream stream) {
  with_type(call.type, [&]<class T>(T) {
    for (const Tensor& gradient : call.gradients) {
      for_elements(ClipElements<T>{addresses.of<T>(gradient), squared_norm, call.most}, elements_of(gradient, call.type), stream);
    }
  });
}

}  // namespace stepsim::cuda
