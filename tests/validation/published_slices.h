// Tables of measured steps beside the project, compared, and printed slice by slice as the READMEs quote them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tools/error_statistics.h"
#include "tools/published_format.h"

namespace stepsim {

// None where the file is absent: the test then skips.
inline std::optional<CsvTable> published_table(const std::string& name) {
  const std::string path = std::string(STEPSIM_SHARED_DIR "/data/published/") + name;
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::stringstream text;
  text << file.rdbuf();
  return parse_published(text.str(), path);
}

struct Slice {
  std::string name;
  std::vector<Comparison> rows;
  ErrorStatistics errors() const {
    std::vector<double> all;
    for (const Comparison& row : rows) all.push_back(row.error());
    return error_statistics(all).value_or(ErrorStatistics{});
  }
  // The share of rows whose error is at most `most`.
  double within(double most) const {
    const auto near = std::count_if(rows.begin(), rows.end(), [&](const Comparison& row) { return std::abs(row.error()) <= most; });
    return rows.empty() ? 0 : static_cast<double>(near) / static_cast<double>(rows.size());
  }
};

// By the values of a label, in their order.
inline std::vector<Slice> slices(const PublishedComparison& comparison, const std::string& label) {
  std::map<std::string, Slice> by_value;
  const auto values = comparison.labels.find(label);
  if (values == comparison.labels.end()) return {};
  for (std::size_t i = 0; i < comparison.rows.size(); ++i) {
    Slice& slice = by_value[values->second[i]];
    slice.name = values->second[i];
    slice.rows.push_back(comparison.rows[i]);
  }
  std::vector<Slice> all;
  for (auto& [value, slice] : by_value) all.push_back(std::move(slice));
  return all;
}

inline Slice slice_of(const PublishedComparison& comparison, const std::string& label, const std::string& value) {
  for (Slice& slice : slices(comparison, label)) {
    if (slice.name == value) return std::move(slice);
  }
  return {value, {}};
}

inline void print_slice_heading(const std::string& table) {
  std::printf(
      "## table: %s\n| slice | rows | median | mean | p90 | max | bias | in band | half-width |\n|---|---|---|---|---|---|---|---|---|\n",
      table.c_str());
}

inline void print_slice(const Slice& slice) {
  const ErrorStatistics errors = slice.errors();
  std::printf("| %s | %zu | %.1f %% | %.1f %% | %.1f %% | %.1f %% | %+.1f %% |", slice.name.c_str(), slice.rows.size(), 100 * errors.median,
              100 * errors.mean, 100 * errors.p90, 100 * errors.max, 100 * errors.bias);
  const std::optional<BandStatistics> bands = band_statistics(slice.rows);
  if (bands) {
    std::printf(" %.0f %% | %.1f %% |\n", 100 * bands->inside, 100 * bands->half_width);
  } else {
    std::printf(" | |\n");
  }
}

// All rows, then each slice of the labels. An empty line ends the table.
inline void print_slices(const std::string& table, const PublishedComparison& comparison, const std::vector<std::string>& labels) {
  print_slice_heading(table);
  print_slice({"all", comparison.rows});
  for (const std::string& label : labels) {
    for (const Slice& slice : slices(comparison, label)) print_slice(slice);
  }
  std::printf("\n");
}

inline void print_skipped(const PublishedComparison& comparison) {
  for (const auto& [reason, rows] : comparison.skipped) std::printf("skipped %zu: %s\n", rows, reason.c_str());
  std::printf("filtered %zu, gaps %zu\n\n", comparison.filtered, comparison.gaps);
}

}  // namespace stepsim
