#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/check.h"
#include "tools/comparison.h"
#include "tools/report_json.h"
#include "tools/text_lines.h"

namespace stepsim {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostExplained = 5;        // of the text
constexpr std::size_t kMostExplainedJson = 100;  // differences beyond are of microseconds

struct ShownUnit {
  double per_unit = 1;
  const char* name = "";
};

ShownUnit shown(FigureUnit unit) {
  switch (unit) {
    case FigureUnit::kTime:
      return {1e3, "ms"};
    case FigureUnit::kBytes:
      return {1.0 / (1 << 30), "GiB"};
    case FigureUnit::kFraction:
      return {100, "%"};
    case FigureUnit::kPerSecond:
      return {1, "1/s"};
  }
  return {};
}

std::string number(const ComparedFigure& figure) {
  return figure.value ? fmt::format("{:.2f}", *figure.value * shown(figure.unit).per_unit) : "none";
}

// "+12.00 (+3.4 %)": of fractions the difference in points alone.
std::string difference_text(const ComparedFigure& base, const ComparedFigure& other) {
  if (!base.value || !other.value) return "";
  const double difference = *other.value - *base.value;
  if (difference == 0) return "0";
  std::string text = fmt::format("{:+.2f}", difference * shown(base.unit).per_unit);
  if (base.unit != FigureUnit::kFraction && *base.value > 0) text += fmt::format(" ({:+.1f} %)", 100 * difference / *base.value);
  return text;
}

std::string fit_text(const ComparedStep& step) {
  const auto gib = [](Bytes bytes) { return static_cast<double>(bytes.value) / (1 << 30); };
  if (step.short_by.value > 0) return fmt::format("does not fit: {:.2f} GiB short", gib(step.short_by));
  if (step.host_short_by.value > 0) return fmt::format("does not fit: {:.2f} GiB of host memory short", gib(step.host_short_by));
  return step.fits ? "fits" : "does not fit";
}

// Rows of times that no step has are left out.
bool is_shown(const std::vector<ComparedStep>& steps, std::size_t figure) {
  if (steps.front().figures[figure].unit == FigureUnit::kPerSecond) return true;
  return std::any_of(steps.begin(), steps.end(), [&](const ComparedStep& step) { return step.figures[figure].value.value_or(1) != 0; });
}

std::string figures_text(const std::vector<ComparedStep>& steps) {
  std::vector<std::vector<std::string>> table(1);
  table[0].push_back("");
  for (std::size_t i = 0; i < steps.size(); ++i) table[0].push_back(std::to_string(i + 1));
  for (std::size_t i = 1; i < steps.size(); ++i) table[0].push_back(fmt::format("from 1 to {}", i + 1));
  for (std::size_t figure = 0; figure < steps.front().figures.size(); ++figure) {
    if (!is_shown(steps, figure)) continue;
    const ComparedFigure& base = steps.front().figures[figure];
    const std::string unit = base.unit == FigureUnit::kPerSecond ? "" : std::string(" ") + shown(base.unit).name;
    std::vector<std::string> row = {base.name + unit};
    for (const ComparedStep& step : steps) row.push_back(number(step.figures[figure]));
    for (std::size_t i = 1; i < steps.size(); ++i) row.push_back(difference_text(base, steps[i].figures[figure]));
    table.push_back(std::move(row));
  }
  return table_text(table);
}

std::string changed_text(const std::vector<ComparedStep>& steps) {
  std::vector<std::vector<std::string>> table(1);
  table[0].push_back("value");
  for (std::size_t i = 0; i < steps.size(); ++i) table[0].push_back(std::to_string(i + 1));
  for (const ChangedValue& value : changed_values(steps)) {
    table.push_back({value.path});
    for (const std::string& each : value.values) table.back().push_back(each.empty() ? "-" : each);
  }
  return table.size() == 1 ? "the jobs have the same values\n" : table_text(table);
}

std::string explained_text(const ComparedStep& base, const ComparedStep& other, std::size_t number) {
  std::vector<OpDifference> differences = op_differences(base, other);
  Duration all{};
  for (const OpDifference& each : differences) all += each.difference();
  std::string text = memory_difference_text(base.peak, other.peak, number);
  if (!text.empty()) text += "\n";
  if (const std::optional<DifferenceBand> band = step_difference(base, other)) text += difference_band_text(*band, number) + "\n";
  text += fmt::format("from 1 to {}: {:+.2f} ms, of which\n", number, seconds(all) * 1e3);
  if (differences.empty()) return text + "nothing takes another time\n";
  std::vector<std::vector<std::string>> table = {{"what", "1 ms", fmt::format("{} ms", number), "difference"}};
  const std::size_t listed = std::min(differences.size(), kMostExplained);
  Duration rest = all;
  for (std::size_t i = 0; i < listed; ++i) {
    const OpDifference& each = differences[i];
    rest -= each.difference();
    table.push_back({each.name, fmt::format("{:.2f}", seconds(each.base) * 1e3), fmt::format("{:.2f}", seconds(each.other) * 1e3),
                     fmt::format("{:+.2f}", seconds(each.difference()) * 1e3)});
  }
  if (listed < differences.size()) {
    table.push_back({fmt::format("{} others", differences.size() - listed), "", "", fmt::format("{:+.2f}", seconds(rest) * 1e3)});
  }
  return text + table_text(table);
}

// Of the first step's time.
Json difference_band_json(const DifferenceBand& band) {
  Json json{{"lower", band.lower()}, {"upper", band.upper()}, {"cancels", band.shared}, {"sources", Json::array()}};
  for (const BandSource& source : band.sources) {
    json["sources"].push_back({{"name", source.name}, {"lower", source.range.lower}, {"upper", source.range.upper}});
  }
  return json;
}

Json difference_json(const ComparedStep& base, const ComparedStep& other) {
  Json json = Json::object();
  for (std::size_t i = 0; i < base.figures.size(); ++i) {
    const std::optional<double>&a = base.figures[i].value, &b = other.figures[i].value;
    if (!a || !b) {
      json[base.figures[i].key] = nullptr;
      continue;
    }
    json[base.figures[i].key] = {{"absolute", *b - *a}, {"relative", *a == 0 ? Json(nullptr) : Json(*b / *a - 1)}};
  }
  const std::optional<DifferenceBand> band = step_difference(base, other);
  json["difference"] = band ? Json(band->difference) : Json(nullptr);
  json["difference_band"] = band ? difference_band_json(*band) : Json(nullptr);
  json["sign_certain"] = band ? Json(band->sign_certain()) : Json(nullptr);
  json["ops"] = Json::array();
  const std::vector<OpDifference> ops = op_differences(base, other);
  const auto exact_seconds = [](Duration time) { return static_cast<double>(time.count()) / 1e12; };
  for (std::size_t i = 0; i < std::min(ops.size(), kMostExplainedJson); ++i) {
    json["ops"].push_back({{"name", ops[i].name},
                           {"base_s", exact_seconds(ops[i].base)},
                           {"other_s", exact_seconds(ops[i].other)},
                           {"difference_s", exact_seconds(ops[i].difference())}});
  }
  return json;
}

}  // namespace

