// Claims and releases of storages under a ledger rule: a pure pass over a graph and its timeline. Knows no reason why a storage exists.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/machine.h"
#include "sim/op_graph.h"
#include "sim/step_result.h"

namespace stepsim {

enum class LedgerRule : std::uint8_t {
  kIssueOrder,     // claim at host issue, then release what the op was last to hold; deferred frees when their event is polled (PyTorch)
  kDeviceOrder,    // claim at the op's start, release at the end of the last holder (own arenas)
  kScheduleOrder,  // liveness in issue order between copy start and copy done (XLA)
};

// Fills result.memory, out_of_memory, forced_frees from result.timeline, for device and host storages.
void record_memory(const OpGraph&, const Machine&, LedgerRule device, LedgerRule host, StepResult& result);

struct MemoryPeak {
  Bytes bytes;
  TimePoint at;
  std::vector<Bytes> by_bucket;  // of the role labels, at that instant
};

// The largest sum of live storages in one device's (or its host's) memory, and of which roles. First instant if reached twice.
MemoryPeak memory_peak(const OpGraph&, const StepResult&, DeviceId, MemorySpace);

// The largest sum over the storages whose role label is one of `roles` (a label, not a bucket).
Bytes peak_of_roles(const OpGraph&, const StepResult&, DeviceId, std::span<const LabelId> roles);

// Storages live at the peak, largest first (tie: lower id).
std::vector<StorageId> holders_at_peak(const OpGraph&, const StepResult&, DeviceId, MemorySpace);

}  // namespace stepsim
