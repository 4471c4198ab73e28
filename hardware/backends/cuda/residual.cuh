// The residual connection: branch, bias and dropout in one pass, and backward the dropout and the bias's gradient.
#pragma once

#include "hardware/backends/cuda/column_sum.cuh"
#include "hardware/backends/cuda/dropout.cuh"
#include "hardware/backends/cuda/map.cuh"
#include "hardware/backends/cuda/pack.cuh"
#include "hardware/backends/kernel_calls.h"

namespace stepsim::cuda {

template <class T>
struct Residual {
  static constexpr int kWidth = kPackWidth<T>;
  const T *branch, *residual, *bias;  // bias may be null
  T* output;
  std::uint8_t* mask;  // null: no dropout
  std::int64_t columns;
  Draw draw;
  float scale;
  bool packs_fit() const { return aligned_for<kWidth>(branch, residual, bias, output) && aligned_for<kWidth>(mask); }
  template <int width>
  __device__ void apply(Place first) const {
    const std::int64_t element = first.row * columns + first.column;
    Values<width> values = load<width>(branch + element);
    if (bias != nullptr) {
      const Values<width> added = load<width>(bias + first.column);
      for (int i = 0; i < width; ++i) values[i] += added[i];
    }
    if (mask != nullptr) {
      const Values<width> keep = kept<width>(draw, element);
      for (int i = 0; i < width; ++i) values[i] *= keep[i] * scale;
      store_mask(mask + element, keep);
    }
    const Values<width> before = load<width>(residual + element);
    for (int i = 0; i < width; ++i) values[i] += before[i];
    store(output + element, values);
  }
};

template <class T>
struct ResidualBackward {
  static constexpr int kSums = 1, kWidth = kPackWidth<T>;
  const T* gradient;
  const std::uint8_t* mask;  // null: no dropout
  T* branch_gradient;        // null: not wanted
  std::int64_t columns;
  float scale;
  bool packs_fit() const { return aligned_for<kWidth>(gradient, branch_gradient) && aligned_for<kWidth>(mask); }
  // The gradient of the branch, also written where it is wanted.
  template <int width>
  __device__ Values<width> of_branch(std::int64_t element) const {
    Values<width> values = load<width>(gradient + element);
    if (mask != nullptr) {
      const Values<width> keep = load_mask<width>(mask + element);
      for (int i = 0; i < width; ++i) values[i] *= keep[i] * scale;
    }
    if (branch_gradient != nullptr) store(branch_gradient + element, values);
    return values;
  }
  template <int width>
  __device__ void apply(std::int64_t first) const {
    of_branch<width>(first);
  }
  template <int width>
  __device__ void add(Place first, Values<width>* sums) const {
    const Values<width> values = of_branch<width>(first.row * columns + first.column);
    for (int i = 0; i < width; ++i) sums[0][i] += values[i];
  }
};

inline void run(const ResidualCall& call, const StorageAddresses& addresses, Stream stream) {
  with_type(call.elements, [&]<class T>(T) {
    const Residual<T> op{.branch = addresses.of<T>(call.branch),
                         .residual = addresses.of<T>(call.residual),
                         .bias = call.bias ? addresses.of<T>(*call.bias) : nullptr,
                         .output = addresses.of<T>(call.output),
                         .mask = call.mask ? addresses.of<std::uint8_t>(*call.mask) : nullptr,
                         .columns = call.columns,
                         .draw = call.draw,
                         .scale = kept_scale(call.draw.probability)};
    for_places(op, matrix(call.rows, call.columns), stream);
  });
}

inline std::size_t scratch_bytes(const ResidualBackwardCall& call) {
  return call.bias_gradient ? column_sum_bytes(call.rows, call.columns, 1) : 0;
}

// One pass over the gradient, whichever of the two results are wanted. The bias's is summed before the branch's is rounded.
inline void run(const ResidualBackwardCall& call, const StorageAddresses& addresses, Scratch scratch, Stream stream) {
  with_type(call.elements, [&]<class T>(T) {
    const ResidualBackward<T> op{.gradient = addresses.of<T>(call.gradient),
                                 .mask = call.mask ? addresses.of<std::uint8_t>(*call.mask) : nullptr,
                                 .branch_gradient = call.branch_gradient ? addresses.of<T>(*call.branch_gradient) : nullptr,
                                 .columns = call.columns,
                                 .scale = kept_scale(call.probability)};
    if (!call.bias_gradient) {
      for_elements(op, call.branch_gradient ? call.rows * call.columns : 0, stream);
      return;
    }
    with_type(call.gradients, [&]<class Gradient>(Gradient) {
      const ColumnGradients<Gradient, 1> gradients{{addresses.of<Gradient>(*call.bias_gradient)}, call.accumulate};
      add_columns(op, matrix(call.rows, call.columns), gradients, scratch, stream);
    });
  });
}

}  // namespace stepsim::cuda
