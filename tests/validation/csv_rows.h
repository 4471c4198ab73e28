// Rows of the project's own validation tables: a comment block, a header line, then rows without quotes or commas inside fields.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace stepsim {

using NamedCells = std::map<std::string, std::string>;

inline std::vector<std::string> split(const std::string& line, char separator) {
  std::vector<std::string> fields;
  std::stringstream stream(line);
  for (std::string field; std::getline(stream, field, separator);) fields.push_back(field);
  if (!line.empty() && line.back() == separator) fields.emplace_back();
  return fields;
}

// All rows of tests/validation/<name>; a missing or empty table fails the test.
inline std::vector<NamedCells> csv_rows(const std::string& name) {
  std::ifstream file(STEPSIM_SOURCE_DIR "/tests/validation/" + name);
  std::vector<std::string> header;
  std::vector<NamedCells> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> fields = split(line, ',');
    if (header.empty()) {
      header = fields;
      continue;
    }
    EXPECT_EQ(fields.size(), header.size()) << name << ": " << line;
    NamedCells row;
    for (std::size_t i = 0; i < header.size() && i < fields.size(); ++i) row[header[i]] = fields[i];
    rows.push_back(row);
  }
  EXPECT_FALSE(rows.empty()) << name << " has no rows";
  return rows;
}

}  // namespace stepsim
