// A CSV file of measurements: header line, then rows; quotes may enclose commas. Knows no column.
#pragma once

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace stepsim {

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
  std::int64_t integer(std::size_t row, const std::string& column) const { return static_cast<std::int64_t>(number(row, column)); }
};

// None where the file is absent.
inline std::optional<MeasuredTable> read_measured_table(const std::string& path) {
  std::ifstream file(path);
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

}  // namespace stepsim
