#include "tools/csv_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/input_error.h"

namespace stepsim {

std::optional<std::size_t> CsvTable::column(std::string_view name) const {
  const auto found = std::find(head.begin(), head.end(), name);
  return found == head.end() ? std::nullopt : std::optional(static_cast<std::size_t>(found - head.begin()));
}

std::string CsvTable::row_id(std::size_t row) const {
  const std::optional<std::size_t> id = column("id");
  if (id && !rows[row].cells[*id].empty()) return rows[row].cells[*id];
  return numbered ? std::to_string(row + 1) : std::to_string(rows[row].line);
}

class CsvReader {
 public:
  CsvReader(std::string_view text, const std::string& file) : text_(text), file_(file) {}
  bool ended() const { return at_ >= text_.size(); }
  CsvRow row();

 private:
  std::string cell();
  std::string quoted_cell();

  std::string_view text_;
  const std::string& file_;
  std::size_t at_ = 0, line_begin_ = 0;
  int line_ = 1;
};

std::string CsvReader::quoted_cell() {
  const int line = line_, column = static_cast<int>(at_ - line_begin_) + 1;
  std::string cell;
  for (++at_; !ended(); ++at_) {
    if (text_[at_] == '"') {
      if (at_ + 1 >= text_.size() || text_[at_ + 1] != '"') break;
      ++at_;  // a doubled quote is one
    }
    if (text_[at_] == '\n') ++line_, line_begin_ = at_ + 1;
    cell += text_[at_];
  }
  if (ended()) throw InputError({file_, line, column}, "found a quote that does not end, wanted a closing \"");
  ++at_;
  const bool separated = ended() || text_[at_] == ',' || text_[at_] == '\n' || text_.substr(at_, 2) == "\r\n";
  if (!separated) {
    throw InputError({file_, line_, static_cast<int>(at_ - line_begin_) + 1}, "found text after a closing quote, wanted a comma");
  }
  return cell;
}

std::string CsvReader::cell() {
  if (!ended() && text_[at_] == '"') return quoted_cell();
  const std::size_t end = std::min(text_.find_first_of(",\n", at_), text_.size());
  std::string cell(text_.substr(at_, end - at_));
  at_ = end;
  const bool last = ended() || text_[at_] == '\n';
  if (last && !cell.empty() && cell.back() == '\r') cell.pop_back();
  return cell;
}

CsvRow CsvReader::row() {
  CsvRow row{line_, 1, {}, {}};
  while (true) {
    row.origins.push_back({line_, static_cast<int>(at_ - line_begin_) + 1});
    row.cells.push_back(cell());
    if (!ended() && text_[at_] == '\r') ++at_;  // of \r\n after a quoted cell
    if (ended()) return row;
    const bool more = text_[at_] == ',';
    ++at_;
    if (!more) break;
  }
  ++line_;
  line_begin_ = at_;
  return row;
}

CsvTable parse_csv(std::string_view text, const std::string& file) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (text.substr(0, kMark.size()) == kMark) text.remove_prefix(kMark.size());
  CsvReader reader(text, file);
  CsvTable table{file, {}, {}};
  while (!reader.ended()) {
    CsvRow row = reader.row();
    const bool blank = row.cells.size() == 1 && row.cells[0].empty();
    if (blank) continue;
    if (table.head.empty()) {
      table.head = row.cells;
      std::vector<std::string> names = row.cells;
      std::sort(names.begin(), names.end());
      const auto twice = std::adjacent_find(names.begin(), names.end());
      if (twice != names.end()) throw InputError({file, row.line, 1}, "found column \"" + *twice + "\" twice, wanted it once");
      continue;
    }
    if (row.cells.size() != table.head.size()) {
      throw InputError({file, row.line, 1}, fmt::format("found {} cells, wanted {} as in the head", row.cells.size(), table.head.size()));
    }
    table.rows.push_back(std::move(row));
  }
  if (table.head.empty()) throw InputError({file}, "found no line, wanted a CSV file with a head");
  return table;
}

}  // namespace stepsim