std::string difference_band_text(const DifferenceBand& band, std::size_t number) {
  if (band.difference == 0 && band.range.lower == 0 && band.range.upper == 0) return fmt::format("{} is as fast as 1", number);
  const auto percent = [](double fraction) { return fmt::format("{:+.1f}", 100 * fraction); };
  const char* const sign = band.sign_certain() ? "sign certain" : "sign not certain";
  return fmt::format("{} is {} % [{}, {}], {}; {}", number, percent(band.difference), percent(band.lower()), percent(band.upper()), sign,
                     band.shared.empty() ? "no errors cancel" : "errors of " + band.shared + " cancel");
}

std::string comparison_text(const std::vector<ComparedStep>& steps) {
  STEPSIM_CHECK(steps.size() >= 2);
  std::string text;
  for (std::size_t i = 0; i < steps.size(); ++i)
    text += fmt::format("{}: {} ({}): {}\n", i + 1, steps[i].label, steps[i].job, fit_text(steps[i]));
  text.append("\n").append(changed_text(steps)).append("\n").append(figures_text(steps));
  for (std::size_t i = 1; i < steps.size(); ++i) text.append("\n").append(explained_text(steps.front(), steps[i], i + 1));
  return text;
}

std::string comparison_json(const std::vector<ComparedStep>& steps) {
  STEPSIM_CHECK(steps.size() >= 2);
  Json json{{"schema_version", kSchemaVersion}, {"version", STEPSIM_VERSION}};
  json["jobs"] = Json::array();
  for (const ComparedStep& step : steps) {
    Json row{{"label", step.label}, {"job", step.job}};
    for (const ComparedFigure& figure : step.figures) row[figure.key] = figure.value ? Json(*figure.value) : Json(nullptr);
    row["fits"] = step.fits;
    row["short_by_bytes"] = step.short_by.value;
    row["host_short_by_bytes"] = step.host_short_by.value;
    json["jobs"].push_back(std::move(row));
  }
  json["changed"] = Json::array();
  for (const ChangedValue& value : changed_values(steps)) json["changed"].push_back({{"path", value.path}, {"values", value.values}});
  json["differences"] = Json::array();
  for (std::size_t i = 1; i < steps.size(); ++i) {
    json["differences"].push_back(difference_json(steps.front(), steps[i]));
    json["differences"].back()["memory"] = memory_difference_text(steps.front().peak, steps[i].peak, i + 1);
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace stepsim
