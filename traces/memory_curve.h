// Bytes in use over time by device, space and role, replayed from the claims and releases of a finished step. Knows no file format.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/op_graph.h"
#include "sim/step_result.h"

namespace stepsim {

struct MemoryPoint {
  TimePoint at;
  DeviceId device;
  MemorySpace space = MemorySpace::kDevice;
  Bytes in_use;
  std::span<const Bytes> by_bucket;  // of the role labels; as long as bucket_count(); valid during the call
  bool highest = false;              // within the instant, which ends lower
};

// How many role buckets the storages of the graph use: the largest bucket + 1.
std::size_t bucket_count(const OpGraph&);

// Names of that many buckets: `names` as far as they go, then "role 11", ...
std::vector<std::string> bucket_names(std::span<const std::string_view> names, std::size_t count);

// Calls `take` with the state after each instant (a multiple of `grain`, rounded down) at which an account changes, by (instant, device,
// space). Where memory rises above all that was reported and falls again within one instant, that highest state comes first, as a point of
// its own: the maximum of the points is the peak.
void replay_memory(const OpGraph&, const StepResult&, Duration grain, const std::function<void(const MemoryPoint&)>& take);

}  // namespace stepsim
