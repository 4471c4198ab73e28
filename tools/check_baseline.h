// Compares a run with an earlier one or with limits, for a user's own CI. Knows only the JSON of `run`.
#pragma once

#include <optional>
#include <string>

#include "tools/step_run.h"

namespace stepsim {

struct CheckOptions {
  std::string baseline{};  // JSON of an earlier `run`; "": none
  std::string max_time{};  // "+2%", "+5 ms" above the baseline; "1.2 s" at all; "": not checked
  std::string max_peak{};  // "+2%", "+1 GiB"; "70 GiB"
  bool must_fit = false;
  std::string min_margin{};  // "3 GiB"
};

struct CheckLimits {
  std::optional<Duration> time{}, baseline_time{};
  std::optional<Bytes> peak{}, baseline_peak{}, margin{};
  bool must_fit = false;
  bool peak_of_all = false;  // `peak` is for every stage; else it comes from the baseline, for the stage that both describe
};

// As the JSON of a run names them under job.model.name, job.hardware.name and job.parallel.rank.
struct CheckedJob {
  std::string model{}, hardware{};
  std::string rank = "worst";  // "last" for the last stage's number too; of one stage always "worst"
};
CheckedJob checked_job(const Job& job);

// With a baseline and neither max_time nor max_peak, nothing may grow. InputError for unreadable tolerances or baselines and for the
// baseline of another model, machine or rank; call it before the run.
CheckLimits check_limits(const CheckOptions& options, const CheckedJob& job);

// Fit and margin are those of all stages. "" or one line that says what moved, by how much, and what was allowed.
std::string check_failure(const CheckLimits& limits, const StepRun& run);

}  // namespace stepsim
