// A bias added to each row, and its gradient.
#pragma once

#include "hardware/backends/cuda/column_sum.cuh"
#include "hardware/backends/cuda/map.cuh"
#include "hardware/backends/cuda/pack.cuh"
#include "hardware/backends/kernel_calls.h"

namespace stepsim::cuda {

template <class T>
struct Bias {
  static constexpr int kWidth = kPackWidth<T>;
  const T *input, *bias;
  T* output;
  std::int64_t columns;
  bool packs_fit() const { return aligned_for<kWidth>(input, bias, output); }
  template <int width>
  __device__ void apply(Place first) const {
    const std::int64_t element = first.row * columns + first.column;
    Values<width> values = load<width>(input + element);
    const Values<width> added = load<width>(bias + first.column);
    for (int i = 0; i < width; ++i) values[i] += added[i];
    store(output + element, values);
  }
};

template <class T>
struct BiasTerm {
  static constexpr int kSums = 1, kWidth = kPackWidth<T>;
  const T* gradient;
  std::int64_t columns;
  bool packs_fit() const { return aligned_for<kWidth>(gradient); }
  template <int width>
  __device__ void add(Place first, Values<width>* sums) const {
    const Values<width> values = load<width>(gradient + first.row * columns + first.column);
    for (int i = 0; i < width; ++i) sums[0][i] += values[i];
  }
};

inline void run(const BiasCall& call, const StorageAddresses& addresses, Stream stream) {
  with_type(call.elements, [&]<class T>(T) {
    const Bias<T> op{addresses.of<T>(call.input), addresses.of<T>(call.bias), addresses.of<T>(call.output), call.columns};
    for_places(op, matrix(call.rows, call.columns), stream);
  });
}

inline std::size_t scratch_bytes(const BiasGradientCall& call) { return column_sum_bytes(call.rows, call.columns, 1); }

inline void run(const BiasGradientCall& call, const StorageAddresses& addresses, Scratch scratch, Stream stream) {
  with_type(call.elements, [&]<class T>(T) {
    with_type(call.gradients, [&]<class Gradient>(Gradient) {
      const ColumnGradients<Gradient, 1> gradients{{addresses.of<Gradient>(call.bias_gradient)}, call.accumulate};
      add_columns(BiasTerm<T>{addresses.of<T>(call.gradient), call.columns}, matrix(call.rows, call.columns), gradients, scratch, stream);
    });
  });
}

}  // namespace stepsim::cuda
