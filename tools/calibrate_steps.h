// A few measured steps of one's own -> the stack that explains them: one slowdown of matrix products, fitted on simulated steps of the same
// jobs. Knows no flag of the command.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hardware/stack_spec.h"
#include "tools/measured_steps.h"

namespace stepsim {

// One measured step beside its simulations.
struct CalibratedStep {
  std::string id;  // its cell in the column id, or "line 3"
  int line = 0;
  std::string job;  // "llama3-8b, 8 GPUs, tp 8, batch 1, 8192 tokens"
  double measured_s = 0;
  double bare_s = 0;                   // simulated on the bare machine
  double with_stack_s = 0;             // with the slowdown of all rows
  std::optional<double> left_out_s{};  // with the slowdown of the other jobs; none: there are no others
  double own_slowdown = 1;             // which alone would make it exact, from kLeastSlowdown to kMostSlowdown
  double weight = 0;                   // how much of a change of the slowdown reaches the step: d log(step) / d log(slowdown)
};

inline constexpr double kLeastSlowdown = 0.5, kMostSlowdown = 8;  // that are tried

struct StepCalibration {
  StackSpec stack{};  // of one machine and precision; its evidence holds the errors
  std::vector<CalibratedStep> steps{};
  std::vector<std::string> warnings{};  // facts that look wrong, a sentence each
};

struct StepCalibrationOptions {
  std::string software{};  // of the stack; "": the frameworks of the rows
};

// After each simulation; `all` is an estimate, never below `done`.
using CalibrationProgress = std::function<void(std::size_t done, std::size_t all)>;

// `steps` as read_measured_steps gives them of `file`. Minimises the mean of |log(simulated / measured)| over the slowdown; where several
// are as good, the middle one. Repeats of a job are left out together. The range holds the slowdowns that single steps want, of those that
// depend on matrix products at least half as much as the one that does most. InputError for a job that is refused, and for times that no
// machine explains: in another unit.
StepCalibration calibrate_steps(const std::string& file, std::vector<MeasuredStep> steps, const StepCalibrationOptions& options,
                                const CalibrationProgress& progress = {});

// What --stack reads.
std::string stack_text(const StepCalibration& calibration);

// For people: the slowdown with its range, a line a step, errors, warnings. For programs: the same as a JSON object with an end of line.
std::string step_calibration_text(const StepCalibration& calibration);
std::string step_calibration_json(const StepCalibration& calibration);

}  // namespace stepsim
