// What calibrate_steps found, as a stack file, for people and for programs.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tools/calibrate_steps.h"
#include "tools/stack_file.h"
#include "tools/text_lines.h"

namespace stepsim {

using Json = nlohmann::ordered_json;

static std::string percent(double fraction) { return fmt::format("{:.1f} %", 100 * fraction); }

std::string stack_text(const StepCalibration& calibration) {
  const StackSpec& stack = calibration.stack;
  std::string text = "# Written by stepsim calibrate: sustained slowdown of matrix products, fitted on measured steps\n";
  const auto add_all = [&](const char* field, const std::vector<std::string>& values) {
    for (const std::string& value : values) text += fmt::format("{}: {}\n", field, quoted_text(value));
  };
  add_all("machine", stack.machines);
  add_all("precision", stack.precisions);
  add_all("framework", stack.frameworks);
  text += fmt::format("software: {}\n", quoted_text(stack.software));
  text += fmt::format("gemm {{\n  expected: {:.4f}\n  lower: {:.4f}  # of single steps\n  upper: {:.4f}  # of single steps\n}}\n",
                      stack.gemm.expected, stack.gemm.lower, stack.gemm.upper);
  for (const StackEvidence& evidence : stack.evidence) {
    text += fmt::format("evidence {{\n  source: {}\n  conditions: {}\n  rows: {}\n", quoted_text(evidence.source),
                        quoted_text(evidence.conditions), evidence.rows);
    text += fmt::format("  error_before: {:.4f}\n  error_after: {:.4f}\n", evidence.error_before, evidence.error_after);
    if (evidence.left_out) text += fmt::format("  left_out: {:.4f}\n", *evidence.left_out);
    text += "}\n";
  }
  add_all("assumption", calibration.warnings);
  return text;
}

std::string step_calibration_text(const StepCalibration& calibration) {
  const SlowdownRange& gemm = calibration.stack.gemm;
  const StackEvidence& evidence = calibration.stack.evidence.front();
  TextLines lines;
  lines.add("", fmt::format("matrix products take {:.3f} times as long as alone ({:.3f} to {:.3f} by single steps): {} on {}, {}",
                            gemm.expected, gemm.lower, gemm.upper, calibration.stack.precisions.front(), calibration.stack.machines.front(),
                            calibration.stack.software));
  lines.add("", fmt::format("mean error of {} steps: {} on the bare machine, {} with it, {}", evidence.rows, percent(evidence.error_before),
                            percent(evidence.error_after),
                            evidence.left_out ? percent(*evidence.left_out) + " with each left out" : "none could be left out"));
  std::vector<std::vector<std::string>> table = {
      {"step", "measured s", "bare s", "error", "with it s", "error", "left out s", "error", "own", "products", "job"}};
  const auto add_time = [](std::vector<std::string>& cells, std::optional<double> simulated, double measured) {
    cells.push_back(simulated ? fmt::format("{:.5g}", *simulated) : "");
    cells.push_back(simulated ? percent(*simulated / measured - 1) : "");
  };
  for (const CalibratedStep& step : calibration.steps) {
    std::vector<std::string> cells = {step.id, fmt::format("{:.5g}", step.measured_s)};
    add_time(cells, step.bare_s, step.measured_s);
    add_time(cells, step.with_stack_s, step.measured_s);
    add_time(cells, step.left_out_s, step.measured_s);
    cells.push_back(fmt::format("{:.3f}", step.own_slowdown));
    cells.push_back(fmt::format("{:.0f} %", 100 * step.weight));
    cells.push_back(step.job);
    table.push_back(std::move(cells));
  }
  TextLines warnings;
  for (const std::string& warning : calibration.warnings) warnings.add("warning: ", warning);
  return lines.text() + table_text(table) + warnings.text();
}

std::string step_calibration_json(const StepCalibration& calibration) {
  const StackSpec& stack = calibration.stack;
  const StackEvidence& evidence = stack.evidence.front();
  const auto optional = [](const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); };
  Json json;
  json["machine"] = stack.machines.front();
  json["precision"] = stack.precisions.front();
  json["frameworks"] = stack.frameworks;
  json["software"] = stack.software;
  json["gemm"] = {{"expected", stack.gemm.expected}, {"lower", stack.gemm.lower}, {"upper", stack.gemm.upper}};
  json["rows"] = evidence.rows;
  json["error_before"] = evidence.error_before;
  json["error_after"] = evidence.error_after;
  json["left_out_error"] = optional(evidence.left_out);
  json["steps"] = Json::array();
  for (const CalibratedStep& step : calibration.steps) {
    json["steps"].push_back({{"id", step.id},
                             {"line", step.line},
                             {"job", step.job},
                             {"measured_s", step.measured_s},
                             {"bare_s", step.bare_s},
                             {"with_stack_s", step.with_stack_s},
                             {"left_out_s", optional(step.left_out_s)},
                             {"own_slowdown", step.own_slowdown},
                             {"products_share", step.weight}});
  }
  json["warnings"] = calibration.warnings;
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace stepsim
