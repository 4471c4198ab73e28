// Sums over the rows of a matrix, column by column: fp32 within blocks of rows, fp64 over blocks, so that the error does not grow with the
// number of rows. Rows are added in their order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace stepsim::cpu {

class ColumnSums {
 public:
  explicit ColumnSums(std::int64_t columns) : block_(static_cast<std::size_t>(columns)), sums_(static_cast<std::size_t>(columns)) {}

  // value(i): of column i of the next row.
  template <class Value>
  void add_row(const Value& value) {
    float* __restrict block = block_.data();
    const auto columns = static_cast<std::int64_t>(block_.size());
    if (rows_of_block_ == 0) {
      for (std::int64_t i = 0; i < columns; ++i) block[i] = value(i);
    } else {
      for (std::int64_t i = 0; i < columns; ++i) block[i] += value(i);
    }
    if (++rows_of_block_ == kBlockRows) end_block();
  }

  // Of the rows so far, on top of what `output` holds if it accumulates.
  void write(float* __restrict output, bool accumulate) {
    end_block();
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      output[i] = static_cast<float>(accumulate ? static_cast<double>(output[i]) + sums_[i] : sums_[i]);
    }
  }

 private:
  static constexpr std::int64_t kBlockRows = 32;

  void end_block() {
    if (rows_of_block_ == 0) return;
    rows_of_block_ = 0;
    for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i] += static_cast<double>(block_[i]);
  }

  std::vector<float> block_;
  std::vector<double> sums_;
  std::int64_t rows_of_block_ = 0;
};

}  // namespace stepsim::cpu
