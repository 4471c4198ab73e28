#include "tools/calibration_report.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tools/text_lines.h"

namespace stepsim {

using Json = nlohmann::ordered_json;

static std::string percent(double value) { return fmt::format("{:.1f} %", 100 * value); }

static std::vector<std::string> summary_cells(const std::vector<double>& errors) {
  if (errors.empty()) return {"0", "", "", "", "", ""};
  const ErrorSummary all = summary(errors);
  return {std::to_string(all.rows), percent(all.mean), percent(all.median), percent(all.p90), percent(all.max), percent(all.bias)};
}

std::string error_table(const std::vector<std::pair<std::string, const KernelCalibration*>>& classes) {
  std::vector<std::vector<std::string>> table = {{"class", "shapes", "", "rows", "mean", "median", "p90", "max", "bias"}};
  for (const auto& [name, fit] : classes) {
    for (const FitErrors& errors : fit->errors) {
      for (const bool held_out : {false, true}) {
        std::vector<std::string> row = {name, errors.group, held_out ? "held back" : "fitted"};
        const std::vector<std::string> cells = summary_cells(held_out ? errors.held_out : errors.fitted);
        row.insert(row.end(), cells.begin(), cells.end());
        table.push_back(std::move(row));
      }
    }
  }
  return table_text(table);
}

static std::map<std::string, std::size_t> skipped(const std::vector<Measurements>& files) {
  std::map<std::string, std::size_t> all;
  for (const Measurements& file : files) {
    for (const auto& [reason, rows] : file.skipped) all[reason] += rows;
  }
  return all;
}

std::string calibration_text(const CalibratedMachine& machine, const std::vector<Measurements>& files) {
  TextLines lines;
  const std::string name = machine.gpu.empty() ? "the GPU of the rows" : machine.gpu;
  lines.add("", fmt::format("Calibrated {}; what its rows do not give is that of {}", name, machine.base));
  for (const Measurements& file : files) {
    lines.add("  ", fmt::format("{}: {} rows{}", file.file, file.rows(),
                                file.repeats > 0 ? fmt::format(", {} of them repeat a shape", file.repeats) : ""));
  }
  for (const auto& [reason, rows] : skipped(files)) lines.add("  ", fmt::format("not fitted, {} rows: {}", rows, reason));
  std::vector<std::pair<std::string, const KernelCalibration*>> classes;
  for (const KernelCalibration& fit : machine.classes) {
    classes.emplace_back(fit.op_class + ", " + fit.model, &fit);
    if (!fit.fewer.empty()) lines.add("  ", fmt::format("few rows of {}: {}", fit.op_class, fit.fewer));
    for (const std::string& note : fit.notes) lines.add("  ", note);
  }
  for (const std::string& note : machine.notes) lines.add("  ", note);
  return lines.text() + "Errors, simulated over measured:\n" + error_table(classes);
}

static Json summary_json(const std::vector<double>& errors) {
  const ErrorSummary all = summary(errors);
  if (errors.empty()) {
    return {{"rows", 0},
            {"mean_abs_error", nullptr},
            {"median_abs_error", nullptr},
            {"p90_abs_error", nullptr},
            {"max_abs_error", nullptr},
            {"bias", nullptr}};
  }
  return {{"rows", all.rows},         {"mean_abs_error", all.mean}, {"median_abs_error", all.median},
          {"p90_abs_error", all.p90}, {"max_abs_error", all.max},   {"bias", all.bias}};
}

static Json class_object(const KernelCalibration& fit) {
  Json errors = Json::array();
  for (const FitErrors& group : fit.errors) {
    errors.push_back({{"shapes", group.group}, {"fitted", summary_json(group.fitted)}, {"held_out", summary_json(group.held_out)}});
  }
  return {{"op_class", fit.op_class},
          {"model", fit.model},
          {"fewer_parameters", fit.fewer.empty() ? Json(nullptr) : Json(fit.fewer)},
          {"errors", std::move(errors)},
          {"notes", fit.notes}};
}

std::string class_json(const KernelCalibration& fit) { return class_object(fit).dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string calibration_json(const CalibratedMachine& machine, const std::vector<Measurements>& files) {
  Json json;
  json["gpu"] = machine.gpu.empty() ? Json(nullptr) : Json(machine.gpu);
  json["base"] = machine.base;
  json["files"] = Json::array();
  for (const Measurements& file : files) {
    json["files"].push_back({{"file", file.file}, {"rows", file.rows()}, {"repeats", file.repeats}, {"skipped", file.skipped}});
  }
  json["classes"] = Json::array();
  for (const KernelCalibration& fit : machine.classes) json["classes"].push_back(class_object(fit));
  json["notes"] = machine.notes;
  json["machine_file"] = machine.text;
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace stepsim
