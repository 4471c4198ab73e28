// Rows of the measured data beside the project (STEPSIM_SHARED_DIR/data), which may be absent, and errors printed as the README quotes
// them.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <optional>
#include <string>

#include "hardware/fit/error_summary.h"
#include "hardware/fit/measured_table.h"

namespace stepsim {

// None where the file is absent: the test then skips.
inline std::optional<MeasuredTable> measured_table(const std::string& path_in_data) {
  return read_measured_table(std::string(STEPSIM_SHARED_DIR "/data/") + path_in_data);
}

// Begins a table of a README (tools/write_tables.py); rows follow by print_summary.
inline void print_heading(const std::string& table, const std::string& title) {
  std::printf("\n%s\n## table: %s\n| | rows | mean | median | p90 | max | bias |\n|---|---|---|---|---|---|---|\n", title.c_str(),
              table.c_str());
}

inline void print_summary(const std::string& name, const ErrorSummary& errors) {
  std::printf("| %s | %zu | %.1f %% | %.1f %% | %.1f %% | %.1f %% | %+.1f %% |\n", name.c_str(), errors.rows, 100 * errors.mean,
              100 * errors.median, 100 * errors.p90, 100 * errors.max, 100 * errors.bias);
}

// Prints the row; the mean error is at most `mean` and the bias within 0.02 of `bias`: what was found, so that a change is seen.
inline void expect_summary(const std::string& name, const std::vector<double>& errors, double mean, double bias) {
  const ErrorSummary found = summary(errors);
  print_summary(name, found);
  EXPECT_GT(found.rows, 0u) << name;
  EXPECT_LE(found.mean, mean) << name;
  EXPECT_NEAR(found.bias, bias, 0.02) << name;
}

}  // namespace stepsim
