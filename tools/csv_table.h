// A CSV file (RFC 4180) with a head. Knows no column's meaning.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stepsim {

// What a cell was written as. CSV does not tell: any text. Absent: its JSON object lacks the key, or has null.
enum class CellForm : std::uint8_t { kAny, kText, kNumber, kSwitch, kList, kAbsent };

struct CellOrigin {
  int line = 0, column = 0;  // where it begins, 1-based; of an absent one its row
  CellForm form = CellForm::kAny;
};

struct CsvRow {
  int line = 0, column = 1;  // where it begins, 1-based; the head is line 1
  std::vector<std::string> cells;
  std::vector<CellOrigin> origins;  // by cell
};

struct CsvTable {
  std::string file;
  std::vector<std::string> head;
  std::vector<CsvRow> rows;
  bool numbered = false;  // rows are known by their numbers, not by their lines: a JSON list (json_rows.h)

  // The id column of a row (an index into rows), or its line; of a numbered table the row's number, from 1.
  std::string row_id(std::size_t row) const;
  std::optional<std::size_t> column(std::string_view name) const;
};

// Quotes, doubled quotes, line ends inside quotes, CRLF; empty lines are skipped. InputError for an empty file, a name twice, a row with
// another number of cells than the head, an open quote.
CsvTable parse_csv(std::string_view text, const std::string& file);

}  // namespace stepsim
