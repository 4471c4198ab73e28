// Rotary position embedding. Angles come from a table that the caller keeps on the device: made in double, because an fp32 product of
// position and frequency is off by 1e-4 radians at a position of a few thousand.
#pragma once

#include <cmath>
#include <vector>

#include "hardware/backends/cuda/heads.cuh"
#include "hardware/backends/cuda/map.cuh"
#include "hardware/backends/cuda/pack.cuh"
#include "hardware/backends/kernel_calls.h"

namespace stepsim::cuda {

// Cosines, then sines, [sequence, head_dim / 2] each.
inline std::vector<float> rotary_table(const HeadShape& shape, double base) {
  const std::int64_t half = shape.head_dim / 2;
  const auto sines = static_cast<std::size_t>(shape.sequence * half);
  std::vector<float> table(2 * sines);
  for (std::int64_t position = 0; position < shape.sequence; ++position) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double exponent = -2 * static_cast<double>(i) / static_cast<double>(shape.head_dim);
      const double angle = static_cast<double>(position) * std::pow(base, exponent);
      const auto place = static_cast<std::size_t>(position * half + i);
      table[place] = static_cast<float>(std::cos(angle));
      table[sines + place] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

// The columns of a token are pairs (i, i + head_dim / 2) of the heads of queries, keys and values, in the order of joint qkv.
struct PairPlace {
  std::int64_t head = 0, i = 0, position = 0;
  __device__ PairPlace(const HeadShape& shape, Place first)
      : head(first.column / (shape.head_dim / 2)), i(first.column % (shape.head_dim / 2)), position(first.row % shape.sequence) {}
};
inline Extent pair_extent(const HeadShape& shape) {
  const std::int64_t half = shape.head_dim / 2;
  return {.rows = shape.batch * shape.sequence, .columns = (shape.heads + 2 * shape.kv_heads) * half, .run = half};
}

// A head's pairs turned by their angles, or back: direction 1, -1.
template <int width, class T>
__device__ void turn(T* to, const T* from, const float* table, const HeadShape& shape, PairPlace pair, float direction) {
  const std::int64_t half = shape.head_dim / 2, place = pair.position * half + pair.i;
  const Values<width> cosine = load<width>(table + place), sine = load<width>(table + shape.sequence * half + place);
  const Values<width> a = load<width>(from + pair.i), b = load<width>(from + half + pair.i);
  Values<width> turned_a, turned_b;
  for (int i = 0; i < width; ++i) {
    turned_a[i] = a[i] * cosine[i] - b[i] * direction * sine[i];
    turned_b[i] = b[i] * cosine[i] + a[i] * direction * sine[i];
  }
  store(to + pair.i, turned_a);
  store(to + half + pair.i, turned_b);
}

template <int width, class T>
__device__ void copy_pair(T* to, const T* from, const HeadShape& shape, PairPlace pair) {
  copy<width>(to + pair.i, from + pair.i);
  copy<width>(to + shape.head_dim / 2 + pair.i, from + shape.head_dim / 2 + pair.i);
}

template <class T>
struct Rotary {
  static constexpr int kWidth = kPackWidth<T>;
  const T* joint;
  const float* table;
  T *query, *key, *value;
  HeadShape shape;
  bool packs_fit() const { return aligned_for<kWidth>(joint, query, key, value) && aligned_for<kWidth>(table); }
  template <int width>
  __device__ void apply(Place first) const {
    const PairPlace pair(shape, first);
    const T* const from = joint + (first.row * (shape.heads + 2 * shape.kv_heads) + pair.head) * shape.head_dim;
    const std::int64_t kv_head = first.row * shape.kv_heads + pair.head - shape.heads;
    if (pair.head < shape.heads) {
      turn<width>(query + (first.row * shape.heads + pair.head) * shape.head_dim, from, table, shape, pair, 1);
    } else if (pair.head < shape.heads + shape.kv_heads) {
      turn<width>(key + kv_head * shape.head_dim, from, table, shape, pair, 1);
    } else {
      copy_pair<width>(value + (kv_head - shape.kv_heads) * shape.head_dim, from, shape, pair);
    }
  }
};

template <class T>
struct RotaryBackward {
  static constexpr int kWidth = kPackWidth<T>;
  const T *query, *key, *value;
  const float* table;
  T* joint;
  HeadShape shape;
  bool packs_fit() const { return aligned_for<kWidth>(joint, query, key, value) && aligned_for<kWidth>(table); }
  template <int width>
  __device__ void apply(Place first) const {
    const PairPlace pair(shape, first);
    T* const to = joint + (first.row * (shape.heads + 2 * shape.kv_heads) + pair.head) * shape.head_dim;
    const auto head = [&](const T* tensor, std::int64_t heads, std::int64_t number) {
      return tensor + head_major(shape, heads, {first.row, number * shape.head_dim});
    };
    const std::int64_t kv_head = pair.head - shape.heads;
    if (kv_head < 0) {
      turn<width>(to, head(query, shape.heads, pair.head), table, shape, pair, -1);
    } else if (kv_head < shape.kv_heads) {
      turn<width>(to, head(key, shape.kv_heads, kv_head), table, shape, pair, -1);
    } else {
      copy_pair<width>(to, head(value, shape.kv_heads, kv_head - shape.kv_heads), shape, pair);
    }
  }
};

// `table`: rotary_table of the call's shape and base, on the device.
inline void run(const RotaryCall& call, const StorageAddresses& addresses, const float* table, Stream stream) {
  STEPSIM_CHECK(call.shape.head_dim % 2 == 0);
  with_type(call.elements, [&]<class T>(T) {
    const Rotary<T> op{.joint = addresses.of<T>(call.joint),
                       .table = table,
                       .query = addresses.of<T>(call.query),
                       .key = addresses.of<T>(call.key),
                       .value = addresses.of<T>(call.value),
                       .shape = call.shape};
    for_places(op, pair_extent(call.shape), stream);
  });
}

inline void run(const RotaryBackwardCall& call, const StorageAddresses& addresses, const float* table, Stream stream) {
  STEPSIM_CHECK(call.shape.head_dim % 2 == 0);
  with_type(call.elements, [&]<class T>(T) {
    const RotaryBackward<T> op{.query = addresses.of<T>(call.query),
                               .key = addresses.of<T>(call.key),
                               .value = addresses.of<T>(call.value),
                               .table = table,
                               .joint = addresses.of<T>(call.joint),
                               .shape = call.shape};
    for_places(op, pair_extent(call.shape), stream);
  });
}

}  // namespace stepsim::cuda
