// Single changes of a job other than its placement, each simulated: what of memory they free and what they cost. Knows no form of output.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/step_figures.h"

namespace stepsim {

struct MemoryChange {
  std::string flags{};      // "--zero 1"
  std::string condition{};  // what else it means: "with twice the GPUs"; "" if nothing
  StepFigures figures{};    // times of jobs on other numbers of GPUs are per step all the same
};

struct MemoryChanges {
  std::string not_searched{};  // why; "": it was
  StepFigures own{};
  std::vector<MemoryChange> tried{};  // in a fixed order; those that the job's model, layout or machine refuse are left out
};

// Above this many ops of all changes together nothing is tried: `run` shall answer at once, less so where the step does not fit.
inline constexpr std::int64_t kMostChangedOps = 300'000, kMostChangedOpsUnfit = 2'000'000;

// The job as `input` says it, each change added to what it says.
MemoryChanges memory_changes(const JobInput& input, const Job& job, const StepRun& run);

// Frees 1 % of the peak or 64 MiB, at least; of those the one that costs least time per byte, one that costs none before all others.
std::optional<std::size_t> cheapest_change(const MemoryChanges& changes);

}  // namespace stepsim
