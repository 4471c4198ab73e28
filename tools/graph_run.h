// A graph run on a machine, with what every report of it shows: partition of the time, peaks, longest steps. Knows no model.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/cost_model.h"
#include "sim/critical_path.h"
#include "sim/machine.h"
#include "sim/memory_ledger.h"
#include "sim/metrics.h"
#include "sim/simulate.h"
#include "sim/step_result.h"

namespace stepsim {

struct DeviceMemory {
  DeviceId device{};
  MemoryPeak peak{};
  std::optional<Bytes> capacity{};
  std::optional<std::int64_t> margin() const;  // bytes left at the peak, below 0 if it does not fit; none without a capacity
  Bytes host_peak{};                           // of its storages in host memory
  std::optional<Bytes> host_capacity{};        // of the host, which other devices may share
};

struct GraphRun {
  Machine machine{};
  StepResult result{};
  TimePartition time{};
  std::vector<DeviceMemory> memory{};  // by device
  std::vector<Bytes> born_peaks{};     // by device: with the storages that were named born in the step; empty if none were
  std::size_t worst_device = 0;        // index into memory: the largest peak, the first of equals
  bool stopped = false;                // at out of memory: its time is not that of a step

  const DeviceMemory& worst() const { return memory[worst_device]; }
  const DeviceMemory* tightest() const;  // the device with the least left of its capacity, the first of equals; null: none has one
};

// The graph has at least one device. `born`: storages that are live at the start, and of which the peaks are wanted too that the step has
// when their first write makes them.
GraphRun run_graph(const OpGraph& graph, const Machine& machine, const CostModel& costs, const PhaseMeaning& phases,
                   const SimulateOptions& options, std::span<const StorageId> born = {});

// The longest `limit` steps of a path, in the order of time.
std::vector<PathStep> longest_steps(const std::vector<PathStep>& path, std::size_t limit);

// "gpu0 sm", "gpu0 copy engine out".
std::string resource_name(const ResourceUse& use, const OpGraph& graph, const Machine& machine);

// "gpu0"
std::string device_name(DeviceId device);

// "OUT OF MEMORY: backward L31 mlp dW wants 1.50 GiB, 0.20 GiB are free on gpu0" and who holds the rest: "weights 1.9, gradients 3.7 GiB".
struct OutOfMemoryText {
  std::string verdict, holders;
};
OutOfMemoryText out_of_memory_text(const OpGraph& graph, const StepResult& result, const std::vector<std::string>& role_names);

// What the first waiting op of a deadlock waits for: the ops that it needs or that hold what it needs ("b, c"), or
// "2 MiB of the pool of 1 MiB".
std::string wait_text(const OpGraph& graph, const Deadlock& deadlock);

// The first 12 names: "a, b, c"; then how many there are.
std::string op_list(const OpGraph& graph, const std::vector<OpId>& ops);

}  // namespace stepsim
