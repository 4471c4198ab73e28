#include "tools/calibrate_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "sim/check.h"
#include "sim/input_error.h"
#include "tools/step_run.h"

namespace stepsim {

namespace {

// accuracy.md C.3 and A.5: stacks that were measured take 1.0 to 1.8 times as long; 5 % is what the kernels themselves are uncertain by.
constexpr double kLeastPhysical = 0.95, kMostPhysical = 1.8;
constexpr double kDisagreement = 0.10;
constexpr std::size_t kSimulationsOfStep = 8;  // as a rule: bare, a second, 2 of the search, 2 ends of the range, fitted, left out

StackSpec products_slower(const Job& job, double slowdown) {
  StackSpec stack;
  stack.name = "calibrated";
  stack.machines = {job.gpu.name};
  stack.precisions = {dtype_name(product_dtype(job.training.precision))};
  stack.gemm = {slowdown, slowdown, slowdown};
  return stack;
}

class Simulations {
 public:
  Simulations(std::vector<MeasuredStep> steps, const CalibrationProgress& progress)
      : steps_(std::move(steps)), times_(steps_.size()), progress_(progress) {}
  const std::vector<MeasuredStep>& steps() const { return steps_; }
  // Simulated with matrix products that much slower.
  double step_s(std::size_t step, double slowdown);
  // By a straight line between the nearest that were simulated; beyond them simulated.
  double estimate_s(std::size_t step, double slowdown);
  bool out_of_memory(std::size_t step) const { return out_of_memory_.at(step); }

