// Storages that copies to the host and back need on the device and on the host, from a finished step's memory log. Knows no model.
#pragma once

#include <vector>

#include "sim/op_graph.h"
#include "sim/step_result.h"

namespace stepsim {

// A device storage that a copy takes to the host.
struct CopiedOutStorage {
  StorageId storage{};
  OpId copy{};
  OpId last_use{};  // in issue order: the copy, or a later op that reads or writes it
};

// A device storage that a copy from the host writes.
struct ReloadedStorage {
  StorageId storage{};
  OpId copy{};
  OpId first_use{};  // the first op, in issue order, of a compute stream that reads it; none: nothing does
};

// In the order of the copies' ids.
struct CopiedStorages {
  std::vector<CopiedOutStorage> out{};
  std::vector<ReloadedStorage> reloaded{};
};
CopiedStorages copied_storages(const OpGraph& graph);

// Bytes in a device's memory that are there for copies alone: copied out, behind the last use, not yet released; or copied back, before the
// first use. `at_peak`: when the device's memory is at its largest (the first such instant).
struct Staging {
  Bytes at_peak{}, peak{};
};
std::vector<Staging> staging_of(const OpGraph& graph, const StepResult& result, const CopiedStorages& copied);  // by device

// By device: the largest sum of the bytes that copies wrote into host storages that are live, whatever the buffers' sizes and pools.
std::vector<Bytes> host_copied(const OpGraph& graph, const StepResult& result);

}  // namespace stepsim
