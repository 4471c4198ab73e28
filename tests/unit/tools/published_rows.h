// Rows of one published format as a test writes them, and tables of the shared data.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <string>

#include "schema/read_message.h"
#include "tests/unit/error_of.h"
#include "tools/published_format.h"

namespace stepsim {

struct PublishedRows {
  PublishedComparison (*compare)(const CsvTable&);

  // Objects of a JSON list, separated by commas, in a file "f".
  PublishedComparison compared(const std::string& rows) const { return compare(parse_published("[" + rows + "]", "f")); }
  std::string difference(const std::string& row) const {
    const PublishedComparison comparison = compared(row);
    EXPECT_EQ(comparison.rows.size(), 1u) << row;
    return comparison.rows.empty() ? "skipped" : comparison.rows[0].difference;
  }
  // Why.
  std::string skipped(const std::string& row) const {
    const PublishedComparison comparison = compared(row);
    EXPECT_TRUE(comparison.rows.empty()) << row;
    return comparison.skipped.empty() ? "" : comparison.skipped.begin()->first;
  }
  std::string problem(const std::string& row) const {
    return error_of([&] { compared(row); });
  }
};

// None: the file is not there.
inline std::optional<CsvTable> shared_table(const std::string& path_in_data) {
  const std::string file = std::string(STEPSIM_SHARED_DIR "/data/") + path_in_data;
  return std::ifstream(file) ? std::optional(parse_published(read_text_file(file), file)) : std::nullopt;
}

}  // namespace stepsim
