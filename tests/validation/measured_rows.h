// Rows of the measured data beside the project (STEPSIM_SHARED_DIR/data), which may be absent, and errors printed as the README quotes
// them.
#pragma once

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

inline void print_heading(const std::string& title) {
  std::printf("\n%s\n%-44s %6s %7s %7s %7s %7s %7s\n", title.c_str(), "", "rows", "mean", "median", "p90", "max", "bias");
}

inline void print_summary(const std::string& name, const ErrorSummary& errors) {
  std::printf("%-44s %6zu %6.1f%% %6.1f%% %6.1f%% %6.1f%% %+6.1f%%\n", name.c_str(), errors.rows, 100 * errors.mean, 100 * errors.median,
              100 * errors.p90, 100 * errors.max, 100 * errors.bias);
}

}  // namespace stepsim