 private:
  std::vector<MeasuredStep> steps_;
  std::vector<std::map<double, double>> times_;  // by step: of slowdowns
  std::map<std::size_t, bool> out_of_memory_;
  const CalibrationProgress& progress_;
  std::size_t done_ = 0;
};

double Simulations::step_s(std::size_t step, double slowdown) {
  const auto known = times_[step].find(slowdown);
  if (known != times_[step].end()) return known->second;
  Job job = steps_[step].job;
  apply_stack(products_slower(job, slowdown), dtype_name(product_dtype(job.training.precision)), job.gpu);
  try {
    const StepRun run = run_step(job);
    out_of_memory_[step] = run.run.result.out_of_memory.has_value();
    const double time = run.step_time_s();
    times_[step][slowdown] = time;
    ++done_;
    if (progress_) progress_(done_, std::max(done_, steps_.size() * kSimulationsOfStep));
    return time;
  } catch (const InputError& error) {
    throw at_row(steps_[step], error);
  }
}

double Simulations::estimate_s(std::size_t step, double slowdown) {
  const std::map<double, double>& times = times_[step];
  const auto above = times.lower_bound(slowdown);
  if (above == times.end() || above == times.begin() || above->first == slowdown) return step_s(step, slowdown);
  const auto below = std::prev(above);
  const double share = (slowdown - below->first) / (above->first - below->first);
  return below->second + share * (above->second - below->second);
}

// The slowdown with which the step takes as long as measured, within 1e-5 of it; an end of the range that is tried where none does. Times
// grow with the slowdown, nearly on straight lines, so chords between a time below and one above meet it fast.
double own_slowdown(Simulations& simulations, std::size_t step) {
  const double measured = simulations.steps()[step].measured_s;
  const auto excess = [&](double slowdown) { return simulations.step_s(step, slowdown) / measured - 1; };
  constexpr double kSecond = 1.5, kClose = 1e-5;
  double low = 1, high = kSecond, at_low = excess(low), at_high = excess(high);
  if (at_low > 0) {
    high = low, at_high = at_low;
    low = kLeastSlowdown, at_low = excess(low);
    if (at_low >= 0) return kLeastSlowdown;
  }
  while (at_high < 0) {
    if (high >= kMostSlowdown) return kMostSlowdown;
    constexpr double kLeastStep = 0.05;  // so that it ends on any curve
    const double slope = (at_high - at_low) / (high - low);
    const double wanted = slope > 0 ? std::max(high - 1.1 * at_high / slope, high + kLeastStep) : kMostSlowdown;
    low = high, at_low = at_high;
    high = std::min(kMostSlowdown, wanted), at_high = excess(high);
  }
  constexpr int kMostSteps = 40;
  for (int i = 0; i < kMostSteps && high - low > kClose; ++i) {
    const double chord = low - at_low * (high - low) / (at_high - at_low), middle = (low + high) / 2;
    const double next = i % 4 == 3 ? middle : chord;  // chords alone may creep along a curve
    const double at_next = excess(next);
    if (std::fabs(at_next) <= kClose) return next;
    (at_next < 0 ? low : high) = next;
    (at_next < 0 ? at_low : at_high) = at_next;
  }
  return (low + high) / 2;
}

double weight_of(Simulations& simulations, std::size_t step) {
  constexpr double kSecond = 1.5;
  return std::log(simulations.step_s(step, kSecond) / simulations.step_s(step, 1)) / std::log(kSecond);
}

double mean_log_error(Simulations& simulations, const std::vector<std::size_t>& steps, double slowdown) {
  double sum = 0;
  for (const std::size_t step : steps) {
    sum += std::fabs(std::log(simulations.estimate_s(step, slowdown) / simulations.steps()[step].measured_s));
  }
  return sum / static_cast<double>(steps.size());
}

// Between the slowdowns that single steps want no error changes its sign, so the best one is one of them; where points between neighbours
// are as good, the middle of all that are.
double best_slowdown(Simulations& simulations, const std::vector<std::size_t>& steps, const std::vector<CalibratedStep>& rows) {
  std::vector<double> own;
  for (const std::size_t step : steps) own.push_back(rows[step].own_slowdown);
  std::sort(own.begin(), own.end());
  std::vector<std::pair<double, double>> tried;  // slowdown, error
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (i > 0) tried.emplace_back((own[i - 1] + own[i]) / 2, 0);
    tried.emplace_back(own[i], 0);
  }
  for (auto& [slowdown, error] : tried) {
    error = mean_log_error(simulations, steps, slowdown);
    least = std::min(least, error);
  }
  constexpr double kAsGood = 1.02, kExact = 1e-9;
  std::vector<double> good;
  for (const auto& [slowdown, error] : tried) {
    if (error <= kAsGood * least + kExact) good.push_back(slowdown);
  }
  STEPSIM_CHECK(!good.empty());
  return (good.front() + good.back()) / 2;
}

std::string job_text(const Job& job) {
  const ParallelLayout& parallel = job.parallel;
  std::string text = fmt::format("{}, {} GPUs", job.model.name, job.gpus);
  if (parallel.tensor > 1) text += fmt::format(", tp {}", parallel.tensor);
  if (parallel.pipeline > 1) text += fmt::format(", pp {}", parallel.pipeline);
  return text + fmt::format(", batch {}, sequence {}, recompute {}", job.training.global_batch, job.training.sequence,
                            placement_label(job.placement));
}

double mean_error(const std::vector<CalibratedStep>& rows, double CalibratedStep::*simulated) {
  double sum = 0;
  for (const CalibratedStep& row : rows) sum += std::fabs(row.*simulated / row.measured_s - 1);
  return sum / static_cast<double>(rows.size());
}

std::optional<double> mean_left_out(const std::vector<CalibratedStep>& rows) {
  double sum = 0;
  for (const CalibratedStep& row : rows) {
    if (!row.left_out_s) return std::nullopt;
    sum += std::fabs(*row.left_out_s / row.measured_s - 1);
  }
  return sum / static_cast<double>(rows.size());
}

void fill_left_out(Simulations& simulations, std::vector<CalibratedStep>& rows) {
  for (std::size_t step = 0; step < rows.size(); ++step) {
    std::vector<std::size_t> others;
    for (std::size_t other = 0; other < rows.size(); ++other) {
      if (simulations.steps()[other].configuration != simulations.steps()[step].configuration) others.push_back(other);
    }
    if (!others.empty()) rows[step].left_out_s = simulations.step_s(step, best_slowdown(simulations, others, rows));
  }
}

SlowdownRange range_of(const std::vector<CalibratedStep>& rows, double expected) {
  double most = 0;
  for (const CalibratedStep& row : rows) most = std::max(most, row.weight);
  SlowdownRange range{expected, expected, expected};
  for (const CalibratedStep& row : rows) {
    if (row.weight < most / 2) continue;  // all errors of a step that hardly depends on products would be theirs
    range.lower = std::min(range.lower, row.own_slowdown);
    range.upper = std::max(range.upper, row.own_slowdown);
  }
  return range;
}

void add_names(const Simulations& simulations, const std::string& file, const StepCalibrationOptions& options, StackSpec& stack) {
  const Job& first = simulations.steps().front().job;
  const std::string precision = dtype_name(product_dtype(first.training.precision));
  stack.name = fmt::format("{}-{}-measured", first.gpu.name, precision);
  stack.machines = {first.gpu.name};
  stack.precisions = {precision};
  for (const MeasuredStep& step : simulations.steps()) {
    const std::string label = framework_label(step.job.framework);
    if (std::find(stack.frameworks.begin(), stack.frameworks.end(), label) == stack.frameworks.end()) stack.frameworks.push_back(label);
  }
  stack.software = options.software.empty() ? fmt::format("{}", fmt::join(stack.frameworks, ", ")) : options.software;
  stack.evidence.push_back({.source = fmt::format("{} measured steps of {}", simulations.steps().size(), file),
                            .conditions = "simulated by stepsim " STEPSIM_VERSION " with the machine file and the presets of that version",
                            .rows = static_cast<std::int64_t>(simulations.steps().size())});
}

void warn_of_step(const Simulations& simulations, std::size_t step, const CalibratedStep& row, std::vector<std::string>& warnings) {
  if (simulations.out_of_memory(step)) {
    warnings.push_back(row.id +
                       ": the simulated step does not fit, yet it ran: look for recompute, sharding or offload that the row lacks");
  }
  if (row.own_slowdown <= kLeastSlowdown || row.own_slowdown >= kMostSlowdown) {
    warnings.push_back(
        fmt::format("{}: no slowdown of matrix products makes it {:.6g} s: the bare machine takes {:.6g} s (is the unit right?)", row.id,
                    row.measured_s, row.bare_s));
    return;
  }
  if (!row.left_out_s) return;
  const double error = *row.left_out_s / row.measured_s - 1;
  if (std::fabs(error) <= kDisagreement) return;
  warnings.push_back(
      fmt::format("{}: {:.0f} % too {} with the slowdown of the others, {:.2f} would fit it: a fact of this row may be wrong", row.id,
                  100 * std::fabs(error), error > 0 ? "slow" : "fast", row.own_slowdown));
}

std::vector<std::string> warnings_of(const Simulations& simulations, const StepCalibration& calibration) {
  std::vector<std::string> warnings;
  const double expected = calibration.stack.gemm.expected;
  if (expected < kLeastPhysical || expected > kMostPhysical) {
    warnings.push_back(fmt::format(
        "The slowdown {:.2f} lies outside 1.0 to {:.1f}, where measured stacks are: a wrong fact is likelier than a slow machine; check "
        "attention kernel, recompute, batch, framework and network",
        expected, kMostPhysical));
  }
  std::vector<std::string> jobs;
  for (const MeasuredStep& step : simulations.steps()) jobs.push_back(step.configuration);
  std::sort(jobs.begin(), jobs.end());
  const auto different = std::unique(jobs.begin(), jobs.end()) - jobs.begin();
  constexpr std::ptrdiff_t kFew = 3;
  if (different < kFew) {
    warnings.push_back(
        fmt::format("{} of different jobs: 3 to 10 steps that differ in size, sequence and layout would show whether one "
                    "slowdown holds for all, and its range",
                    different == 1 ? "No two steps" : "Only 2 steps"));
  }
  for (std::size_t i = 0; i < calibration.steps.size(); ++i) warn_of_step(simulations, i, calibration.steps[i], warnings);
  return warnings;
}

// Errors that no stack file may have, or all steps so much longer than simulated: another unit than the column's.
void refuse_units(const std::string& file, const StepCalibration& calibration) {
  constexpr double kMost = 100;  // hardware/stack_spec.cc
  const std::string wanted = "wanted seconds under step_time_s or milliseconds under step_time_ms";
  const auto by_ratio = [](const CalibratedStep& a, const CalibratedStep& b) { return a.measured_s / a.bare_s < b.measured_s / b.bare_s; };
  const auto shortest = std::min_element(calibration.steps.begin(), calibration.steps.end(), by_ratio);
  const double ratio = shortest->measured_s / shortest->bare_s;
  if (ratio > kMost) {
    throw InputError({file}, fmt::format("found steps that take {:.0f} times as long as simulated, {}", ratio, wanted));
  }
  const StackEvidence& evidence = calibration.stack.evidence.front();
  if (std::max({evidence.error_before, evidence.error_after, evidence.left_out.value_or(0)}) <= kMost) return;
  throw InputError({file, shortest->line, 1},
                   fmt::format("found a step that is simulated to take {:.0f} times as long, {}", 1 / ratio, wanted));
}

}  // namespace

