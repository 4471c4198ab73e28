#include "tools/published_step_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "hardware/machine_spec.h"
#include "sim/input_error.h"

namespace stepsim {

namespace {

void skip(PublishedComparison& comparison, const std::string& reason, bool gap) {
  ++comparison.skipped[reason];
  if (gap) ++comparison.gaps;
}

constexpr std::size_t kMostSteps = 20'000;  // minutes of simulation

}  // namespace

void check_step_rows(const CsvTable& table) {
  if (table.rows.size() > kMostSteps) {
    throw InputError({table.file}, fmt::format("found {} rows of steps, wanted at most {}", table.rows.size(), kMostSteps));
  }
}

void check_row_ids(const CsvTable& table) {
  const std::optional<std::size_t> id = table.column("id");
  if (!id) return;
  std::set<std::string_view> known;
  for (const CsvRow& row : table.rows) {
    const std::string& cell = row.cells[*id];
    if (cell.empty() || known.insert(cell).second) continue;
    const CellOrigin& place = row.origins[*id];
    throw InputError({table.file, place.line, place.column},
                     fmt::format("found id {} twice, wanted it once", cell.substr(0, kShownOfCell)));
  }
}

StepRows simulated_rows(const CsvTable& table, const std::vector<std::size_t>& rows,
                        const std::function<PublishedStep(const RowCells&)>& translate, const PublishedOptions& options,
                        PublishedComparison& comparison) {
  check_step_rows(table);
  std::vector<PublishedStep> steps;
  for (const std::size_t row : rows) {
    try {
      steps.push_back(translate(RowCells(table, row)));
      steps.back().row = row;
      steps.back().id = table.row_id(row);
    } catch (const UntranslatedRow& untranslated) {
      skip(comparison, untranslated.reason, !untranslated.allowed);
    }
  }
  const std::vector<SimulatedStep> simulated = simulate_published(steps, options.progress);
  StepRows jobs;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (!simulated[i].refused.empty()) {
      skip(comparison, "a job that is refused: " + simulated[i].refused, true);
      continue;
    }
    if (steps[i].part == MeasuredPart::kStep && steps[i].measured_s > 0) {
      MeasuredStepRow row = simulated[i].row;
      row.id = steps[i].id;
      row.source = steps[i].source;
      row.measured_s = steps[i].measured_s;
      row.simulated_s = simulated[i].step_s;
      comparison.evidence.push_back(std::move(row));
    }
    jobs.steps.push_back(std::move(steps[i]));
    jobs.simulated.push_back(simulated[i]);
  }
  return jobs;
}

std::vector<std::size_t> all_rows(const CsvTable& table) {
  std::vector<std::size_t> rows;
  for (std::size_t row = 0; row < table.rows.size(); ++row) rows.push_back(row);
  return rows;
}

Comparison step_time(const PublishedStep& step, const SimulatedStep& simulated) {
  return {.id = step.id,
          .row = step.row,
          .measured = step.measured_s,
          .simulated = simulated.step_s,
          .lower = simulated.lower_s,
          .upper = simulated.upper_s,
          .guesses = step.guesses};
}

void add_row(PublishedComparison& comparison, const PublishedStep& step, Comparison row) {
  for (const auto& [label, value] : step.labels) {
    std::vector<std::string>& values = comparison.labels[label];
    values.resize(comparison.rows.size(), label + " not stated");
    values.push_back(value);
  }
  comparison.rows.push_back(std::move(row));
  for (auto& [label, values] : comparison.labels) values.resize(comparison.rows.size(), label + " not stated");
}

void set_cluster(PublishedStep& step, const std::string& name) {
  const std::vector<std::string> known = cluster_names();
  if (std::find(known.begin(), known.end(), name) != known.end()) step.set("--cluster", "hardware.cluster", name);
}

double positive_number(const RowCells& cells, std::string_view column, std::string_view wanted) {
  const double value = cells.number(column, wanted);
  if (!(value > 0)) cells.refuse(column, wanted);
  return value;
}

std::string file_beside(const std::string& table_file, const std::string& name) {
  const std::filesystem::path path = std::filesystem::path(table_file).parent_path() / name;
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) ? path.string() : "";
}

}  // namespace stepsim
