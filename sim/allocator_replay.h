// The claims and releases of a finished step taken through a caching allocator on each device: what is reserved of the driver and not only
// held. Knows no reason why a storage exists.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "sim/caching_allocator.h"
#include "sim/op_graph.h"
#include "sim/step_result.h"

namespace stepsim {

// One device in one step.
struct StepAllocation {
  AllocatorUse at_peak{};  // of reserved bytes, where most is allocated, the first instant of it
  TimePoint peak_at{};
  AllocatorUse at_end{};                                   // what lives to the next step
  Bytes allocated_peak{}, active_peak{}, unusable_peak{};  // each at its own instant
  AllocatorUse at_allocated_peak{};
};

// The first claim that the limit left no room for.
struct AllocatorRefusal {
  std::int32_t step = 0;  // 0: the first
  TimePoint at{};
  OpId by{};  // none: a resident
  StorageId storage{};
  Bytes block{};
  Bytes limit{};
  AllocatorUse use{};  // then, after cached segments were given back
};

struct DeviceAllocation {
  std::vector<StepAllocation> steps{};  // in order
  std::int64_t retries = 0;             // in all steps, until a claim is refused
  std::optional<AllocatorRefusal> refused{};
};

// After each claim and release of the last step.
struct AllocatorSample {
  TimePoint at{};
  DeviceId device{};
  const AllocatorUse& use;
};

struct AllocatorReplay {
  AllocatorSettings settings{};
  // Of what is reserved, by device; none (or shorter): no limit. After a refusal there is none: the step is replayed to its end.
  std::vector<std::optional<Bytes>> limits{};
  std::int32_t steps = 1;  // one behind the other on the same cache
  // Residents that the first step makes: claimed by the first op that writes them.
  std::span<const StorageId> born{};
  std::function<void(const AllocatorSample&)> observer{};
};

// By device. The order is that of the log. A storage belongs to the stream of the op that claims it: its part on the storage's device; to
// the device's compute stream if it is a resident, or a collective writes it and its release waits for no event. Of a storage that was
// freed by event, the program lets go at the last use of it. A pool that never shrinks is claimed as it grows. Between steps what the next
// one has not at its start is released. Host memory is left out. Precondition: no more than kMostReplayed bytes live on a device at a time.
std::vector<DeviceAllocation> replayed_allocator(const OpGraph&, const StepResult&, const AllocatorReplay&);

inline constexpr std::int64_t kMostReplayed = std::int64_t{1} << 52;

}  // namespace stepsim
