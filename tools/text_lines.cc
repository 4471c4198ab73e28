#include "tools/text_lines.h"

#include <algorithm>
#include <string_view>

namespace stepsim {

// The longest prefix of the text that fits, up to a blank; whole words that are longer stay whole.
static std::size_t fitting(const std::string& text, std::size_t width) {
  if (text.size() <= width) return text.size();
  std::size_t blank = text.rfind(' ', width);
  if (blank == std::string::npos || blank == 0) blank = text.find(' ', width);
  return std::min(blank, text.size());
}

void TextLines::add(const std::string& label, const std::string& text, std::size_t most) {
  const std::size_t width = kColumns - label.size();
  std::string rest = text, start = label;
  for (std::size_t line = 1; !rest.empty() || line == 1; ++line) {
    std::size_t end = fitting(rest, width);
    if (line == most && end < rest.size()) {
      end = fitting(rest, width - 4);
      lines_.push_back(start + rest.substr(0, end) + " ...");
      return;
    }
    lines_.push_back(start + rest.substr(0, end));
    const std::size_t next = rest.find_first_not_of(' ', end);
    rest = next == std::string::npos ? "" : rest.substr(next);
    start = std::string(label.size(), ' ');
  }
}

std::string TextLines::text() const {
  std::string text;
  for (const std::string& line : lines_) text += line + "\n";
  return text;
}

// A column is one of numbers if every cell below the head begins like one or is empty.
static std::vector<bool> number_columns(const std::vector<std::vector<std::string>>& rows, std::size_t columns) {
  constexpr std::string_view kDigits = "0123456789";
  std::vector<bool> numbers(columns, rows.size() > 1);
  for (std::size_t row = 1; row < rows.size(); ++row) {
    for (std::size_t i = 0; i < rows[row].size(); ++i) {
      const std::string& cell = rows[row][i];
      const std::size_t first = cell.size() > 1 && cell[0] == '-' ? 1 : 0;
      if (!cell.empty() && kDigits.find(cell[first]) == std::string_view::npos) numbers[i] = false;
    }
  }
  return numbers;
}

std::string table_text(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  const std::vector<bool> numbers = number_columns(rows, widths.size());
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(widths[i] - row[i].size(), ' ');
      line += (i == 0 ? "" : "  ") + (numbers[i] ? blanks + row[i] : row[i] + blanks);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace stepsim
