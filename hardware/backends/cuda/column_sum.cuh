// Sums over the rows of a matrix, for gradients of what is added to or multiplied with each row. Two kernels, no atomics: a block sums a
// slab of rows into scratch memory, then each column's slabs are added in order. Grids follow from the sizes alone.
//
// A term is a struct with
//  - kSums, how many sums it has of a column; kWidth and packs_fit() as in map.cuh;
//  - template <int width> __device__ void add(Place first, Values<width>* sums) const: adds what a row has in these columns.
#pragma once

#include <algorithm>
#include <cstdint>

#include "hardware/backends/cuda/map.cuh"
#include "hardware/backends/cuda/pack.cuh"
#include "hardware/backends/cuda/scratch.h"

namespace stepsim::cuda {

constexpr int kSlabLanes = 32;  // packs of columns of a block
constexpr int kSlabTeams = 8;   // rows that a block reads at once
constexpr std::int64_t kLeastSlabRows = 64, kMostSlabs = 256;

struct Slabs {
  std::int64_t rows = 0;   // of each but the last
  std::int64_t count = 0;  // 0 where there are no rows
};
inline Slabs slabs_of(std::int64_t rows) {
  const std::int64_t slab_rows = std::max(kLeastSlabRows, ceil_div(rows, kMostSlabs));
  return {slab_rows, ceil_div(rows, slab_rows)};
}

inline std::size_t column_sum_bytes(std::int64_t rows, std::int64_t columns, int sums) {
  return static_cast<std::size_t>(slabs_of(rows).count * columns * sums) * sizeof(float);
}

// slab_sums: [kSums, slabs, columns]
template <int width, class Term>
__global__ void slab_kernel(Term term, std::int64_t rows, std::int64_t columns, Slabs slabs, float* slab_sums) {
  __shared__ float of_team[Term::kSums][kSlabTeams][kSlabLanes * width];
  const std::int64_t first = (std::int64_t{blockIdx.x} * kSlabLanes + threadIdx.x) * width;
  const std::int64_t slab = blockIdx.y;
  Values<width> sums[Term::kSums];
  for (Values<width>& each : sums) each = zeros<width>();
  if (first < columns) {
    const std::int64_t end = (slab + 1) * slabs.rows < rows ? (slab + 1) * slabs.rows : rows;
    for (std::int64_t row = slab * slabs.rows + threadIdx.y; row < end; row += kSlabTeams) {
      term.template add<width>(Place{row, first}, sums);
    }
  }
  for (int sum = 0; sum < Term::kSums; ++sum) {
    for (int i = 0; i < width; ++i) of_team[sum][threadIdx.y][threadIdx.x * width + i] = sums[sum][i];
  }
  __syncthreads();
  if (threadIdx.y != 0 || first >= columns) return;
  for (int sum = 0; sum < Term::kSums; ++sum) {
    Values<width> total = sums[sum];
    for (int team = 1; team < kSlabTeams; ++team) {
      for (int i = 0; i < width; ++i) total[i] += of_team[sum][team][threadIdx.x * width + i];
    }
    store(slab_sums + (sum * slabs.count + slab) * columns + first, total);
  }
}

template <class Gradient>
struct SlabTotal {
  static constexpr int kWidth = 1;
  const float* slab_sums;  // [slabs, columns]
  Gradient* gradient;
  std::int64_t slabs, columns;
  bool accumulate;
  bool packs_fit() const { return true; }
  template <int width>
  __device__ void apply(std::int64_t column) const {
    Values<1> total = zeros<1>();
    for (std::int64_t slab = 0; slab < slabs; ++slab) total[0] += slab_sums[slab * columns + column];
    store_gradient(gradient + column, total, accumulate);
  }
};

// Where sum number i of a term goes; null: nowhere.
template <class Gradient, int sums>
struct ColumnGradients {
  Gradient* of[sums];
  bool accumulate = false;
};

template <class Term, class Gradient>
void add_columns(const Term& term, Extent extent, const ColumnGradients<Gradient, Term::kSums>& gradients, Scratch scratch, Stream stream) {
  const Slabs slabs = slabs_of(extent.rows);
  auto* const slab_sums = scratch.of<float>(column_sum_bytes(extent.rows, extent.columns, Term::kSums));
  const dim3 block(kSlabLanes, kSlabTeams);
  const auto grid = [&](int width) { return grid_of(ceil_div(extent.columns, kSlabLanes * width), slabs.count); };
  if (term.packs_fit() && aligned_for<Term::kWidth>(slab_sums) && extent.run % Term::kWidth == 0) {
    launch(slab_kernel<Term::kWidth, Term>, grid(Term::kWidth), block, stream, term, extent.rows, extent.columns, slabs, slab_sums);
  } else {
    launch(slab_kernel<1, Term>, grid(1), block, stream, term, extent.rows, extent.columns, slabs, slab_sums);
  }
  for (int sum = 0; sum < Term::kSums; ++sum) {
    if (gradients.of[sum] == nullptr) continue;
    const float* const of_sum = slab_sums + sum * slabs.count * extent.columns;
    for_elements(SlabTotal<Gradient>{of_sum, gradients.of[sum], slabs.count, extent.columns, gradients.accumulate}, extent.columns, stream);
  }
}

}  // namespace stepsim::cuda
