// The memory curve as CSV: time_s,device,space,in_use_bytes,<one column a role>; one row at each instant at which it changes, two (the
// highest state first) where it reaches a new maximum and falls again within the instant, so that the largest in_use_bytes is the peak.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "sim/allocator_replay.h"
#include "sim/op_graph.h"
#include "sim/step_result.h"
#include "traces/text_block.h"

namespace stepsim {

// What an allocator holds over time. Samples come in order of time for each device.
class AllocatorCurve {
 public:
  explicit AllocatorCurve(std::int32_t devices) : devices_(static_cast<std::size_t>(devices)) {}
  void add(const AllocatorSample& sample);
  struct Point {
    TimePoint at{};
    Bytes allocated{}, reserved{};  // after all of the instant
    Bytes most_allocated{};         // within it
  };
  std::span<const Point> points(DeviceId device) const { return devices_[static_cast<std::size_t>(device.index)]; }

 private:
  std::vector<std::vector<Point>> devices_;
};

// time_s has 12 places (exact picoseconds), space is "device" or "host", `device` of host rows is the device whose host memory it is.
// With a curve, two columns more, allocated_bytes (blocks) and reserved_bytes; empty in rows of host memory.
void write_memory_csv(const OpGraph&, const StepResult&, std::span<const std::string_view> role_names, const TextSink&,
                      const AllocatorCurve* allocator = nullptr);

}  // namespace stepsim
