#include "tools/row_cells.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "sim/input_error.h"

namespace stepsim {

namespace {

constexpr std::int64_t kUnit = 1'000'000'000;  // picoseconds: 1 unit of time is 1 ms
constexpr double kExact = 9007199254740992;    // 2^53: integers up to here are doubles

std::optional<double> parsed_number(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool read = error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
  return read ? std::optional(value) : std::nullopt;
}

}  // namespace

std::string_view RowCells::text(std::string_view name) const {
  const std::optional<std::size_t> column = column_of(name);
  return column ? std::string_view(row_.cells[*column]) : std::string_view();
}

CellForm RowCells::form(std::string_view name) const {
  const std::optional<std::size_t> column = column_of(name);
  return column ? row_.origins[*column].form : CellForm::kAbsent;
}

bool RowCells::is_note(std::string_view name) const {
  return form(name) == CellForm::kText || (form(name) == CellForm::kAny && !is_list(name) && !parsed_number(text(name)));
}

CsvTable RowCells::alone() const { return {.file = table_.file, .head = table_.head, .rows = {row_}, .numbered = table_.numbered}; }

void RowCells::refuse(std::string_view name, std::string_view wanted) const {
  const std::optional<std::size_t> column = column_of(name);
  const CellOrigin place = column ? row_.origins[*column] : CellOrigin{row_.line, row_.column};
  const std::string_view all = text(name);
  const std::string cell = fmt::format("{}{}", all.substr(0, kShownOfCell), all.size() > kShownOfCell ? "..." : "");
  const std::string found = !has(name)                      ? fmt::format("no {}", name)
                            : form(name) == CellForm::kText ? fmt::format("{} \"{}\" as a text", name, cell)
                                                            : fmt::format("{} {}", name, cell);
  throw InputError({table_.file, place.line, place.column}, fmt::format("found {}, wanted {}", found, wanted));
}

double RowCells::number(std::string_view name, std::string_view wanted) const {
  const std::optional<double> value = form(name) == CellForm::kText ? std::nullopt : parsed_number(text(name));
  if (!value) refuse(name, wanted);
  return *value;
}

std::int64_t RowCells::whole(std::string_view name, std::int64_t least, std::optional<std::int64_t> most) const {
  const std::string wanted =
      most ? fmt::format("a whole number from {} to {}", least, *most) : fmt::format("a whole number from {}", least);
  const double value = number(name, wanted);
  if (value != std::floor(value) || value < static_cast<double>(least)) refuse(name, wanted);
  const std::int64_t read = value >= kExact ? kAnyWholeNumber : static_cast<std::int64_t>(value);
  if (most && read > *most) refuse(name, wanted);
  return read;
}

std::optional<Duration> RowCells::duration(std::string_view name) const {
  const double value = number(name);
  if (value < 0) refuse(name, "a duration of 0 or more");
  const auto unit = static_cast<double>(kUnit);
  if (value > kLongestRow / unit) return std::nullopt;
  if (value == std::floor(value)) return Duration(static_cast<std::int64_t>(value) * kUnit);
  const double picoseconds = std::round(value * unit);
  const bool exact = picoseconds <= kExact && picoseconds / unit == value;  // as near as a double comes
  return exact ? std::optional(Duration(static_cast<std::int64_t>(picoseconds))) : std::nullopt;
}

std::vector<double> RowCells::numbers(std::string_view name) const {
  const char* const wanted = "a list of numbers such as [2,1]";
  std::string_view rest = text(name);
  if (!is_list(name) || rest.back() != ']') refuse(name, wanted);
  rest = rest.substr(1, rest.size() - 2);
  std::vector<double> values;
  for (bool more = !rest.empty(); more;) {
    const std::size_t comma = rest.find(',');
    const std::optional<double> value = parsed_number(rest.substr(0, comma));
    if (!value) refuse(name, wanted);
    values.push_back(*value);
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);
  }
  return values;
}

bool RowCells::flag(std::string_view name, bool otherwise) const {
  if (!has(name)) return otherwise;
  const bool known = text(name) == "true" || text(name) == "false";
  if (!known || form(name) == CellForm::kText) refuse(name, "true or false");
  return text(name) == "true";
}

std::string no_duration(std::string_view name) {
  return fmt::format("{} is above {} or no whole number of picoseconds, where 1 is 1 ms", name, kLongestRow / static_cast<double>(kUnit));
}

double row_units(Duration time) {
  const std::int64_t count = time.count();
  return count % kUnit == 0 ? static_cast<double>(count / kUnit) : static_cast<double>(count) / static_cast<double>(kUnit);
}

}  // namespace stepsim
