// Kernels that apply an op to each pack of elements, to each place of a matrix, or to each row by a block of threads. Grids follow from the
// sizes alone, so results do not depend on the device.
//
// An op is a struct of pointers and settings with
//  - kWidth, the elements of a pack, and bool packs_fit() const: whether its operands are aligned for that;
//  - for_elements: template <int width> __device__ void apply(std::int64_t first) const, for elements first to first + width - 1;
//  - for_places: template <int width> __device__ void apply(Place first) const, for as many columns;
//  - for_rows: template <int width> __device__ void apply_row(std::int64_t row) const, run by all threads of a block.
#pragma once

#include <algorithm>
#include <cstdint>

#include "hardware/backends/cuda/launch_shim.h"

namespace stepsim::cuda {

constexpr int kElementThreads = 256;  // of a block
constexpr int kMostRowThreads = 512;

struct Place {
  std::int64_t row = 0, column = 0;
};

struct Extent {
  std::int64_t rows = 0, columns = 0;
  std::int64_t run = 0;  // columns that lie side by side in all operands: packs do not cross it; divides columns
};
inline Extent matrix(std::int64_t rows, std::int64_t columns) { return {rows, columns, columns}; }

template <int width, class Op>
__global__ void element_kernel(Op op, std::int64_t count) {
  const std::int64_t first = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * width;
  if (first + width <= count) {
    op.template apply<width>(first);
  } else {
    for (std::int64_t i = first; i < count; ++i) op.template apply<1>(i);
  }
}

// Calls body(column) for the first columns of the packs that the thread has of a row.
template <int width, class Body>
__device__ void each_column(std::int64_t columns, const Body& body) {
  const std::int64_t step = std::int64_t{blockDim.x} * width;
  for (std::int64_t column = std::int64_t{threadIdx.x} * width; column < columns; column += step) body(column);
}

template <int width, class Op>
__global__ void place_kernel(Op op, std::int64_t columns) {
  each_column<width>(columns, [&](std::int64_t column) { op.template apply<width>(Place{blockIdx.x, column}); });
}

template <int width, class Op>
__global__ void row_kernel(Op op) {
  op.template apply_row<width>(blockIdx.x);
}

// Whole warps, enough for a pack of the row each.
inline dim3 row_threads(std::int64_t columns, int width) {
  const std::int64_t warps = ceil_div(ceil_div(columns, width), 32);
  return dim3(static_cast<unsigned>(std::clamp<std::int64_t>(warps * 32, 32, kMostRowThreads)));
}

template <int width, class Op>
void launch_elements(const Op& op, std::int64_t count, Stream stream) {
  const std::int64_t threads = ceil_div(count, width);
  launch(element_kernel<width, Op>, grid_of(ceil_div(threads, kElementThreads)), dim3(kElementThreads), stream, op, count);
}

template <class Op>
void for_elements(const Op& op, std::int64_t count, Stream stream) {
  if (op.packs_fit()) {
    launch_elements<Op::kWidth>(op, count, stream);
  } else {
    launch_elements<1>(op, count, stream);
  }
}

template <class Op>
void for_places(const Op& op, Extent extent, Stream stream) {
  const dim3 grid = grid_of(extent.columns > 0 ? extent.rows : 0);
  if (op.packs_fit() && extent.run % Op::kWidth == 0) {
    launch(place_kernel<Op::kWidth, Op>, grid, row_threads(extent.columns, Op::kWidth), stream, op, extent.columns);
  } else {
    launch(place_kernel<1, Op>, grid, row_threads(extent.columns, 1), stream, op, extent.columns);
  }
}

template <class Op>
void for_rows(const Op& op, Extent extent, Stream stream) {
  if (op.packs_fit() && extent.run % Op::kWidth == 0) {
    launch(row_kernel<Op::kWidth, Op>, grid_of(extent.rows), row_threads(extent.columns, Op::kWidth), stream, op);
  } else {
    launch(row_kernel<1, Op>, grid_of(extent.rows), row_threads(extent.columns, 1), stream, op);
  }
}

}  // namespace stepsim::cuda
