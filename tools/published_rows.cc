#include "tools/published_rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/input_error.h"
#include "tools/published_step_rows.h"

namespace stepsim {

namespace {

std::vector<std::string> parts(const std::string& text, char between) {
  std::vector<std::string> all;
  std::size_t begin = 0;
  for (std::size_t end = text.find(between); end != std::string::npos; end = text.find(between, begin)) {
    all.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  all.push_back(text.substr(begin));
  return all;
}

PublishedStep (*translator_of(const std::string& format))(const RowCells&) {
  if (format == "results") return results_step;
  if (format == "mpt") return mpt_step;
  if (format == "vtrain") return vtrain_step;
  throw InputError({"--format"}, fmt::format("found \"{}\", wanted a format of steps: results, mpt or vtrain", format));
}

bool chosen(const CsvTable& table, std::size_t row, const std::vector<RowCondition>& conditions) {
  return std::all_of(conditions.begin(), conditions.end(), [&](const RowCondition& condition) {
    const std::string& cell = table.rows[row].cells[*table.column(condition.column)];
    const bool found = std::find(condition.values.begin(), condition.values.end(), cell) != condition.values.end();
    return found == condition.among;
  });
}

// "": it can be fitted.
std::string reason_to_skip(const PublishedStep& step) {
  if (!step.ran) return "did not run";
  if (step.out_of_memory) return "ran out of memory";
  return step.measured_s > 0 ? "" : "no time measured";
}

}  // namespace

std::vector<RowCondition> row_conditions(const std::string& text, const std::string& flag) {
  std::vector<RowCondition> conditions;
  if (text.empty()) return conditions;
  for (const std::string& part : parts(text, ',')) {
    const std::size_t equal = part.find('=');
    const bool differs = equal != std::string::npos && equal > 0 && part[equal - 1] == '!';
    const std::string column = part.substr(0, equal == std::string::npos ? 0 : equal - (differs ? 1 : 0));
    if (column.empty()) throw InputError({flag}, fmt::format("found \"{}\", wanted COLUMN=VALUE, COLUMN=A|B or COLUMN!=VALUE", part));
    conditions.push_back({column, parts(part.substr(equal + 1), '|'), !differs});
  }
  return conditions;
}

ChosenRows published_rows(const CsvTable& table, const std::string& format, const std::vector<RowCondition>& conditions) {
  PublishedStep (*const translated)(const RowCells&) = translator_of(format);
  for (const RowCondition& condition : conditions) {
    if (table.column(condition.column)) continue;
    throw InputError({"--where"}, fmt::format("found column \"{}\", wanted one of {}", condition.column, fmt::join(table.head, ", ")));
  }
  check_step_rows(table);
  ChosenRows rows;
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    if (!chosen(table, row, conditions)) continue;
    try {
      PublishedStep step = translated(RowCells(table, row));
      step.row = row;
      if (step.id.empty()) step.id = table.row_id(row);
      if (const std::string reason = reason_to_skip(step); !reason.empty()) {
        ++rows.skipped[reason];
      } else {
        rows.steps.push_back(std::move(step));
      }
    } catch (const UntranslatedRow& untranslated) {
      ++rows.skipped[untranslated.reason];
    }
  }
  return rows;
}

std::string configuration_text(const PublishedStep& step) {
  std::string text = fmt::format("part {} {}", static_cast<int>(step.part), step.input.file);
  for (const FlagValue& flag : step.input.flags) {
    if (flag.path != "framework.name" && flag.path != "hardware.stack") text += fmt::format("\n{}={}", flag.path, flag.value);
  }
  for (const auto& [name, value] : step.dimensions) text += fmt::format("\n{}={}", name, value);
  if (step.dense_layers) text += fmt::format("\ndense={}", *step.dense_layers);
  if (step.window_every) text += fmt::format("\nwindow={}", *step.window_every);
  return text;
}

}  // namespace stepsim
