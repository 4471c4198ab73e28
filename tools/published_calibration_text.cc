// What calibrations on published tables found, for people and for programs.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "tools/band_coverage.h"
#include "tools/error_statistics.h"
#include "tools/published_calibration.h"
#include "tools/text_lines.h"

namespace stepsim {

static constexpr double kLeastPhysical = 0.95, kMostPhysical = 1.8;  // accuracy.md C.3 and A.5

using Json = nlohmann::ordered_json;

static std::string percent(double fraction) { return fmt::format("{:.1f} %", 100 * fraction); }
static std::string signed_percent(double fraction) { return fmt::format("{:+.1f} %", 100 * fraction); }

static const char* models_name(bool experts) { return experts ? "experts" : "dense"; }

static std::vector<double> errors_of(const StackCalibration& calibration, bool experts, bool held_out, bool bare) {
  std::vector<double> errors;
  for (const FittedStep& step : calibration.steps) {
    if (!step.refused.empty() || step.experts != experts || step.held_out != held_out) continue;
    errors.push_back(bare ? step.bare_error() : step.error());
  }
  return errors;
}

// A line for each of dense and experts, fitted and held out, that has steps.
static void add_errors(const StackCalibration& calibration, std::vector<std::vector<std::string>>& table) {
  const SlowdownRange &gemm = calibration.stack.gemm, &attention = calibration.stack.attention;
  std::string slowdowns = fmt::format("{:.3f}", gemm.expected);
  if (attention.expected != 1) slowdowns += fmt::format(", attention {:.2f}", attention.expected);
  for (const bool experts : {false, true}) {
    for (const bool held_out : {false, true}) {
      const std::optional<ErrorStatistics> with = error_statistics(errors_of(calibration, experts, held_out, false));
      const std::optional<ErrorStatistics> bare = error_statistics(errors_of(calibration, experts, held_out, true));
      if (!with || !bare) continue;
      table.push_back({calibration.stack.name, slowdowns, fmt::format("{:.2f}-{:.2f}", gemm.lower, gemm.upper),
                       fmt::format("{}, {}", models_name(experts), held_out ? "held out" : "fitted"), std::to_string(with->rows),
                       percent(bare->mean), percent(with->mean), percent(with->median), percent(with->p90), signed_percent(with->bias)});
    }
  }
}

// Of the fitted half in the band that the held-out half gives: neither has seen the other.
static std::vector<BandedRow> fitted_in_bands(const StackCalibration& calibration) {
  std::vector<BandedRow> rows;
  for (const StackEvidence& evidence : calibration.stack.evidence) {
    if (!evidence.held_out) continue;
    for (const FittedStep& step : calibration.steps) {
      if (!step.refused.empty() || step.held_out || models_name(step.experts) != evidence.models) continue;
      const double lower = std::min(evidence.held_out->lower, 0.0), upper = std::max(evidence.held_out->upper, 0.0);
      rows.push_back({.of = evidence.models,
                      .simulated = step.with_stack_s,
                      .lower = step.with_stack_s * (1 + lower),
                      .upper = step.with_stack_s * (1 + upper),
                      .measured = step.measured_s});
    }
  }
  return rows;
}

static std::string worst_text(const StackCalibration& calibration) {
  std::vector<const FittedStep*> steps;
  for (const FittedStep& step : calibration.steps) {
    if (step.refused.empty()) steps.push_back(&step);
  }
  std::stable_sort(steps.begin(), steps.end(),
                   [](const FittedStep* a, const FittedStep* b) { return std::abs(a->error()) > std::abs(b->error()); });
  constexpr std::size_t kShown = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, steps.size()); ++i) {
    text += fmt::format("{}{} {}{}", i == 0 ? "" : ", ", steps[i]->id, signed_percent(steps[i]->error()),
                        steps[i]->held_out ? "" : " (fitted)");
  }
  return text;
}

bool is_physical(const StackCalibration& calibration) {
  return calibration.stack.gemm.expected >= kLeastPhysical && calibration.stack.gemm.expected <= kMostPhysical;
}

std::string published_calibration_text(const PublishedCalibration& calibration) {
  std::vector<std::vector<std::string>> table = {
      {"stack", "products", "single steps", "steps", "rows", "bare mean", "mean", "median", "p90", "bias"}};
  std::vector<BandedRow> banded;
  TextLines worst;
  for (const StackCalibration& stack : calibration.stacks) {
    add_errors(stack, table);
    const std::vector<BandedRow> rows = fitted_in_bands(stack);
    banded.insert(banded.end(), rows.begin(), rows.end());
    worst.add(stack.stack.name + "  largest: ", worst_text(stack));
    if (!is_physical(stack)) {
      worst.add("warning: ",
                fmt::format("{} takes {:.2f}: outside {} to {}, where measured stacks are; a wrong fact is likelier; not written",
                            stack.stack.name, stack.stack.gemm.expected, kLeastPhysical, kMostPhysical));
    }
  }
  std::string text = table_text(table) + worst.text();
  if (!banded.empty()) {
    text += "Steps of the fitted half in the 5th to 95th percentile of the other half:\n" + band_coverage_text(band_coverage(banded));
  }
  TextLines rest;
  for (const auto& [name, reason] : calibration.failed) rest.add("not fitted: ", name + ": " + reason);
  for (const auto& [reason, rows] : calibration.skipped) rest.add("  ", fmt::format("{} rows left out: {}", rows, reason));
  return text + rest.text();
}

static Json step_json(const FittedStep& step) {
  if (!step.refused.empty()) return {{"id", step.id}, {"refused", step.refused}};
  return {
      {"id", step.id},         {"held_out", step.held_out},         {"models", models_name(step.experts)}, {"measured_s", step.measured_s},
      {"bare_s", step.bare_s}, {"with_stack_s", step.with_stack_s}, {"kernel_width", step.kernel_width}};
}

std::string published_calibration_json(const PublishedCalibration& calibration) {
  Json json;
  json["stacks"] = Json::array();
  for (const StackCalibration& each : calibration.stacks) {
    const SlowdownRange& gemm = each.stack.gemm;
    Json stack = {{"name", each.stack.name},
                  {"machines", each.stack.machines},
                  {"precisions", each.stack.precisions},
                  {"frameworks", each.stack.frameworks},
                  {"gemm", {{"expected", gemm.expected}, {"lower", gemm.lower}, {"upper", gemm.upper}}}};
    stack["steps"] = Json::array();
    for (const FittedStep& step : each.steps) stack["steps"].push_back(step_json(step));
    json["stacks"].push_back(std::move(stack));
  }
  json["not_fitted"] = calibration.failed;
  json["skipped"] = calibration.skipped;
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace stepsim
