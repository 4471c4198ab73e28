// How much of a step was costed by a profile: what was measured, what lies between measurements, what the model said.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "tools/step_run.h"

namespace stepsim {

struct OriginUse {
  std::size_t works = 0, ops = 0;  // works that differ; ops of them
  Duration time{};                 // of these ops, from start to end
};

struct ProfileUse {
  std::string file;
  std::size_t kernels = 0;             // in it
  std::array<OriginUse, 3> origins{};  // by CostOrigin
};

// None for a job without a profile.
std::optional<ProfileUse> profile_use(const Job& job, const StepRun& run);

// A sentence each: the job's, and what share of the time the profile decided.
std::vector<std::string> all_assumed(const Job& job, const StepRun& run);

}  // namespace stepsim
