#include "tools/evidence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tools/nearest_steps.h"

namespace stepsim {

constexpr std::size_t kNearest = 3;

// "llama3-8b on 8 x h100-sxm-80gb, fp8, 8192 tokens"
static std::string step_text(const MeasuredStepRow& row) {
  return fmt::format("{} on {} x {}, {}, {} tokens", row.model, row.gpus, row.gpu, row.precision, row.sequence);
}

std::vector<EvidenceRow> evidence_rows(const Job& job) {
  std::vector<EvidenceRow> rows;
  for (const NearStep& near : nearest_steps(job, kNearest)) {
    if (!near.within) continue;
    rows.push_back({.of = "measured step " + near.row->id,
                    .source = near.row->source,
                    .conditions = fmt::format("{}; {}; {}", step_text(*near.row), near.row->framework, near.row->layout),
                    .rows = 1,
                    .error = std::fabs(near.row->error()),
                    .bias = near.row->error()});
  }
  if (job.stack) {
    for (const StackEvidence& each : job.stack->evidence) {
      rows.push_back({.of = "stack " + job.stack->name,
                      .source = each.source,
                      .conditions = each.conditions,
                      .rows = each.rows,
                      .error = each.left_out,
                      .fitted_error = each.error_after});
    }
  }
  for (const FitRecord& each : job.gpu.fits) {
    const bool held_out = each.held_out_rows > 0;
    rows.push_back({.of = "kernels: " + each.op_class,
                    .source = each.data,
                    .conditions = each.conditions,
                    .rows = held_out ? each.held_out_rows : each.fitted_rows,
                    .error = held_out ? std::optional(each.held_out_error) : std::nullopt,
                    .bias = held_out ? std::optional(each.held_out_bias) : std::nullopt,
                    .fitted_error = each.fitted_rows > 0 ? std::optional(each.fitted_error) : std::nullopt});
  }
  return rows;
}

// "12 measured steps, each 4.4 % off the fit of the others"; of one step alone nothing is left out.
static std::string stack_evidence_text(const StackEvidence& evidence) {
  const std::string rows = fmt::format("{} measured {}", evidence.rows, evidence.rows == 1 ? "row" : "rows");
  if (evidence.left_out)
    return fmt::format("{}, each {:.1f} % off where the others fit ({})", rows, 100 * *evidence.left_out, evidence.source);
  return fmt::format("{}, {:.1f} % off after fitting ({})", rows, 100 * evidence.error_after, evidence.source);
}

// Of each class the largest error of its records.
static std::string kernels_text(const GpuSpec& gpu) {
  std::vector<std::pair<std::string, double>> errors;  // in the order of the file
  for (const FitRecord& each : gpu.fits) {
    if (each.held_out_rows == 0) continue;
    const auto same = [&](const auto& row) { return row.first == each.op_class; };
    const auto found = std::find_if(errors.begin(), errors.end(), same);
    if (found == errors.end()) {
      errors.emplace_back(each.op_class, each.held_out_error);
    } else {
      found->second = std::max(found->second, each.held_out_error);
    }
  }
  std::string text;
  for (const auto& [name, error] : errors) text += fmt::format("{}{} {:.1f} %", text.empty() ? "" : ", ", name, 100 * error);
  return text.empty() ? "; no measured kernels of " + gpu.name : "; kernels held out: " + text;
}

// The nearest measured step and this program's error on it.
static std::string nearest_text(const Job& job) {
  const std::vector<NearStep> nearest = nearest_steps(job, kNearest);
  if (nearest.empty()) return "no measured steps are known";
  const MeasuredStepRow& first = *nearest.front().row;
  const std::string step = fmt::format("{} ({}): {:+.1f} %", step_text(first), first.source, 100 * first.error());
  if (!nearest.front().within) return "none within 2x of this job: extrapolates; nearest " + step;
  return "nearest measured " + step;
}

std::string evidence_text(const Job& job) {
  const std::string kernels = kernels_text(job.gpu);
  const std::string nearest = nearest_text(job);
  if (!job.stack || job.stack->typical) return fmt::format("{}; none of this software stack, hence the wide band{}", nearest, kernels);
  if (job.stack->evidence.empty()) return fmt::format("{}; stack {} names none{}", nearest, job.stack->name, kernels);
  std::string text = nearest + "; " + fmt::format("stack {}: {}", job.stack->name, stack_evidence_text(job.stack->evidence.front()));
  const std::size_t more = job.stack->evidence.size() - 1;
  if (more > 0) text += fmt::format(" and {} more", more);
  return text + kernels;
}

}  // namespace stepsim
