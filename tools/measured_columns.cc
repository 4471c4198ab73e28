#include "tools/measured_columns.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "sim/check.h"
#include "sim/input_error.h"

namespace stepsim {

std::optional<DType> measured_dtype(const std::string& name) {
  static const std::pair<const char*, DType> kNames[] = {
      {"bf16", DType::kBf16},    {"bfloat16", DType::kBf16}, {"fp16", DType::kFp16},   {"half", DType::kFp16},
      {"float16", DType::kFp16}, {"fp32", DType::kFp32},     {"float", DType::kFp32},  {"float32", DType::kFp32},
      {"tf32", DType::kTf32},    {"fp8", DType::kFp8},       {"mxfp8", DType::kMxFp8}, {"nvfp4", DType::kNvFp4},
      {"int8", DType::kUint8},   {"uint8", DType::kUint8},   {"int32", DType::kInt32}, {"int64", DType::kInt64}};
  for (const auto& [known, dtype] : kNames) {
    if (name == known) return dtype;
  }
  return std::nullopt;
}

const std::string& MeasuredColumns::text(std::size_t row, const std::string& column) const {
  const std::optional<std::size_t> index = table_.column(column);
  STEPSIM_CHECK(index.has_value());
  return table_.rows[row].cells[*index];
}

void MeasuredColumns::fail(std::size_t row, const std::string& column, const std::string& problem) const {
  const CellOrigin& origin = table_.rows[row].origins[*table_.column(column)];
  throw InputError({table_.file, origin.line, origin.column}, problem);
}

void MeasuredColumns::fail_in_head(const std::string& column, const std::string& problem) const {
  std::string head = text_.substr(0, text_.find('\n'));
  head.insert(0, 1, ',');
  std::string cell = column;
  cell.insert(0, 1, ',');
  const std::size_t at = column.empty() ? 0 : head.find(cell);
  throw InputError({table_.file, 1, static_cast<int>(at == std::string::npos ? 0 : at) + 1}, problem);
}

double MeasuredColumns::positive(std::size_t row, const std::string& column) const {
  const std::string& cell = text(row, column);
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  const bool read = error == std::errc() && end == cell.data() + cell.size() && std::isfinite(value) && value > 0;
  if (!read) fail(row, column, fmt::format("found {} \"{}\", wanted a number above zero", column, cell));
  constexpr double kMost = 1e12;
  if (value > kMost) fail(row, column, fmt::format("found {} {}, wanted at most {}", column, cell, kMost));
  return value;
}

std::int64_t MeasuredColumns::count(std::size_t row, const std::string& column) const {
  const double value = positive(row, column);
  constexpr double kMost = 16777216;  // 2^24: no shape that was measured is larger
  if (value != std::floor(value) || value > kMost) {
    fail(row, column, fmt::format("found {} \"{}\", wanted a whole number from 1 to 2^24", column, text(row, column)));
  }
  return static_cast<std::int64_t>(value);
}

bool MeasuredColumns::yes(std::size_t row, const std::string& column) const {
  const std::string& cell = text(row, column);
  if (cell == "1" || cell == "true" || cell == "True") return true;
  if (cell == "0" || cell == "false" || cell == "False") return false;
  fail(row, column, fmt::format("found {} \"{}\", wanted 0 or 1", column, cell));
}

Bytes MeasuredColumns::bytes(std::size_t row, const std::string& column) const {
  const double value = positive(row, column);
  constexpr double kMost = 1099511627776;  // 1 TiB
  if (value != std::floor(value) || value > kMost) {
    fail(row, column, fmt::format("found {} \"{}\", wanted a whole number of bytes up to 2^40", column, text(row, column)));
  }
  return Bytes(static_cast<std::int64_t>(value));
}

DType MeasuredColumns::dtype(std::size_t row, const std::string& column) const {
  const std::string& cell = text(row, column);
  const std::optional<DType> dtype = measured_dtype(cell);
  if (!dtype) fail(row, column, fmt::format("found {} \"{}\", wanted bf16, fp16, fp32, tf32, fp8, mxfp8, nvfp4 or int8", column, cell));
  return *dtype;
}

}  // namespace stepsim
