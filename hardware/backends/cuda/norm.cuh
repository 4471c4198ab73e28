// LayerNorm and RMSNorm: a block of threads a row, which stays in the first-level cache between its passes.
#pragma once

#include <cmath>

#include "hardware/backends/cuda/block_sum.cuh"
#include "hardware/backends/cuda/column_sum.cuh"
#include "hardware/backends/cuda/map.cuh"
#include "hardware/backends/cuda/pack.cuh"
#include "hardware/backends/kernel_calls.h"

namespace stepsim::cuda {

// What a row is normalized by.
struct RowStatistics {
  float mean = 0, scale = 0;  // mean 0 where it is not centred
};

__device__ inline RowStatistics statistics_of(const float* statistics, std::int64_t rows, std::int64_t row, bool centred) {
  if (!centred) return {0, statistics[row]};
  return {statistics[row], statistics[rows + row]};
}

template <class T>
struct Norm {
  static constexpr int kWidth = kPackWidth<T>;
  const T *input, *gain, *bias;  // bias may be null
  T* output;
  float* statistics;
  std::int64_t rows, columns;
  float epsilon;
  bool centred;
  bool packs_fit() const { return aligned_for<kWidth>(input, gain, bias, output); }

  // In two passes: a sum of squares less the squared mean would lose the variance of a row far from zero.
  template <int width>
  __device__ RowStatistics statistics_of_row(const T* row) const {
    float sum = 0, squares = 0;
    if (centred) {
      each_column<width>(columns, [&](std::int64_t column) {
        const Values<width> x = load<width>(row + column);
        for (int i = 0; i < width; ++i) sum += x[i];
      });
      sum = block_sum(sum);
    }
    const float mean = sum / static_cast<float>(columns);
    each_column<width>(columns, [&](std::int64_t column) {
      const Values<width> x = load<width>(row + column);
      for (int i = 0; i < width; ++i) squares += (x[i] - mean) * (x[i] - mean);
    });
    return {mean, 1 / sqrtf(block_sum(squares) / static_cast<float>(columns) + epsilon)};
  }

  template <int width>
  __device__ void apply_row(std::int64_t row) const {
    const RowStatistics found = statistics_of_row<width>(input + row * columns);
    if (threadIdx.x == 0) {
      if (centred) statistics[row] = found.mean;
      statistics[centred ? rows + row : row] = found.scale;
    }
    each_column<width>(columns, [&](std::int64_t column) {
      Values<width> x = load<width>(input + row * columns + column);
      const Values<width> factor = load<width>(gain + column);
      for (int i = 0; i < width; ++i) x[i] = (x[i] - found.mean) * found.scale * factor[i];
      if (bias != nullptr) {
        const Values<width> added = load<width>(bias + column);
        for (int i = 0; i < width; ++i) x[i] += added[i];
      }
      store(output + row * columns + column, x);
    });
  }
};

// With x the normalized input and g the output gradient times the gain: scale * (g - mean(g) - x * mean(g * x)), without mean(g) where it
// is not centred.
template <class T>
struct NormBackward {
  static constexpr int kWidth = kPackWidth<T>;
  const T *output_gradient, *input, *gain;
  const float* statistics;
  T* input_gradient;
  std::int64_t rows, columns;
  bool centred;
  bool packs_fit() const { return aligned_for<kWidth>(output_gradient, input, gain, input_gradient); }

  template <int width>
  struct Terms {
    Values<width> g, x;
  };
  template <int width>
  __device__ Terms<width> terms(Place first, RowStatistics of_row) const {
    const std::int64_t element = first.row * columns + first.column;
    Terms<width> result{load<width>(output_gradient + element), load<width>(input + element)};
    const Values<width> factor = load<width>(gain + first.column);
    for (int i = 0; i < width; ++i) {
      result.g[i] *= factor[i];
      result.x[i] = (result.x[i] - of_row.mean) * of_row.scale;
    }
    return result;
  }

