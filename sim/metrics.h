// Where the time goes: a partition of the critical device's compute stream, in integers, that adds up to the step exactly.
// Groups by the builder's buckets; knows none of their names.
#pragma once

#include <functional>
#include <vector>

#include "sim/cost_model.h"
#include "sim/machine.h"
#include "sim/op_graph.h"
#include "sim/step_result.h"

namespace stepsim {

// How the builder's phases are to be read. Buckets of phase labels index these tables.
struct PhaseMeaning {
  // Waiting for a copy before an op of this phase is exposed in ... (index into exposed_copy).
  std::vector<std::int32_t> copy_wait_of_bucket{};
  // Waiting for a copy to the host before the first op of one of these phases counts as tail instead.
  std::vector<bool> copy_out_first_is_tail{};
  std::int32_t tail = 0;        // index into exposed_copy for waits at the end of the step
  std::int32_t copy_waits = 1;  // how many there are
};

struct TimePartition {
  DeviceId device{};                           // whose compute stream: the device that ends last
  std::vector<Duration> busy{};                // by bucket of the op's phase, less contention
  Duration contention{};                       // integral of (1 - x) over busy time
  std::vector<Duration> exposed_collective{};  // by bucket of the op's kind
  std::vector<Duration> exposed_copy{};        // by PhaseMeaning
  Duration bubble{};                           // waiting for another device
  Duration host{};                             // waiting for a launch
  Duration idle{};                             // waiting for nothing
  Duration total() const;                      // equals result.end
};

// What the compute stream does in [from, until), from < until.
struct TimeSpent {
  enum class On : std::uint8_t {
    kRunning,  // of `op`; what it is slowed by others included
    kOp,       // waiting for `op`, which runs on this device too or outside every stream
    kDevices,  // waiting for other devices: for `op`, which runs there, or for the other parts of `op`
    kLaunch,   // waiting for the host; no op
    kNothing   // no op
  };
  On on = On::kNothing;
  OpId op{};
  TimePoint from{}, until{};
};
// Called for intervals that touch but do not overlap and together are [0, result.end); those of one wait come the last first.
using TimeObserver = std::function<void(const TimeSpent&)>;

TimePartition time_partition(const OpGraph&, const StepResult&, const PhaseMeaning&, const TimeObserver& observer = {});

struct ResourceUse {
  ResourceId resource{};  // or
  QueueId queue{};        // exactly one is valid
  Duration busy{};        // time during which at least one op loads it, waiting parts excluded
  double load_s = 0;      // integral of its load over time, in full-load seconds
};
std::vector<ResourceUse> resource_use(const OpGraph&, const Machine&, const CostModel&, const StepResult&);

}  // namespace stepsim
