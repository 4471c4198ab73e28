// Published cases of offload, exact: each row is simulated as a stack of equal layers (models/offload_graph.h), and everything that the row
// gives is compared.
#include <fmt/format.h>

#include <algorithm>

#include "models/offload_graph.h"
#include "sim/simulate.h"
#include "tools/published_format.h"
#include "tools/row_cells.h"

namespace stepsim {

namespace {

constexpr std::int64_t kMostLayers = 1'000'000;  // of a row

constexpr std::string_view kDescription[] = {"id",        "name",         "L",         "f",    "b",      "d2h", "h2d",
                                             "keep_last", "max_resident", "lookahead", "head", "engines"};
// The first one that a row gives stands for the row.
constexpr std::string_view kFigures[] = {"T_total", "T_forward_end", "peak_resident_sets", "peak_host_sets", "exposed"};

// None: the row has no such gate. Gates above all layers are all alike.
std::optional<std::int64_t> gate(const RowCells& row, std::string_view name) {
  return row.has(name) ? std::optional(row.whole(name, 0)) : std::nullopt;
}

// Reads everything that has a meaning, so that no mistake hides in a row that is skipped. "" if the row can be run.
std::string reason_to_skip(const CsvTable& table, const RowCells& row) {
  std::string reason;
  double longest = 0;
  const std::int64_t layers = row.whole("L", 1);
  for (const std::string_view name : {"f", "b", "d2h", "h2d", "head"}) {
    const std::optional<Duration> duration = row.duration(name);
    if (!duration) reason = no_duration(name);
    longest += static_cast<double>(duration.value_or(Duration{}).count()) * (name == "head" ? 1 : static_cast<double>(layers));
  }
  row.whole("keep_last", 0);
  gate(row, "max_resident");
  gate(row, "lookahead");
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
  return longest > kLongestRow ? "longer than the 106 days of simulated time" : "";
}

// Of a row that reason_to_skip() lets pass.
OffloadStack offload_stack(const RowCells& row) {
  return {.layers = row.whole("L", 1),
          .forward = *row.duration("f"),
          .backward = *row.duration("b"),
          .head = *row.duration("head"),
          .copy_out = *row.duration("d2h"),
          .copy_in = *row.duration("h2d"),
          .keep_last = row.whole("keep_last", 0),
          .max_resident = gate(row, "max_resident"),
          .lookahead = gate(row, "lookahead"),
          .engines = static_cast<std::int32_t>(row.whole("engines", 1))};
}

OffloadFigures simulated_figures(const OffloadStack& of) {
  const OffloadGraph made = offload_graph(of);
  return offload_figures(of, made,
                         simulate(made.graph, plain_machine(1), GivenCostModel(made.costs), {.device = LedgerRule::kDeviceOrder}));
}

double figure(const OffloadFigures& of, std::string_view name) {
  if (name == "T_total") return row_units(of.total);
  if (name == "T_forward_end") return row_units(of.forward_end);
  if (name == "exposed") return row_units(of.exposed);
  return static_cast<double>(name == "peak_host_sets" ? of.host_sets : of.resident_sets);
}

// `row.measured` is the first figure given. A row without figures is an InputError, unless it has none because its gate never opens.
Comparison compared(const RowCells& row, Comparison of) {
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
    const RowCells row(table, i);
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
