// A CSV file (RFC 4180) with a head. Knows no column's meaning.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stepsim {

struct CsvRow {
  int line = 0;  // where it begins, 1-based; the head is line 1
  std::vector<std::string> cells;
};

struct CsvTable {
  std::string file;
  std::vector<std::string> head;
  std::vector<CsvRow> rows;

  std::optional<std::size_t> column(std::string_view name) const;
};

// Quotes, doubled quotes, line ends inside quotes, CRLF; empty lines are skipped. InputError for an empty file, a name twice, a row with
// another number of cells than the head, an open quote.
CsvTable parse_csv(std::string_view text, const std::string& file);

}  // namespace stepsim