StepCalibration calibrate_steps(const std::string& file, std::vector<MeasuredStep> steps, const StepCalibrationOptions& options,
                                const CalibrationProgress& progress) {
  Simulations simulations(std::move(steps), progress);
  StepCalibration calibration;
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < simulations.steps().size(); ++i) {
    const MeasuredStep& step = simulations.steps()[i];
    all.push_back(i);
    calibration.steps.push_back({.id = step.id,
                                 .line = step.where.line,
                                 .job = job_text(step.job),
                                 .measured_s = step.measured_s,
                                 .bare_s = simulations.step_s(i, 1),
                                 .own_slowdown = own_slowdown(simulations, i),
                                 .weight = weight_of(simulations, i)});
  }
  const double expected = best_slowdown(simulations, all, calibration.steps);
  for (const std::size_t i : all) calibration.steps[i].with_stack_s = simulations.step_s(i, expected);
  fill_left_out(simulations, calibration.steps);
  add_names(simulations, file, options, calibration.stack);
  calibration.stack.gemm = range_of(calibration.steps, expected);
  StackEvidence& evidence = calibration.stack.evidence.front();
  evidence.error_before = mean_error(calibration.steps, &CalibratedStep::bare_s);
  evidence.error_after = mean_error(calibration.steps, &CalibratedStep::with_stack_s);
  evidence.left_out = mean_left_out(calibration.steps);
  refuse_units(file, calibration);
  calibration.warnings = warnings_of(simulations, calibration);
  return calibration;
}

}  // namespace stepsim
