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

// Storages that start and end the step otherwise than the graph says.
struct Residency {
  std::span<const StorageId> storages{};
  bool live_at_start = false, live_at_end = true;
};

// Fills result.memory, out_of_memory, forced_frees from result.timeline, for device and host storages. Its readings of the rules:
// - Issue order: an op without issuer has no host time; it claims at its start and releases at its end, as under device order. A foreign
// use is
//   any read, write or hold on another stream of the storage's device than the claiming one (than the compute stream, for a resident).
//   Deferred frees that no later claim polls are released at result.end.
// - Device order, at one instant: ends, then markers, then ops of zero duration (claim and release), then starts, each by op id.
// - Schedule order: one pass over the issue order. A copy, collective or point-to-point op off the compute stream claims at its own place
// (start)
//   and lets go of what it holds where the first op with an edge from it stands (done), before that op claims; without such an op, at the
//   end. The time of a place is the latest start so far of a synchronous op of that device.
// - Residents alone above capacity: `requested` is their sum, `available` the capacity, op none.
// - A storage without bytes has no events. A never-shrinking pool counts with its high-water mark; the log keeps its claims and releases.
//
// Returns device_peaks() for `changed`, which here costs next to nothing; nothing if that names no storage.
std::vector<Bytes> record_memory(const OpGraph&, const Machine&, LedgerRule device, LedgerRule host, StepResult& result,
                                 const Residency& changed);
void record_memory(const OpGraph&, const Machine&, LedgerRule device, LedgerRule host, StepResult& result);

// By device: the largest sum of live storages in its memory that record_memory() would lead to if the graph had been built with `changed`,
// which moves no op. Records nothing. A storage in a pool of device memory counts where the pool is.
std::vector<Bytes> device_peaks(const OpGraph&, const Machine&, const StepResult&, LedgerRule device, const Residency& changed);

struct MemoryPeak {
  Bytes bytes{};
  TimePoint at{};
  std::vector<Bytes> by_bucket{};  // of the role labels, at that instant
};

// The largest sum of live storages in one device's memory (or of its storages in host memory), and of which roles; a never-shrinking pool
// counts with its high-water mark and the roles that made it. First instant if reached twice.
MemoryPeak memory_peak(const OpGraph&, const StepResult&, DeviceId, MemorySpace);

// memory_peak() of all devices, in one pass over the log.
struct MemoryPeaks {
  std::vector<MemoryPeak> device{}, host{};  // by DeviceId
};
MemoryPeaks memory_peaks(const OpGraph&, const StepResult&);

// The largest sum over the storages in device memory whose role label is one of `roles` (a label, not a bucket).
Bytes peak_of_roles(const OpGraph&, const StepResult&, DeviceId, std::span<const LabelId> roles);
std::vector<Bytes> peaks_of_roles(const OpGraph&, const StepResult&, std::span<const LabelId> roles);  // by DeviceId

// Storages live at the peak, largest first (tie: lower id).
std::vector<StorageId> holders_at_peak(const OpGraph&, const StepResult&, DeviceId, MemorySpace);

}  // namespace stepsim
