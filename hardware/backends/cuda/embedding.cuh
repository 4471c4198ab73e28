// Token and position embeddings and their gradients.
//
// The token table's gradient is summed without atomics, in the order of the tokens: two kernels. The first links the tokens of each row of
// the table into a chain; each thread has a row, each block looks at all tokens: rows / 256 * tokens reads of 8 bytes, from the
// second-level cache (32 MB for 128k rows and 8k tokens). The second has blocks for each row, which walk its chain and write the row once,
// zeros included: the table is written in full, as a gradient that overwrites must be. The longest chain (the most frequent token) is
// walked one gradient row after another, with all columns at once.
#pragma once

#include <cstdint>

#include "hardware/backends/cuda/map.cuh"
#include "hardware/backends/cuda/pack.cuh"
#include "hardware/backends/cuda/scratch.h"
#include "hardware/backends/kernel_calls.h"

namespace stepsim::cuda {

template <class T>
struct Embedding {
  static constexpr int kWidth = kPackWidth<T>;
  const std::int64_t* tokens;
  const T* table;
  T* output;
  std::int64_t hidden;
  TableShare share;
  bool packs_fit() const { return aligned_for<kWidth>(table, output); }
  template <int width>
  __device__ void apply(Place first) const {
    const std::int64_t row = tokens[first.row] - share.first;
    T* const to = output + first.row * hidden + first.column;
    if (row >= 0 && row < share.rows) {
      copy<width>(to, table + row * hidden + first.column);
    } else {
      store(to, zeros<width>());
    }
  }
};

// Of each row of a table, the tokens that are it, in ascending order: the first, and behind each the next one; kEnd: none.
struct TokenChains {
  static constexpr std::int32_t kEnd = -1;
  std::int32_t *first, *next;  // by row, by token
};

constexpr int kChainThreads = 256;  // rows and tokens that a block looks at together

// Warps look for tokens of the block's rows; then each thread picks its row's among those found.
template <class = void>
__global__ void chain_kernel(const std::int64_t* tokens, std::int64_t count, TableShare share, TokenChains chains) {
  __shared__ std::int32_t row_of[kChainThreads];
  __shared__ std::uint32_t found[kChainThreads / 32];
  const std::int64_t block_row = std::int64_t{blockIdx.x} * kChainThreads;
  const auto mine = static_cast<std::int32_t>(threadIdx.x);
  std::int32_t first = TokenChains::kEnd, last = TokenChains::kEnd;
  for (std::int64_t begin = 0; begin < count; begin += kChainThreads) {
    const std::int64_t token = begin + threadIdx.x;
    const std::int64_t row = token < count ? tokens[token] - share.first - block_row : -1;
    const bool here = row >= 0 && row < kChainThreads;
    row_of[threadIdx.x] = here ? static_cast<std::int32_t>(row) : -1;
    const std::uint32_t lanes = __ballot_sync(0xFFFFFFFFU, here);
    if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = lanes;
    __syncthreads();
    for (int warp = 0; warp < kChainThreads / 32; ++warp) {
      for (std::uint32_t left = found[warp]; left != 0; left &= left - 1) {
        const int place = warp * 32 + __ffs(left) - 1;
        if (row_of[place] != mine) continue;
        const auto link = static_cast<std::int32_t>(begin + place);
        if (last == TokenChains::kEnd) {
          first = link;
        } else {
          chains.next[last] = link;
        }
        last = link;
      }
    }
    __syncthreads();  // before the next tokens are looked at
  }
  if (last != TokenChains::kEnd) chains.next[last] = TokenChains::kEnd;
  if (block_row + mine < share.rows) chains.first[block_row + mine] = first;
}

template <class T, class Gradient>
struct ChainSum {
  static constexpr int kWidth = kPackWidth<T, Gradient>;
  const T* gradient;
  Gradient* table_gradient;
  TokenChains chains;
  std::int64_t hidden;
  bool accumulate;
  bool packs_fit() const { return aligned_for<kWidth>(gradient) && aligned_for<kWidth>(table_gradient); }
  template <int width>
  __device__ void apply(Place first) const {
    std::int32_t token = chains.first[first.row];
    if (accumulate && token == TokenChains::kEnd) return;
    Values<width> sum = zeros<width>();
    for (; token != TokenChains::kEnd; token = chains.next[token]) {
      const Values<width> values = load<width>(gradient + token * hidden + first.column);
      for (int i = 0; i < width; ++i) sum[i] += values[i];
    }
    store_gradient(table_gradient + first.row * hidden + first.column, sum, accumulate);
  }
};

template <class T>
struct Position {
  static constexpr int kWidth = kPackWidth<T>;
  const T *input, *table;
  T* output;
  std::int64_t sequence, hidden;
  bool packs_fit() const { return aligned_for<kWidth>(input, table, output); }
  template <int width>
  __device__ void apply(Place first) const {
    const std::int64_t element = first.row * hidden + first.column;
    Values<width> values = load<width>(input + element);
    const Values<width> added = load<width>(table + first.row % sequence * hidden + first.column);
    for (int i = 0; i < width; ++i) values[i] += added[i];
    store(output + element, values);
  }
};

template <class T, class Gradient>
struct PositionSum {
  static constexpr int kWidth = kPackWidth<T, Gradient>;
  const T* gradient;
  Gradient* table_gradient;
  std::int64_t batch, sequence, hidden;
  bool accumulate;
  bool packs_fit() const { return aligned_for<kWidth>(gradient) && aligned_for<kWidth>(table_gradient); }
  template <int width>
  __device__ void apply(Place first) const {
    Values<width> sum = zeros<width>();
    for (std::int64_t i = 0; i < batch && first.row < sequence; ++i) {
      const Values<width> values = load<width>(gradient + (i * sequence + first.row) * hidden + first.column);
      for (int j = 0; j < width; ++j) sum[j] += values[j];
    }
    store_gradient(table_gradient + first.row * hidden + first.column, sum, accumulate);
  }
};

inline void run(const EmbeddingCall& call, const StorageAddresses& addresses, Stream stream) {
  with_type(call.elements, [&]<class T>(T) {
    const Embedding<T> op{.tokens = addresses.of<std::int64_t>(call.tokens),
                          .table = addresses.of<T>(call.table),
                          .output = addresses.of<T>(call.output),
                          .hidden = call.hidden,
                          .share = call.share};
    for_places(op, matrix(call.count, call.hidden), stream);
  });
}

inline std::size_t scratch_bytes(const EmbeddingGradientCall& call) {
  return static_cast<std::size_t>(call.share.rows + call.count) * sizeof(std::int32_t);
}

inline void run(const EmbeddingGradientCall& call, const StorageAddresses& addresses, Scratch scratch, Stream stream) {
  STEPSIM_CHECK(call.count < (std::int64_t{1} << 31));
  auto* const first = scratch.of<std::int32_t>(scratch_bytes(call));
  const TokenChains chains{first, first + call.share.rows};
  launch(chain_kernel<void>, grid_of(ceil_div(call.share.rows, kChainThreads)), dim3(kChainThreads), stream,
         static_cast<const std::int64_t*>(addresses.of<std::int64_t>(call.tokens)), call.count, call.share, chains);
  with_type(call.elements, [&]<class T>(T) {
    with_type(call.gradients, [&]<class Gradient>(Gradient) {
      const ChainSum<T, Gradient> op{.gradient = addresses.of<T>(call.gradient),
                                     .table_gradient = addresses.of<Gradient>(call.table_gradient),
                                     .chains = chains,
                                     .hidden = call.hidden,
                                     .accumulate = call.accumulate};
      for_places(op, matrix(call.share.rows, call.hidden), stream);
    });
  });
}

inline void run(const PositionCall& call, const StorageAddresses& addresses, Stream stream) {
  with_type(call.elements, [&]<class T>(T) {
    const Position<T> op{.input = addresses.of<T>(call.input),
                         .table = addresses.of<T>(call.table),
                         .output = addresses.of<T>(call.output),
                         .sequence = call.sequence,
                         .hidden = call.hidden};
    for_places(op, matrix(call.batch * call.sequence, call.hidden), stream);
  });
}

inline void run(const PositionGradientCall& call, const StorageAddresses& addresses, Stream stream) {
  with_type(call.elements, [&]<class T>(T) {
    with_type(call.gradients, [&]<class Gradient>(Gradient) {
      const PositionSum<T, Gradient> op{.gradient = addresses.of<T>(call.gradient),
                                        .table_gradient = addresses.of<Gradient>(call.table_gradient),
                                        .batch = call.batch,
                                        .sequence = call.sequence,
                                        .hidden = call.hidden,
                                        .accumulate = call.accumulate};
      for_places(op, matrix(call.accumulate ? call.sequence : call.table_rows, call.hidden), stream);
    });
  });
}

}  // namespace stepsim::cuda
