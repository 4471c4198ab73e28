// Published cases of offload, exact: each row is simulated as a stack of equal layers (models/offload_graph.h), and everything that the row
// gives is compared.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "models/offload_graph.h"
#include "sim/input_error.h"
#include "sim/simulate.h"
#include "tools/published_format.h"

namespace stepsim {

namespace {

constexpr std::int64_t kUnit = 1'000'000'000;    // picoseconds: 1 unit of time is 1 ms
constexpr double kExact = 9007199254740992;      // 2^53: integers up to here are doubles
constexpr double kLongest = 9e18;                // picoseconds of a row, below 2^63
constexpr std::int64_t kMostLayers = 1'000'000;  // of a row
constexpr std::int64_t kAnyNumber = 1LL << 53;   // gates above all layers are all alike

constexpr std::string_view kDescription[] = {"id",        "name",         "L",         "f",    "b",      "d2h", "h2d",
                                             "keep_last", "max_resident", "lookahead", "head", "engines"};
// The first one that a row gives stands for the row.
constexpr std::string_view kFigures[] = {"T_total", "T_forward_end", "peak_resident_sets", "peak_host_sets", "exposed"};

template <class List>
bool among(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

std::optional<double> parsed_number(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool read = error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
  return read ? std::optional(value) : std::nullopt;
}

// One row. Whatever a cell is not read as is an InputError with its place.
class OffloadRow {
 public:
  OffloadRow(const CsvTable& table, std::size_t row) : table_(table), row_(table.rows[row]) {}
  // An empty text of a JSON row is there, and wrong; an empty cell of a CSV file is not, nor is null.
  bool has(std::string_view name) const { return !text(name).empty() || form(name) == CellForm::kText; }
  // A text says nothing about what is run.
  bool is_note(std::string_view name) const {
    return form(name) == CellForm::kText || (form(name) == CellForm::kAny && !parsed_number(text(name)));
  }
  double number(std::string_view name, std::string_view wanted = "a number") const;
  std::int64_t whole(std::string_view name, std::int64_t least) const;  // at most kAnyNumber
  std::optional<std::int64_t> gate(std::string_view name) const { return has(name) ? std::optional(whole(name, 0)) : std::nullopt; }
  std::optional<Duration> duration(std::string_view name) const;  // none: no whole number of picoseconds, or above what a row may last
  [[noreturn]] void refuse(std::string_view name, std::string_view wanted) const;

 private:
  std::string_view text(std::string_view name) const {
    const std::optional<std::size_t> column = table_.column(name);
    return column ? std::string_view(row_.cells[*column]) : std::string_view();
  }
  CellForm form(std::string_view name) const {
    const std::optional<std::size_t> column = table_.column(name);
    return column ? row_.origins[*column].form : CellForm::kAbsent;
  }
  const CsvTable& table_;
  const CsvRow& row_;
};

void OffloadRow::refuse(std::string_view name, std::string_view wanted) const {
  const std::optional<std::size_t> column = table_.column(name);
  const CellOrigin place = column ? row_.origins[*column] : CellOrigin{row_.line, 1};
  constexpr std::size_t kShown = 80;
  const std::string cell = fmt::format("{}{}", text(name).substr(0, kShown), text(name).size() > kShown ? "..." : "");
  const std::string found = !has(name)                      ? fmt::format("no {}", name)
                            : form(name) == CellForm::kText ? fmt::format("{} \"{}\" as a text", name, cell)
                                                            : fmt::format("{} {}", name, cell);
  throw InputError({table_.file, place.line, place.column}, fmt::format("found {}, wanted {}", found, wanted));
}

double OffloadRow::number(std::string_view name, std::string_view wanted) const {
  const std::optional<double> value = form(name) == CellForm::kText ? std::nullopt : parsed_number(text(name));
  if (!value) refuse(name, wanted);
  return *value;
}

std::int64_t OffloadRow::whole(std::string_view name, std::int64_t least) const {
  const std::string wanted = fmt::format("a whole number from {}", least);
  const double value = number(name, wanted);
  if (value != std::floor(value) || value < static_cast<double>(least)) refuse(name, wanted);
  return value >= kExact ? kAnyNumber : static_cast<std::int64_t>(value);
}

std::optional<Duration> OffloadRow::duration(std::string_view name) const {
  const double value = number(name, "a duration of 0 or more");
  if (value < 0) refuse(name, "a duration of 0 or more");
  const auto unit = static_cast<double>(kUnit);
  if (value > kLongest / unit) return std::nullopt;
  if (value == std::floor(value)) return Duration(static_cast<std::int64_t>(value) * kUnit);
  const double picoseconds = std::round(value * unit);
  const bool exact = picoseconds <= kExact && picoseconds / unit == value;  // as near as a double comes
  return exact ? std::optional(Duration(static_cast<std::int64_t>(picoseconds))) : std::nullopt;
}

// Reads everything that has a meaning, so that no mistake hides in a row that is skipped. "" if the row can be run.
std::string reason_to_skip(const CsvTable& table, const OffloadRow& row) {
  std::string reason;
  double longest = 0;
  const std::int64_t layers = row.whole("L", 1);
  for (const std::string_view name : {"f", "b", "d2h", "h2d", "head"}) {
    const std::optional<Duration> duration = row.duration(name);
    if (!duration) reason = fmt::format("{} is above {} or no whole number of picoseconds, where 1 is 1 ms", name, kLongest / kUnit);
    longest += static_cast<double>(duration.value_or(Duration{}).count()) * (name == "head" ? 1 : static_cast<double>(layers));
  }
  row.whole("keep_last", 0);
  row.gate("max_resident");
  row.gate("lookahead");
  if (row.whole("engines", 1) > 2) row.refuse("engines", "1 or 2");
  for (const std::string_view name : kFigures) {
    if (row.has(name)) row.number(name);
  }
  for (const std::string& column : table.head) {
    const bool known = among(kDescription, column) || among(kFigures, column);
    if (!known && row.has(column) && !row.is_note(column)) return fmt::format("offload with column {} is not built yet", column);
  }
  if (!reason.empty()) return reason;
  if (layers > kMostLayers) return fmt::format("more than {} layers", kMostLayers);
  return longest > kLongest ? "longer than the 106 days of simulated time" : "";
}

// Of a row that reason_to_skip() lets pass.
OffloadStack offload_stack(const OffloadRow& row) {
  return {.layers = row.whole("L", 1),
          .forward = *row.duration("f"),
          .backward = *row.duration("b"),
          .head = *row.duration("head"),
          .copy_out = *row.duration("d2h"),
          .copy_in = *row.duration("h2d"),
          .keep_last = row.whole("keep_last", 0),
          .max_resident = row.gate("max_resident"),
          .lookahead = row.gate("lookahead"),
          .engines = static_cast<std::int32_t>(row.whole("engines", 1))};
}

OffloadFigures simulated_figures(const OffloadStack& of) {
  const OffloadGraph made = offload_graph(of);
  return offload_figures(of, made,
                         simulate(made.graph, plain_machine(1), GivenCostModel(made.costs), {.device = LedgerRule::kDeviceOrder}));
}

// In the row's unit; whole units at any size, fractions of them to the nearest double.
double units(Duration time) {
  const std::int64_t count = time.count();
  return count % kUnit == 0 ? static_cast<double>(count / kUnit) : static_cast<double>(count) / static_cast<double>(kUnit);
}

double figure(const OffloadFigures& of, std::string_view name) {
  if (name == "T_total") return units(of.total);
  if (name == "T_forward_end") return units(of.forward_end);
  if (name == "exposed") return units(of.exposed);
  return static_cast<double>(name == "peak_host_sets" ? of.host_sets : of.resident_sets);
}

// `row.measured` is the first figure given. A row without figures is an InputError, unless it has none because its gate never opens.
Comparison compared(const OffloadRow& row, Comparison of) {
  const OffloadStack stack = offload_stack(row);
  const auto given = std::find_if(std::begin(kFigures), std::end(kFigures), [&](std::string_view name) { return row.has(name); });
  if (given != std::end(kFigures)) of.measured = row.number(*given);
  if (const std::optional<OffloadFinding> finding = offload_finding(stack)) {
    if (given != std::end(kFigures)) of.difference = fmt::format("{} found none, wanted {}: {}", *given, of.measured, finding->sentence);
    return of;
  }
  if (given == std::end(kFigures)) row.refuse(kFigures[0], fmt::format("one of {}", fmt::join(kFigures, ", ")));
  const OffloadFigures figures = simulated_figures(stack);
  of.simulated = figure(figures, *given);
  std::vector<std::string> differences;
  for (const std::string_view name : kFigures) {
    if (!row.has(name)) continue;
    const double found = figure(figures, name), wanted = row.number(name);
    if (found != wanted) differences.push_back(fmt::format("{} found {}, wanted {}", name, found, wanted));
  }
  of.difference = fmt::format("{}", fmt::join(differences, "; "));
  return of;
}

}  // namespace

PublishedComparison compare_offload(const CsvTable& table) {
  PublishedComparison comparison;
  comparison.quantity = "step time, sets at one time and exposed copies";
  comparison.exact = true;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const OffloadRow row(table, i);
    const std::string reason = reason_to_skip(table, row);
    if (reason.empty()) {
      comparison.rows.push_back(compared(row, {.id = table.row_id(i), .row = i}));
    } else {
      ++comparison.skipped[reason];
    }
  }
  return comparison;
}

}  // namespace stepsim
