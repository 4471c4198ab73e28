// Vocabulary-parallel cross entropy in fp32: a block of threads a row of the logits. The ranks' sums and maxima between the calls are the
// caller's.
#pragma once

#include <cmath>
#include <cstdint>

#include "hardware/backends/cuda/block_sum.cuh"
#include "hardware/backends/cuda/map.cuh"
#include "hardware/backends/cuda/pack.cuh"
#include "hardware/backends/kernel_calls.h"

namespace stepsim::cuda {

struct LossMaximum {
  static constexpr int kWidth = kPackWidth<float>;
  const float* logits;
  float* maximum;
  std::int64_t columns;
  bool packs_fit() const { return aligned_for<kWidth>(logits); }
  template <int width>
  __device__ void apply_row(std::int64_t row) const {
    float most = Maximum::kIdentity;
    each_column<width>(columns, [&](std::int64_t column) {
      const Values<width> x = load<width>(logits + row * columns + column);
      for (int i = 0; i < width; ++i) most = fmaxf(most, x[i]);
    });
    most = block_maximum(most);
    if (threadIdx.x == 0) maximum[row] = most;
  }
};

struct TargetMask {
  static constexpr int kWidth = 1;
  const std::int64_t* labels;
  std::uint8_t* mask;
  std::int64_t* target;
  TableShare share;
  bool packs_fit() const { return true; }
  template <int width>
  __device__ void apply(std::int64_t row) const {
    const std::int64_t place = labels[row] - share.first;
    const bool elsewhere = place < 0 || place >= share.rows;
    mask[row] = elsewhere ? 1 : 0;
    target[row] = elsewhere ? 0 : place;
  }
};

// The softmax may overwrite the logits: each element is read, the target's too, by the thread that writes it.
struct LossNumerator {
  static constexpr int kWidth = kPackWidth<float>;
  const float *logits, *maximum;
  const std::uint8_t* mask;
  const std::int64_t* target;
  float *softmax, *predicted, *denominator;
  std::int64_t columns;
  bool packs_fit() const { return aligned_for<kWidth>(logits, softmax); }
  template <int width>
  __device__ void apply_row(std::int64_t row) const {
    const float most = maximum[row];
    const bool masked = mask[row] != 0;
    const std::int64_t wanted = masked ? -1 : target[row];
    float sum = 0;
    each_column<width>(columns, [&](std::int64_t column) {
      Values<width> x = load<width>(logits + row * columns + column);
      for (int i = 0; i < width; ++i) {
        x[i] -= most;
        if (column + i == wanted) predicted[row] = x[i];
        x[i] = expf(x[i]);
        sum += x[i];
      }
      store(softmax + row * columns + column, x);
    });
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
      denominator[row] = sum;
      if (masked) predicted[row] = 0;
    }
  }
};

struct LossOfRows {
  static constexpr int kWidth = kPackWidth<float>;
  const float *predicted, *denominator;
  float *softmax, *loss;
  std::int64_t columns;
  bool packs_fit() const { return aligned_for<kWidth>(softmax); }
  template <int width>
  __device__ void apply(Place first) const {
    float* const at = softmax + first.row * columns + first.column;
    const float divisor = denominator[first.row];
    Values<width> values = load<width>(at);
    for (int i = 0; i < width; ++i) values[i] /= divisor;
    store(at, values);
    if (first.column == 0) loss[first.row] = logf(divisor) - predicted[first.row];
  }
};

struct LossBackward {
  static constexpr int kWidth = kPackWidth<float>;
  const float* softmax;
  const std::uint8_t* mask;
  const std::int64_t* target;
  float* gradient;
  std::int64_t columns;
  float scale;
  bool packs_fit() const { return aligned_for<kWidth>(softmax, gradient); }
  template <int width>
  __device__ void apply(Place first) const {
    const std::int64_t element = first.row * columns + first.column;
    const std::int64_t wanted = mask[first.row] != 0 ? -1 : target[first.row];
    Values<width> values = load<width>(softmax + element);
    for (int i = 0; i < width; ++i) values[i] = scale * (first.column + i == wanted ? values[i] - 1 : values[i]);
    store(gradient + element, values);
  }
};

inline void run(const LossMaximumCall& call, const StorageAddresses& addresses, Stream stream) {
  const LossMaximum op{addresses.of<float>(call.logits), addresses.of<float>(call.maximum), call.columns};
  for_rows(op, matrix(call.rows, call.columns), stream);
}

inline void run(const TargetMaskCall& call, const StorageAddresses& addresses, Stream stream) {
  const TargetMask op{.labels = addresses.of<std::int64_t>(call.labels),
                      .mask = addresses.of<std::uint8_t>(call.mask),
                      .target = addresses.of<std::int64_t>(call.target),
                      .share = call.share};
  for_elements(op, call.rows, stream);
}

inline void run(const LossNumeratorCall& call, const StorageAddresses& addresses, Stream stream) {
  const LossNumerator op{.logits = addresses.of<float>(call.logits),
                         .maximum = addresses.of<float>(call.maximum),
                         .mask = addresses.of<std::uint8_t>(call.mask),
                         .target = addresses.of<std::int64_t>(call.target),
                         .softmax = addresses.of<float>(call.softmax),
                         .predicted = addresses.of<float>(call.predicted),
                         .denominator = addresses.of<float>(call.denominator),
                         .columns = call.columns};
  for_rows(op, matrix(call.rows, call.columns), stream);
}

inline void run(const LossCall& call, const StorageAddresses& addresses, Stream stream) {
  const LossOfRows op{.predicted = addresses.of<float>(call.predicted),
                      .denominator = addresses.of<float>(call.denominator),
                      .softmax = addresses.of<float>(call.softmax),
                      .loss = addresses.of<float>(call.loss),
                      .columns = call.columns};
  for_places(op, matrix(call.rows, call.columns), stream);
}

inline void run(const LossBackwardCall& call, const StorageAddresses& addresses, Stream stream) {
  const LossBackward op{.softmax = addresses.of<float>(call.softmax),
                        .mask = addresses.of<std::uint8_t>(call.mask),
                        .target = addresses.of<std::int64_t>(call.target),
                        .gradient = addresses.of<float>(call.gradient),
                        .columns = call.columns,
                        .scale = call.scale};
  for_places(op, matrix(call.rows, call.columns), stream);
}

}  // namespace stepsim::cuda
