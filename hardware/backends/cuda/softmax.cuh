// Softmax of attention scores: a block of threads a row, which stays in the first-level cache between its passes. Of a causal row only the
// visible part is read.
#pragma once

#include <cmath>

#include "hardware/backends/cuda/block_sum.cuh"
#include "hardware/backends/cuda/map.cuh"
#include "hardware/backends/cuda/pack.cuh"
#include "hardware/backends/kernel_calls.h"

namespace stepsim::cuda {

// How many keys, from the first on, a row (query) of the matrices sees.
struct VisibleKeys {
  std::int64_t queries = 0, keys = 0;
  bool causal = true;
  __device__ std::int64_t of_row(std::int64_t row) const { return causal ? row % queries + 1 : keys; }
};

template <class T>
struct AttentionSoftmax {
  static constexpr int kWidth = kPackWidth<T>;
  const T* scores;
  T* output;
  VisibleKeys visible;
  float scale;
  bool packs_fit() const { return aligned_for<kWidth>(scores, output); }

  template <int width>
  __device__ void apply_row(std::int64_t row) const {
    const T* const from = scores + row * visible.keys;
    const std::int64_t seen = visible.of_row(row);
    float maximum = Maximum::kIdentity, sum = 0;
    each_column<width>(seen, [&](std::int64_t key) {
      const Values<width> x = load<width>(from + key);
      for (int i = 0; i < width; ++i) {
        if (key + i < seen) maximum = fmaxf(maximum, x[i] * scale);
      }
    });
    maximum = block_maximum(maximum);
    each_column<width>(seen, [&](std::int64_t key) {
      const Values<width> x = load<width>(from + key);
      for (int i = 0; i < width; ++i) {
        if (key + i < seen) sum += expf(x[i] * scale - maximum);
      }
    });
    sum = block_sum(sum);
    each_column<width>(visible.keys, [&](std::int64_t key) {
      Values<width> x = key < seen ? load<width>(from + key) : zeros<width>();
      for (int i = 0; i < width; ++i) x[i] = key + i < seen ? expf(x[i] * scale - maximum) / sum : 0;
      store(output + row * visible.keys + key, x);
    });
  }
};

// scale * softmax * (gradient - sum(softmax * gradient))
template <class T>
struct AttentionSoftmaxBackward {
  static constexpr int kWidth = kPackWidth<T>;
  const T *softmax, *gradient;
  T* scores_gradient;
  VisibleKeys visible;
  float scale;
  bool packs_fit() const { return aligned_for<kWidth>(softmax, gradient, scores_gradient); }

  template <int width>
  __device__ void apply_row(std::int64_t row) const {
    const std::int64_t begin = row * visible.keys, seen = visible.of_row(row);
    float sum = 0;
    each_column<width>(seen, [&](std::int64_t key) {
      const Values<width> y = load<width>(softmax + begin + key), g = load<width>(gradient + begin + key);
      for (int i = 0; i < width; ++i) {
        if (key + i < seen) sum += y[i] * g[i];
      }
    });
    sum = block_sum(sum);
    each_column<width>(visible.keys, [&](std::int64_t key) {
      Values<width> result = zeros<width>();
      if (key < seen) {
        const Values<width> y = load<width>(softmax + begin + key), g = load<width>(gradient + begin + key);
        for (int i = 0; i < width; ++i) result[i] = key + i < seen ? scale * y[i] * (g[i] - sum) : 0;
      }
      store(scores_gradient + begin + key, result);
    });
  }
};

inline void run(const AttentionSoftmaxCall& call, const StorageAddresses& addresses, Stream stream) {
  STEPSIM_CHECK(!call.causal || call.queries == call.keys);
  with_type(call.elements, [&]<class T>(T) {
    const AttentionSoftmax<T> op{.scores = addresses.of<T>(call.scores),
                                 .output = addresses.of<T>(call.output),
                                 .visible = {call.queries, call.keys, call.causal},
                                 .scale = call.scale};
    for_rows(op, matrix(call.matrices * call.queries, call.keys), stream);
  });
}

inline void run(const AttentionSoftmaxBackwardCall& call, const StorageAddresses& addresses, Stream stream) {
  STEPSIM_CHECK(!call.causal || call.queries == call.keys);
  with_type(call.elements, [&]<class T>(T) {
    const AttentionSoftmaxBackward<T> op{.softmax = addresses.of<T>(call.softmax),
                                         .gradient = addresses.of<T>(call.gradient),
                                         .scores_gradient = addresses.of<T>(call.scores_gradient),
                                         .visible = {call.queries, call.keys, call.causal},
                                         .scale = call.scale};
    for_rows(op, matrix(call.matrices * call.queries, call.keys), stream);
  });
}

}  // namespace stepsim::cuda
