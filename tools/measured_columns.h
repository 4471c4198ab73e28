// Cells of a CSV file of measurements as numbers, dtypes and times, with the place of every mistake. Knows no layout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sim/op_work.h"
#include "tools/csv_table.h"

namespace stepsim {

class MeasuredColumns {
 public:
  // `text` is what the table was parsed from: places in the head.
  MeasuredColumns(const CsvTable& table, const std::string& text) : table_(table), text_(text) {}

  bool has(const std::string& column) const { return table_.column(column).has_value(); }
  const std::string& text(std::size_t row, const std::string& column) const;
  std::int64_t count(std::size_t row, const std::string& column) const;  // 1 to 2^24
  Bytes bytes(std::size_t row, const std::string& column) const;         // 1 to 2^40
  double positive(std::size_t row, const std::string& column) const;     // above 0 and finite
  bool yes(std::size_t row, const std::string& column) const;            // 1, 0, true, false
  DType dtype(std::size_t row, const std::string& column) const;
  double latency_s(std::size_t row) const { return positive(row, "latency_us") * 1e-6; }

  [[noreturn]] void fail(std::size_t row, const std::string& column, const std::string& problem) const;
  [[noreturn]] void fail_in_head(const std::string& column, const std::string& problem) const;  // "": at its begin
  int line(std::size_t row) const { return table_.rows[row].line; }
  std::size_t rows() const { return table_.rows.size(); }
  const CsvTable& table() const { return table_; }

 private:
  const CsvTable& table_;
  const std::string& text_;
};

// "bf16" and "bfloat16", "half" and "fp16", ...; none: not a name that measurements use. int8 is one byte as fp8 is.
std::optional<DType> measured_dtype(const std::string& name);

}  // namespace stepsim
