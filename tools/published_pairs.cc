// published/pairs.csv: steps that differ in what is kept, run again or offloaded, both rows of results.csv beside the file.
#include <fmt/format.h>

#include <cmath>

#include "schema/read_message.h"
#include "sim/input_error.h"
#include "tools/published_results.h"
#include "tools/published_step_rows.h"
#include "tools/text_lines.h"

namespace stepsim {

namespace {

constexpr double kSameTime = 0.01;  // changes below it have no sign: runs repeat to 0.3 to 1 % (accuracy.md B.4, noise floor)
constexpr double kNear = 0.05;      // issue 7: a ratio is right within 5 points

struct Pair {
  std::size_t row = 0;  // of the table of pairs
  std::string base, variant;
};

// Each row of results.csv that a pair names, as a published step or with the reason why it is none.
struct NamedSteps {
  std::map<std::string, SimulatedStep> simulated{};
  std::map<std::string, PublishedStep> steps{};
  std::map<std::string, UntranslatedRow> skipped{};

  bool knows(const std::string& id) const { return steps.count(id) > 0; }
};

NamedSteps named_steps(const CsvTable& results, const std::vector<Pair>& pairs, const PublishedOptions& options) {
  NamedSteps named;
  std::map<std::string, std::size_t> row_of_id;
  for (std::size_t row = 0; row < results.rows.size(); ++row) row_of_id.emplace(results.row_id(row), row);
  std::vector<PublishedStep> steps;
  const auto add = [&](const std::string& id) {
    if (named.knows(id) || named.skipped.count(id) > 0) return;
    const auto row = row_of_id.find(id);
    try {
      if (row == row_of_id.end()) throw UntranslatedRow{"results.csv has no such row"};
      PublishedStep step = results_step(RowCells(results, row->second));
      step.id = id;
      steps.push_back(step);
      named.steps.emplace(id, std::move(step));
    } catch (const UntranslatedRow& untranslated) {
      named.skipped.emplace(id, untranslated);
    }
  };
  for (const Pair& pair : pairs) {
    add(pair.base);
    add(pair.variant);
  }
  const std::vector<SimulatedStep> simulated = simulate_published(steps, options.progress);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (!simulated[i].refused.empty()) {
      named.skipped.emplace(steps[i].id, UntranslatedRow{"a job that is refused: " + simulated[i].refused, false});
      named.steps.erase(steps[i].id);
    } else {
      named.simulated.emplace(steps[i].id, simulated[i]);
    }
  }
  return named;
}

bool same_sign(double measured, double simulated) {
  const bool both_same = std::abs(measured - 1) < kSameTime && std::abs(simulated - 1) < kSameTime;
  return both_same || (measured > 1) == (simulated > 1);
}

void add_ratio(PublishedComparison& comparison, const Pair& pair, const NamedSteps& named, Comparison row) {
  const PublishedStep& base = named.steps.at(pair.base);
  const SimulatedStep &first = named.simulated.at(pair.base), &other = named.simulated.at(pair.variant);
  row.simulated = other.step_s / first.step_s;
  // What both steps are wrong by alike cancels: the half-widths that remain are those of the variant's own band, as a bound.
  row.lower = row.simulated * other.lower_s / other.step_s;
  row.upper = row.simulated * other.upper_s / other.step_s;
  row.guesses = base.guesses;
  row.guesses.insert(row.guesses.end(), named.steps.at(pair.variant).guesses.begin(), named.steps.at(pair.variant).guesses.end());
  const auto verdict = [&](const char* name, bool right) {
    comparison.other[name].push_back({.id = row.id, .row = row.row, .measured = 1, .simulated = right ? 1.0 : 0.0, .verdict = true});
  };
  verdict("sign", same_sign(row.measured, row.simulated));
  verdict("within_5_points", std::abs(row.measured - row.simulated) <= kNear);
  const auto source = base.labels.find("source");
  comparison.labels["source"].push_back(source == base.labels.end() ? "" : source->second);
  comparison.rows.push_back(std::move(row));
}

// Of peaks that are allocated on both sides or reserved on both.
void add_peaks(PublishedComparison& comparison, const RowCells& cells, const Pair& pair, const NamedSteps& named, const std::string& id) {
  const PublishedStep &base = named.steps.at(pair.base), &variant = named.steps.at(pair.variant);
  if (!cells.has("mem_delta_gib") || !base.peak_bytes || !variant.peak_bytes) return;
  const auto peak = [&](const std::string& name, const PublishedStep& step) {
    const SimulatedStep& simulated = named.simulated.at(name);
    return step.peak_is_reserved && simulated.reserved_bytes > 0 ? simulated.reserved_bytes : simulated.peak_bytes;
  };
  const double measured = *variant.peak_bytes - *base.peak_bytes;
  if (measured == 0) return;  // no ratio to it
  comparison.other["peak_difference_bytes"].push_back(
      {.id = id, .row = pair.row, .measured = measured, .simulated = peak(pair.variant, variant) - peak(pair.base, base)});
}

std::vector<Pair> pairs_of(const CsvTable& table, const PublishedOptions& options, PublishedComparison& comparison) {
  std::vector<Pair> pairs;
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    const RowCells cells(table, row);
    if (cells.has("quality") && !has_quality(cells, options.quality)) {
      ++comparison.filtered;
      continue;
    }
    pairs.push_back({row, std::string(cells.text("base_id")), std::string(cells.text("var_id"))});
  }
  return pairs;
}

}  // namespace

PublishedComparison compare_pairs(const CsvTable& table, const PublishedOptions& options) {
  PublishedComparison comparison;
  comparison.quantity = "step time of the variant over that of the base";
  check_step_rows(table);
  const std::vector<Pair> pairs = pairs_of(table, options, comparison);
  const std::string file = file_beside(table.file, "results.csv");
  if (file.empty()) throw InputError({table.file}, "found no results.csv beside it, wanted the rows that its pairs name");
  const CsvTable results = parse_csv(read_text_file(file, kLargestTable), file);
  check_row_ids(results);
  const NamedSteps named = named_steps(results, pairs, options);
  for (const Pair& pair : pairs) {
    const RowCells cells(table, pair.row);
    const std::string* unknown = !named.knows(pair.base) ? &pair.base : !named.knows(pair.variant) ? &pair.variant : nullptr;
    if (unknown != nullptr) {
      const UntranslatedRow& why = named.skipped.at(*unknown);
      ++comparison.skipped[why.reason];
      comparison.gaps += why.allowed ? 0 : 1;
      continue;
    }
    const std::string id = table.row_id(pair.row);
    if (cells.has("mem_base_gib")) positive_number(cells, "mem_base_gib", "GiB above zero");  // the base's row says it too
    add_peaks(comparison, cells, pair, named, id);
    if (!cells.has("time_ratio")) {
      ++comparison.skipped["no ratio of times is measured"];
      continue;
    }
    add_ratio(comparison, pair, named, {.id = id, .row = pair.row, .measured = positive_number(cells, "time_ratio", "a ratio above zero")});
  }
  comparison.notes.push_back(fmt::format(
      "sign: of the change, or both within {:.0f} % of none; within_5_points: of the ratio; errors of either are the share of wrong ones",
      100 * kSameTime));
  return comparison;
}

}  // namespace stepsim
