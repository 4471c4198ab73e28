// Rows of the measured data beside the project (STEPSIM_SHARED_DIR/data), which may be absent, and summaries of errors as the README quotes
// them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace stepsim {

// Fields of a line; quotes may enclose commas.
inline std::vector<std::string> measured_fields(const std::string& line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  return fields;
}

struct MeasuredTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;

  const std::string& at(std::size_t row, const std::string& column) const {
    const auto found = std::find(header.begin(), header.end(), column);
    return rows.at(row).at(static_cast<std::size_t>(found - header.begin()));
  }
  double number(std::size_t row, const std::string& column) const { return std::stod(at(row, column)); }
};

// None where the file is absent: the test then skips.
inline std::optional<MeasuredTable> measured_table(const std::string& path_in_data) {
  std::ifstream file(std::string(STEPSIM_SHARED_DIR) + "/data/" + path_in_data);
  if (!file) return std::nullopt;
  MeasuredTable table;
  for (std::string line; std::getline(file, line);) {
    if (table.header.empty()) {
      table.header = measured_fields(line);
    } else {
      table.rows.push_back(measured_fields(line));
      table.rows.back().resize(table.header.size());
    }
  }
  return table;
}

// Of simulated / measured - 1; percentiles by nearest rank.
struct ErrorSummary {
  std::size_t rows = 0;
  double mean = 0, median = 0, p90 = 0, max = 0, bias = 0;
};

inline ErrorSummary summary(const std::vector<double>& errors) {
  if (errors.empty()) return {};
  std::vector<double> sizes;
  double sum = 0, sum_of_sizes = 0;
  for (const double error : errors) {
    sizes.push_back(std::abs(error));
    sum += error;
    sum_of_sizes += std::abs(error);
  }
  std::sort(sizes.begin(), sizes.end());
  const auto count = static_cast<double>(sizes.size());
  const auto rank = [&](double part) { return sizes.at(static_cast<std::size_t>(std::ceil(part * count)) - 1); };
  return {
      .rows = sizes.size(), .mean = sum_of_sizes / count, .median = rank(0.5), .p90 = rank(0.9), .max = sizes.back(), .bias = sum / count};
}

inline void print_heading(const std::string& title) {
  std::printf("\n%s\n%-44s %6s %7s %7s %7s %7s %7s\n", title.c_str(), "", "rows", "mean", "median", "p90", "max", "bias");
}

inline void print_summary(const std::string& name, const ErrorSummary& errors) {
  std::printf("%-44s %6zu %6.1f%% %6.1f%% %6.1f%% %6.1f%% %+6.1f%%\n", name.c_str(), errors.rows, 100 * errors.mean, 100 * errors.median,
              100 * errors.p90, 100 * errors.max, 100 * errors.bias);
}

}  // namespace stepsim
