// Lines for people, at most 110 columns, longer ones wrapped between words under an indent; tables with aligned columns.
#pragma once

#include <string>
#include <vector>

namespace stepsim {

inline constexpr std::size_t kColumns = 110;

class TextLines {
 public:
  // "label  text"; continuation lines are indented by the label's width. A line that would need more than `most` lines is cut with "...".
  void add(const std::string& label, const std::string& text, std::size_t most = 3);
  const std::vector<std::string>& lines() const { return lines_; }
  std::string text() const;

 private:
  std::vector<std::string> lines_;
};

// Columns as wide as their widest cell, two blanks between; the first row is the head. Numbers (first character a digit or '-') to the
// right.
std::string table_text(const std::vector<std::vector<std::string>>& rows);

}  // namespace stepsim
