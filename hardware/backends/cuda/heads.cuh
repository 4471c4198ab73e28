// Changes of the order in which heads lie in memory: a block of threads a token, so token-major rows are read or written whole.
#pragma once

#include "hardware/backends/cuda/map.cuh"
#include "hardware/backends/cuda/pack.cuh"
#include "hardware/backends/kernel_calls.h"

namespace stepsim::cuda {

// Where element `column` of a token's heads lies in a head-major tensor of `heads` heads; a row is a token.
__host__ __device__ inline std::int64_t head_major(const HeadShape& shape, std::int64_t heads, Place at) {
  const std::int64_t sample = at.row / shape.sequence, position = at.row % shape.sequence;
  const std::int64_t head = at.column / shape.head_dim, dim = at.column % shape.head_dim;
  return ((sample * heads + head) * shape.sequence + position) * shape.head_dim + dim;
}

inline std::int64_t joint_columns(const HeadShape& shape) { return (shape.heads + 2 * shape.kv_heads) * shape.head_dim; }

// A row for each token.
inline Extent token_extent(const HeadShape& shape, std::int64_t columns) {
  return {.rows = shape.batch * shape.sequence, .columns = columns, .run = shape.head_dim};
}

template <class T>
struct HeadsToTokens {
  static constexpr int kWidth = kPackWidth<T>;
  const T* input;
  T* output;
  HeadShape shape;
  bool packs_fit() const { return aligned_for<kWidth>(input, output); }
  template <int width>
  __device__ void apply(Place first) const {
    const std::int64_t columns = shape.heads * shape.head_dim;
    copy<width>(output + first.row * columns + first.column, input + head_major(shape, shape.heads, first));
  }
};

template <class T>
struct JoinHeads {
  static constexpr int kWidth = kPackWidth<T>;
  const T *query, *key, *value;
  T* joint;
  HeadShape shape;
  std::int64_t columns;  // of a row of the joint tensor
  bool packs_fit() const { return aligned_for<kWidth>(query, key, value, joint); }
  template <int width>
  __device__ void apply(Place first) const {
    const std::int64_t keys = shape.heads * shape.head_dim, values = keys + shape.kv_heads * shape.head_dim;
    T* const to = joint + first.row * columns + first.column;
    if (first.column < keys) {
      copy<width>(to, query + head_major(shape, shape.heads, first));
    } else if (first.column < values) {
      copy<width>(to, key + head_major(shape, shape.kv_heads, {first.row, first.column - keys}));
    } else {
      copy<width>(to, value + head_major(shape, shape.kv_heads, {first.row, first.column - values}));
    }
  }
};

template <class T>
struct RepeatHeads {
  static constexpr int kWidth = kPackWidth<T>;
  const T *key, *value;
  T *repeated_key, *repeated_value;
  HeadShape shape;
  bool packs_fit() const { return aligned_for<kWidth>(key, value, repeated_key, repeated_value); }
  template <int width>
  __device__ void apply(Place first) const {
    const std::int64_t head = first.column / shape.head_dim, dim = first.column % shape.head_dim;
    const std::int64_t from = (first.row * shape.kv_heads + head / (shape.heads / shape.kv_heads)) * shape.head_dim + dim;
    const std::int64_t to = first.row * shape.heads * shape.head_dim + first.column;
    copy<width>(repeated_key + to, key + from);
    copy<width>(repeated_value + to, value + from);
  }
};

template <class T>
struct RepeatHeadsBackward {
  static constexpr int kWidth = kPackWidth<T>;
  const T *key, *value;
  T *summed_key, *summed_value;
  HeadShape shape;
  bool packs_fit() const { return aligned_for<kWidth>(key, value, summed_key, summed_value); }
  template <int width>
  __device__ void apply(Place first) const {
    const std::int64_t copies = shape.heads / shape.kv_heads;
    const std::int64_t kv_head = first.column / shape.head_dim, dim = first.column % shape.head_dim;
    Values<width> of_key = zeros<width>(), of_value = zeros<width>();
    for (std::int64_t head = kv_head * copies; head < (kv_head + 1) * copies; ++head) {
      const std::int64_t from = head_major(shape, shape.heads, {first.row, head * shape.head_dim + dim});
      const Values<width> k = load<width>(key + from), v = load<width>(value + from);
      for (int i = 0; i < width; ++i) {
        of_key[i] += k[i];
        of_value[i] += v[i];
      }
    }
    const std::int64_t to = head_major(shape, shape.kv_heads, first);
    store(summed_key + to, of_key);
    store(summed_value + to, of_value);
  }
};

inline void run(const HeadsToTokensCall& call, const StorageAddresses& addresses, Stream stream) {
  with_type(call.elements, [&]<class T>(T) {
    const HeadsToTokens<T> op{addresses.of<T>(call.input), addresses.of<T>(call.output), call.shape};
    for_places(op, token_extent(call.shape, call.shape.heads * call.shape.head_dim), stream);
  });
}

inline void run(const JoinHeadsCall& call, const StorageAddresses& addresses, Stream stream) {
  with_type(call.elements, [&]<class T>(T) {
    const JoinHeads<T> op{.query = addresses.of<T>(call.query),
                          .key = addresses.of<T>(call.key),
                          .value = addresses.of<T>(call.value),
                          .joint = addresses.of<T>(call.joint),
                          .shape = call.shape,
                          .columns = joint_columns(call.shape)};
    for_places(op, token_extent(call.shape, op.columns), stream);
  });
}

inline void run(const RepeatHeadsCall& call, const StorageAddresses& addresses, Stream stream) {
  STEPSIM_CHECK(call.shape.heads % call.shape.kv_heads == 0);
  with_type(call.elements, [&]<class T>(T) {
    const RepeatHeads<T> op{.key = addresses.of<T>(call.key),
                            .value = addresses.of<T>(call.value),
                            .repeated_key = addresses.of<T>(call.repeated_key),
                            .repeated_value = addresses.of<T>(call.repeated_value),
                            .shape = call.shape};
    for_places(op, token_extent(call.shape, call.shape.heads * call.shape.head_dim), stream);
  });
}

inline void run(const RepeatHeadsBackwardCall& call, const StorageAddresses& addresses, Stream stream) {
  STEPSIM_CHECK(call.shape.heads % call.shape.kv_heads == 0);
  with_type(call.elements, [&]<class T>(T) {
    const RepeatHeadsBackward<T> op{.key = addresses.of<T>(call.key),
                                    .value = addresses.of<T>(call.value),
                                    .summed_key = addresses.of<T>(call.summed_key),
                                    .summed_value = addresses.of<T>(call.summed_value),
                                    .shape = call.shape};
    for_places(op, token_extent(call.shape, call.shape.kv_heads * call.shape.head_dim), stream);
  });
}

}  // namespace stepsim::cuda
