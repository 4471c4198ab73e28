// The cells of one row of a published table by the names of their columns, which may be absent; times in its unit of 1 ms. Whatever a cell
// is not read as is an InputError with its place. Knows no format.
#pragma once

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/units.h"
#include "tools/csv_table.h"

namespace stepsim {

inline constexpr double kLongestRow = 9e18;                 // picoseconds, below 2^63
inline constexpr std::int64_t kMostOfCell = 1 << 24;        // of a count in a cell
inline constexpr std::size_t kShownOfCell = 80;             // characters in a message
inline constexpr std::int64_t kAnyWholeNumber = 1LL << 53;  // numbers from here on are read as this one

class RowCells {
 public:
  RowCells(const CsvTable& table, std::size_t row) : table_(table), row_(table.rows[row]) {}

  // "" if the column is absent or has no name.
  std::string_view text(std::string_view name) const;
  CellForm form(std::string_view name) const;
  // An empty text of a JSON row is there, and wrong; an empty cell of a CSV file is not, nor is null.
  bool has(std::string_view name) const { return !text(name).empty() || form(name) == CellForm::kText; }
  bool is_list(std::string_view name) const { return form(name) != CellForm::kText && text(name).find('[') == 0; }
  // A text says nothing about what is run.
  bool is_note(std::string_view name) const;

  double number(std::string_view name, std::string_view wanted = "a number") const;
  std::int64_t whole(std::string_view name, std::int64_t least, std::optional<std::int64_t> most = {}) const;
  // None: no whole number of picoseconds, or above kLongestRow.
  std::optional<Duration> duration(std::string_view name) const;
  std::vector<double> numbers(std::string_view name) const;  // "[2, 1]"
  bool flag(std::string_view name, bool otherwise) const;    // "true", "false"
  [[noreturn]] void refuse(std::string_view name, std::string_view wanted) const;
  // The row as a table of its own, in which what it does not say can be filled in. Places stay those of the file.
  CsvTable alone() const;

 private:
  std::optional<std::size_t> column_of(std::string_view name) const { return name.empty() ? std::nullopt : table_.column(name); }
  const CsvTable& table_;
  const CsvRow& row_;
};

// Why a row is skipped of which duration() gives none.
std::string no_duration(std::string_view name);

// Whole units at any size, fractions of them to the nearest double.
double row_units(Duration time);

// Whether one of the columns `list` has the name.
template <class List>
bool among(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

}  // namespace stepsim