  template <int width>
  __device__ void apply_row(std::int64_t row) const {
    const RowStatistics of_row = statistics_of(statistics, rows, row, centred);
    float sum = 0, product = 0;
    each_column<width>(columns, [&](std::int64_t column) {
      const Terms<width> at = terms<width>({row, column}, of_row);
      for (int i = 0; i < width; ++i) {
        sum += at.g[i];
        product += at.g[i] * at.x[i];
      }
    });
    const float mean = centred ? block_sum(sum) / static_cast<float>(columns) : 0;
    const float mean_product = block_sum(product) / static_cast<float>(columns);
    each_column<width>(columns, [&](std::int64_t column) {
      Terms<width> at = terms<width>({row, column}, of_row);
      for (int i = 0; i < width; ++i) at.g[i] = of_row.scale * (at.g[i] - mean - at.x[i] * mean_product);
      store(input_gradient + row * columns + column, at.g);
    });
  }
};

// Sums of output gradient * normalized input, for the gain, and of the output gradient, for the bias.
template <class T, int sums>
struct NormWeightTerm {
  static constexpr int kSums = sums, kWidth = kPackWidth<T>;
  const T *output_gradient, *input;
  const float* statistics;
  std::int64_t rows, columns;
  bool centred;
  bool packs_fit() const { return aligned_for<kWidth>(output_gradient, input); }
  template <int width>
  __device__ void add(Place first, Values<width>* totals) const {
    const RowStatistics of_row = statistics_of(statistics, rows, first.row, centred);
    const std::int64_t element = first.row * columns + first.column;
    const Values<width> gradient = load<width>(output_gradient + element), x = load<width>(input + element);
    for (int i = 0; i < width; ++i) {
      totals[0][i] += gradient[i] * (x[i] - of_row.mean) * of_row.scale;
      if constexpr (sums == 2) totals[1][i] += gradient[i];
    }
  }
};

inline void run(const NormCall& call, const StorageAddresses& addresses, Stream stream) {
  with_type(call.elements, [&]<class T>(T) {
    const Norm<T> op{.input = addresses.of<T>(call.input),
                     .gain = addresses.of<T>(call.gain),
                     .bias = call.bias ? addresses.of<T>(*call.bias) : nullptr,
                     .output = addresses.of<T>(call.output),
                     .statistics = addresses.of<float>(call.statistics),
                     .rows = call.rows,
                     .columns = call.columns,
                     .epsilon = call.epsilon,
                     .centred = call.centred};
    for_rows(op, matrix(call.rows, call.columns), stream);
  });
}

inline void run(const NormBackwardCall& call, const StorageAddresses& addresses, Stream stream) {
  with_type(call.elements, [&]<class T>(T) {
    const NormBackward<T> op{.output_gradient = addresses.of<T>(call.output_gradient),
                             .input = addresses.of<T>(call.input),
                             .gain = addresses.of<T>(call.gain),
                             .statistics = addresses.of<float>(call.statistics),
                             .input_gradient = addresses.of<T>(call.input_gradient),
                             .rows = call.rows,
                             .columns = call.columns,
                             .centred = call.centred};
    for_rows(op, matrix(call.rows, call.columns), stream);
  });
}

inline std::size_t scratch_bytes(const NormWeightGradientCall& call) {
  return column_sum_bytes(call.rows, call.columns, call.bias_gradient ? 2 : 1);
}

template <class T, class Gradient, int sums>
void add_norm_weights(const NormWeightGradientCall& call, const StorageAddresses& addresses, Scratch scratch, Stream stream) {
  const NormWeightTerm<T, sums> term{.output_gradient = addresses.of<T>(call.output_gradient),
                                     .input = addresses.of<T>(call.input),
                                     .statistics = addresses.of<float>(call.statistics),
                                     .rows = call.rows,
                                     .columns = call.columns,
                                     .centred = call.centred};
  ColumnGradients<Gradient, sums> gradients{{addresses.of<Gradient>(call.gain_gradient)}, call.accumulate};
  if constexpr (sums == 2) gradients.of[1] = addresses.of<Gradient>(*call.bias_gradient);
  add_columns(term, matrix(call.rows, call.columns), gradients, scratch, stream);
}

inline void run(const NormWeightGradientCall& call, const StorageAddresses& addresses, Scratch scratch, Stream stream) {
  with_type(call.elements, [&]<class T>(T) {
    with_type(call.gradients, [&]<class Gradient>(Gradient) {
      if (call.bias_gradient) {
        add_norm_weights<T, Gradient, 2>(call, addresses, scratch, stream);
      } else {
        add_norm_weights<T, Gradient, 1>(call, addresses, scratch, stream);
      }
    });
  });
}

}  // namespace stepsim::cuda
