#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "schema/nearest_name.h"
#include "schema/read_message.h"
#include "sim/input_error.h"
#include "tools/commands.h"
#include "tools/error_statistics.h"
#include "tools/outputs.h"
#include "tools/progress_bar.h"
#include "tools/published_format.h"
#include "tools/text_lines.h"

namespace stepsim {

using Json = nlohmann::ordered_json;

struct ColumnGroup {
  std::string name;
  std::vector<Comparison> rows;
};

static std::vector<double> errors_of(const std::vector<Comparison>& rows) {
  std::vector<double> errors;
  for (const Comparison& row : rows) errors.push_back(row.error());
  return errors;
}

static std::size_t mismatches(const std::vector<Comparison>& rows) {
  return static_cast<std::size_t>(std::count_if(rows.begin(), rows.end(), [](const Comparison& row) { return !row.difference.empty(); }));
}

// In the order of the values; `value_of` each of the compared rows.
template <class Value>
static std::vector<ColumnGroup> grouped(const PublishedComparison& comparison, const Value& value_of) {
  std::map<std::string, ColumnGroup> by_value;
  for (std::size_t i = 0; i < comparison.rows.size(); ++i) by_value[value_of(i)].rows.push_back(comparison.rows[i]);
  std::vector<ColumnGroup> groups;
  for (auto& [name, group] : by_value) groups.push_back({name, std::move(group.rows)});
  return groups;
}

// By the value of a column or of a label; unasked, by each of the labels.
static std::vector<ColumnGroup> groups_by(const std::string& by, const CsvTable& table, const PublishedComparison& comparison) {
  std::vector<ColumnGroup> groups;
  for (const auto& [label, values] : comparison.labels) {
    if (!by.empty() && by != label) continue;
    for (ColumnGroup& group : grouped(comparison, [of = &values](std::size_t i) { return of->at(i); })) groups.push_back(std::move(group));
  }
  if (by.empty() || comparison.labels.count(by) > 0) return groups;
  const std::optional<std::size_t> index = table.column(by);
  if (!index) {
    std::vector<std::string> known = table.head;
    for (const auto& [label, values] : comparison.labels) known.push_back(label);
    throw InputError({"--by"}, fmt::format("found \"{}\", wanted one of {}{}", by, fmt::join(known, ", "), suggestion(by, known)));
  }
  return grouped(comparison, [&](std::size_t i) { return table.rows[comparison.rows[i].row].cells[*index]; });
}

// "0.05" or "5%" as 0.05.
static std::optional<double> parse_tolerance(const std::string& text) {
  if (text.empty()) return std::nullopt;
  const bool percent = text.back() == '%';
  const char* const end = text.data() + text.size() - (percent ? 1 : 0);
  double value = 0;
  const auto read = std::from_chars(text.data(), end, value);
  if (read.ec != std::errc() || read.ptr != end || !std::isfinite(value) || value < 0) {
    throw InputError({"--max-error"}, "found \"" + text + "\", wanted a fraction such as 0.05 or a percentage such as 5%");
  }
  return percent ? value / 100 : value;
}

static Json summary_json(const std::vector<Comparison>& rows) {
  const std::optional<ErrorStatistics> statistics = error_statistics(errors_of(rows));
  const std::optional<BandStatistics> bands = band_statistics(rows);
  const auto number = [&](double ErrorStatistics::*member) { return statistics ? Json(*statistics.*member) : Json(nullptr); };
  return {{"median_abs_error", number(&ErrorStatistics::median)},
          {"mean_abs_error", number(&ErrorStatistics::mean)},
          {"p90_abs_error", number(&ErrorStatistics::p90)},
          {"max_abs_error", number(&ErrorStatistics::max)},
          {"bias", number(&ErrorStatistics::bias)},
          {"band_coverage", bands ? Json(bands->inside) : Json(nullptr)},
          {"band_median_width", bands ? Json(bands->half_width) : Json(nullptr)}};
}

static std::size_t skipped_rows(const PublishedComparison& comparison) {
  std::size_t count = 0;
  for (const auto& [reason, rows] : comparison.skipped) count += rows;
  return count;
}

static Json detail_json(const std::vector<Comparison>& rows, bool exact) {
  Json detail = Json::array();
  for (const Comparison& row : rows) {
    detail.push_back({{"id", row.id},
                      {"measured", row.measured},
                      {"simulated", row.simulated},
                      {"error", row.error()},
                      {"lower", row.banded() ? Json(*row.lower) : Json(nullptr)},
                      {"upper", row.banded() ? Json(*row.upper) : Json(nullptr)}});
    if (exact) detail.back()["difference"] = row.difference.empty() ? Json(nullptr) : Json(row.difference);
    if (!row.guesses.empty()) detail.back()["guesses"] = row.guesses;
  }
  return detail;
}

static std::string validation_json(const std::string& format, const PublishedComparison& comparison,
                                   const std::vector<ColumnGroup>& groups) {
  Json json;
  json["format"] = format;
  json["rows"] = comparison.rows.size();
  json["filtered"] = comparison.filtered;
  json["skipped"] = skipped_rows(comparison);
  json["skipped_reasons"] = comparison.skipped;
  if (comparison.exact) json["mismatches"] = mismatches(comparison.rows);
  json["summary"] = summary_json(comparison.rows);
  json["groups"] = Json::array();
  for (const ColumnGroup& group : groups) {
    Json row{{"name", group.name}, {"rows", group.rows.size()}};
    if (comparison.exact) row["mismatches"] = mismatches(group.rows);
    row.update(summary_json(group.rows));
    json["groups"].push_back(std::move(row));
  }
  json["detail"] = detail_json(comparison.rows, comparison.exact);
  json["other"] = Json::object();
  for (const auto& [name, rows] : comparison.other) {
    json["other"][name] = {{"summary", summary_json(rows)}, {"detail", detail_json(rows, false)}};
  }
  json["notes"] = comparison.notes;
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

static std::string percent(double value) { return fmt::format("{:.1f} %", 100 * value); }

static std::vector<std::string> statistics_row(const std::string& name, const std::vector<Comparison>& rows, bool banded) {
  const std::optional<ErrorStatistics> statistics = error_statistics(errors_of(rows));
  std::vector<std::string> cells = {name, std::to_string(rows.size())};
  if (statistics) {
    for (const double value : {statistics->median, statistics->mean, statistics->p90, statistics->max, statistics->bias}) {
      cells.push_back(percent(value));
    }
  }
  cells.resize(7);
  if (!banded) return cells;
  const std::optional<BandStatistics> bands = band_statistics(rows);
  cells.push_back(bands ? percent(bands->inside) : "");
  cells.push_back(bands ? percent(bands->half_width) : "");
  return cells;
}

static std::string statistics_text(const PublishedComparison& comparison, const std::vector<ColumnGroup>& groups) {
  const bool banded = band_statistics(comparison.rows).has_value();
  std::vector<std::vector<std::string>> table = {{"error", "rows", "median", "mean", "p90", "max", "bias"}};
  if (banded) table.front().insert(table.front().end(), {"in band", "half-width"});
  table.push_back(statistics_row("all", comparison.rows, banded));
  for (const ColumnGroup& group : groups) table.push_back(statistics_row(group.name, group.rows, banded));
  for (const auto& [name, rows] : comparison.other) table.push_back(statistics_row(name, rows, banded));
  return table_text(table);
}

// Each guess once, with the rows that rest on it.
static std::string guesses_text(const std::vector<Comparison>& rows) {
  std::map<std::string, std::vector<std::string>> ids_of_guess;
  for (const Comparison& row : rows) {
    for (const std::string& guess : row.guesses) ids_of_guess[guess].push_back(row.id);
  }
  std::string text;
  for (const auto& [guess, ids] : ids_of_guess) text += fmt::format("  guessed: {} ({})\n", guess, fmt::join(ids, " "));
  return text;
}

static std::string rows_text(const std::vector<Comparison>& comparisons) {
  const bool banded = band_statistics(comparisons).has_value();
  std::vector<std::vector<std::string>> rows = {{"id", "measured", "simulated", "error"}};
  if (banded) rows.front().insert(rows.front().end(), {"lower", "upper"});
  for (const Comparison& row : comparisons) {
    rows.push_back({row.id, fmt::format("{:.6g}", row.measured), fmt::format("{:.6g}", row.simulated), percent(row.error())});
    if (!banded) continue;
    rows.back().push_back(row.lower ? fmt::format("{:.6g}", *row.lower) : "");
    rows.back().push_back(row.upper ? fmt::format("{:.6g}", *row.upper) : "");
  }
  return table_text(rows) + guesses_text(comparisons);
}

// Of an exact format: the rows that differ, or all of them; errors of rows that agree say nothing.
static std::string exact_text(const ValidateArguments& arguments, const PublishedComparison& comparison,
                              const std::vector<ColumnGroup>& groups) {
  std::string text = fmt::format("  mismatches: {} of {} rows\n", mismatches(comparison.rows), comparison.rows.size());
  for (const ColumnGroup& group : groups) {
    text += fmt::format("  {}: {} of {} rows\n", group.name, mismatches(group.rows), group.rows.size());
  }
  std::vector<std::vector<std::string>> rows = {{"id", "measured", "simulated", "difference"}};
  for (const Comparison& row : comparison.rows) {
    if (!arguments.rows && row.difference.empty()) continue;
    rows.push_back({row.id, fmt::format("{}", row.measured), fmt::format("{}", row.simulated), row.difference});
  }
  return rows.size() == 1 ? text : text + table_text(rows);
}

static std::string validation_text(const ValidateArguments& arguments, const std::string& format, const PublishedComparison& comparison,
                                   const std::vector<ColumnGroup>& groups) {
  std::string text = fmt::format("{}: format {}, {} rows of {} compared, {} filtered, {} skipped\n", arguments.file, format,
                                 comparison.rows.size(), comparison.quantity, comparison.filtered, skipped_rows(comparison));
  for (const auto& [reason, rows] : comparison.skipped) text += fmt::format("  skipped {}: {}\n", rows, reason);
  if (comparison.exact) return text + exact_text(arguments, comparison, groups);
  text += statistics_text(comparison, groups);
  for (const std::string& note : comparison.notes) text += "  " + note + "\n";
  return arguments.rows ? text + rows_text(comparison.rows) : text;
}

// In exact formats any mismatch is beyond any tolerance.
static int exit_code(const PublishedComparison& comparison, std::optional<double> tolerance) {
  if (!tolerance) return kExitDone;
  const double median = error_statistics(errors_of(comparison.rows))->median;
  const bool differs = comparison.exact && mismatches(comparison.rows) > 0;
  if (!differs && median <= *tolerance) return kExitDone;
  const std::string problem = comparison.exact
                                  ? fmt::format("{} of {} rows differ, none allowed", mismatches(comparison.rows), comparison.rows.size())
                                  : fmt::format("median error {}, at most {} allowed", percent(median), percent(*tolerance));
  std::fputs(("--max-error: " + problem + "\n").c_str(), stderr);
  return kExitBeyondTolerance;
}

int validate_command(const ValidateArguments& arguments) {
  if (!arguments.backend.empty()) return backend_command(arguments);
  if (!arguments.trace.empty()) throw InputError({"--trace"}, "found one without --backend, wanted both");
  if (!arguments.kernels.empty()) throw InputError({"--kernels"}, "found a file without --backend, wanted both");
  if (!arguments.plans.empty()) throw InputError({"--plans"}, "found a folder without --backend cuda, wanted both");
  if (arguments.file.empty()) throw InputError({"--published"}, "found none, wanted a CSV file or a JSON list of rows");
  const std::optional<double> tolerance = parse_tolerance(arguments.max_error);
  const CsvTable table = parse_published(read_text_file(arguments.file, kLargestTable), arguments.file);
  const std::string format = arguments.format == "auto" ? detected_format(table) : arguments.format;
  if (!arguments.evidence.empty()) check_evidence(format);
  PublishedComparison comparison;
  std::vector<ColumnGroup> groups;
  const std::vector<Output> outputs = {
      {"--json", arguments.json, [&](const TextSink& sink) { sink(validation_json(format, comparison, groups)); }},
      {"--evidence", arguments.evidence, [&](const TextSink& sink) { sink(measured_rows_text(comparison.evidence)); }}};
  check_outputs(outputs, {arguments.file});
  ProgressBar bar;
  const auto show = [&](std::size_t done, std::size_t all) {
    bar.show(static_cast<double>(done) / static_cast<double>(std::max<std::size_t>(all, 1)), fmt::format("{} of {} steps", done, all));
  };
  comparison = compare_published(format, table, {.quality = arguments.quality, .progress = show});
  groups = groups_by(arguments.by, table, comparison);
  if (tolerance && comparison.rows.empty()) throw InputError({"--max-error"}, "found no row that could be compared, wanted at least one");
  write_outputs(outputs, validation_text(arguments, format, comparison, groups));
  return exit_code(comparison, tolerance);
}

}  // namespace stepsim
