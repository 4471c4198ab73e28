// What stepsim_cuda_validate printed of one plan, and as a backend's results.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/backends/kernel_backend.h"

namespace stepsim {

struct RecordedPlan {
  std::vector<double> step_s{};
  std::vector<OpRun> ops{};
  Bytes device_peak{}, host_peak{};
  float gradient_norm = 0;
  std::map<StorageId, std::string> hashes{};  // of the contents of what was observed
};

struct RecordedPlans {
  std::string device;
  std::map<std::string, RecordedPlan> by_file{};  // by the name of the plan's file, without its folder
};

// InputError with `file` for text that is not what the program prints.
RecordedPlans parse_recorded(std::string_view text, const std::string& file);

// The best of its repeats. Contents of an observation are the hash of the real ones.
Execution execution_of(const RecordedPlan& plan, const std::vector<StorageId>& observed);
// Of a graph of so many ops.
MeasuredOps measured_ops_of(const RecordedPlan& plan, std::size_t ops);

}  // namespace stepsim
