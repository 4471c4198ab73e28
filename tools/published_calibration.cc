#include "tools/published_calibration.h"

#include <fmt/format.h>

#include <algorithm>

#include "schema/read_message.h"
#include "sim/input_error.h"
#include "tools/measurements.h"
#include "tools/published_format.h"
#include "tools/published_rows.h"
#include "tools/stack_file.h"

namespace stepsim {

namespace {

CsvTable table_of(const std::string& file) { return parse_published(read_text_file(file, kLargestTable), file); }

void count(const std::map<std::string, std::size_t>& from, std::map<std::string, std::size_t>& to) {
  for (const auto& [reason, rows] : from) to[reason] += rows;
}

void leave_out(const std::vector<std::string>& unusable, ChosenRows& rows) {
  const auto is_unusable = [&](const PublishedStep& step) {
    return std::find(unusable.begin(), unusable.end(), step.id) != unusable.end();
  };
  const auto kept = std::remove_if(rows.steps.begin(), rows.steps.end(), is_unusable);
  const auto left_out = static_cast<std::size_t>(rows.steps.end() - kept);
  if (left_out > 0) rows.skipped["unusable, by the recipe"] += left_out;
  rows.steps.erase(kept, rows.steps.end());
}

void add_sources(const std::string& source, const std::string& conditions, const std::string& command, const std::string& date,
                 StackSpec& stack) {
  for (StackEvidence& evidence : stack.evidence) {
    evidence.source = fmt::format("{}, {}", source, evidence.models == "experts" ? "models with experts" : "dense models");
    evidence.conditions = conditions.empty() ? "fitted by stepsim " STEPSIM_VERSION ", its machine files and presets" : conditions;
    evidence.command = command;
    evidence.date = date;
  }
}

class Calibrator {
 public:
  explicit Calibrator(const StackProgress& progress) : progress_(progress) {}
  void calibrate(const StackGroup& group, const FitChoice& choice, const std::function<void(StackSpec&)>& add_facts);
  PublishedCalibration result{};
  std::size_t groups = 1;

 private:
  const StackProgress& progress_;
  std::size_t done_ = 0;
};

void Calibrator::calibrate(const StackGroup& group, const FitChoice& choice, const std::function<void(StackSpec&)>& add_facts) {
  const auto simulate = [&](std::span<const PublishedStep> steps) {
    return simulate_published(steps, [&](std::size_t done, std::size_t all) {
      if (progress_) progress_(done_ * all + done, groups * all, group.name);
    });
  };
  try {
    StackCalibration calibrated = calibrate_published(group, choice, simulate);
    for (const FittedStep& step : calibrated.steps) {
      if (!step.refused.empty()) ++result.skipped[step.refused];
    }
    add_facts(calibrated.stack);
    result.stacks.push_back(std::move(calibrated));
  } catch (const InputError& error) {
    result.failed[group.name] = error.what();
  }
  ++done_;
}

// The steps of one stack of the recipe, whichever version of its frameworks they are.
StackGroup group_of(const StackFit& fit, const std::vector<GroupedSteps>& tables) {
  StackGroup all{.name = fit.name, .machines = fit.machines, .precisions = fit.precisions};
  for (const GroupedSteps& table : tables) {
    for (const StackGroup& group : table.groups) {
      if (!fit.holds_for(group.machines.front(), group.precisions.front(), group.frameworks.front())) continue;
      all.steps.insert(all.steps.end(), group.steps.begin(), group.steps.end());
      const std::string& framework = group.frameworks.front();
      const bool known = std::find(all.frameworks.begin(), all.frameworks.end(), framework) != all.frameworks.end();
      if (!known) all.frameworks.push_back(framework);
    }
  }
  return all;
}

}  // namespace

PublishedCalibration calibrate_published_table(const PublishedRequest& request, const StackProgress& progress) {
  const CsvTable table = table_of(request.file);
  const std::string format = request.format.empty() ? detected_format(table) : request.format;
  const ChosenRows rows = published_rows(table, format, row_conditions(request.where, "--where"));
  if (rows.steps.empty() && rows.skipped.empty()) {
    throw InputError({request.file}, request.where.empty() ? "found no row of a step, wanted measured steps"
                                                           : "found no row with --where " + request.where + ", wanted one at least");
  }
  const GroupedSteps grouped = grouped_steps(rows.steps);
  Calibrator calibrator(progress);
  calibrator.groups = grouped.groups.size();
  count(rows.skipped, calibrator.result.skipped);
  count(grouped.skipped, calibrator.result.skipped);
  const std::string source = request.where.empty() ? request.file : request.file + " " + request.where;
  for (const StackGroup& group : grouped.groups) {
    calibrator.calibrate(group, request.choice, [&](StackSpec& stack) {
      stack.software = request.software.empty() ? stack.frameworks.front() : request.software;
      add_sources(source, "", request.command, request.date, stack);
    });
  }
  return calibrator.result;
}

PublishedCalibration calibrate_stack_recipe(const StackRecipe& recipe, const std::string& data, const std::string& command,
                                            const StackProgress& progress) {
  Calibrator calibrator(progress);
  calibrator.groups = recipe.stacks.size();
  for (const StackFit& fit : recipe.stacks) {
    std::vector<GroupedSteps> tables;
    std::string source;
    for (const StackRows& rows : fit.rows) {
      const std::string where = fmt::format("{}", fmt::join(rows.where, ","));
      const CsvTable table = table_of(data + "/" + rows.file);
      ChosenRows chosen =
          published_rows(table, rows.format.empty() ? detected_format(table) : rows.format, row_conditions(where, fit.name));
      leave_out(recipe.unusable, chosen);
      count(chosen.skipped, calibrator.result.skipped);
      tables.push_back(grouped_steps(chosen.steps));
      count(tables.back().skipped, calibrator.result.skipped);
      source += (source.empty() ? "" : "; ") + rows.file + (where.empty() ? "" : " " + where);
    }
    const StackGroup group = group_of(fit, tables);
    if (group.steps.empty()) {
      calibrator.result.failed[fit.name] = "no row is of this machine, precision and framework";
      continue;
    }
    calibrator.calibrate(group, {fit.fits_dense_only, fit.fits_attention}, [&](StackSpec& stack) {
      stack.machines = fit.machines;
      stack.precisions = fit.precisions;
      stack.frameworks = fit.frameworks;
      stack.software = fit.software;
      stack.assumptions = fit.assumptions;
      stack.straggler_per_doubling = fit.straggler_per_doubling;
      add_sources(source, fit.conditions, command, recipe.date, stack);
    });
  }
  return calibrator.result;
}

std::string stack_file_text(const StackCalibration& calibration) {
  const StackSpec& stack = calibration.stack;
  const std::string title = fmt::format("{}, {}: {}", fmt::join(stack.machines, ", "), fmt::join(stack.precisions, ", "), stack.software);
  const std::string& command = stack.evidence.empty() ? stack.name : stack.evidence.front().command;
  return stack_file_text(stack, title, command.find("--recipe") != std::string::npos ? "calibrate --recipe" : "calibrate --published");
}

}  // namespace stepsim
