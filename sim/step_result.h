// What a run of a graph gives, simulated or measured: when each op ran, what was claimed and released, and whether it fitted.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/op_graph.h"
#include "sim/units.h"

namespace stepsim {

struct OpRun {
  OpId op{};
  TimePoint issued{};  // when its launch was done on the host
  TimePoint start{}, end{};
  Duration slowed{};  // how much longer than alone: (end - start) - fixed - alone
};

struct PartRun {  // of rendezvous ops only: from when a part occupied its stream, waiting for the others
  OpId op{};
  std::int32_t part = 0;
  TimePoint occupied{};
};

// One claim (bytes > 0) or release (bytes < 0), at the time of the ledger rule: host issue time under issue order.
struct MemoryEvent {
  TimePoint at{};
  StorageId storage{};
  OpId by{};  // the op that claims or was last to hold; none: resident, or a deferred free
  Bytes bytes{};
};

struct OutOfMemory {         // the first claim above capacity
  std::optional<OpId> op{};  // none: the residents alone exceed it
  DeviceId device{};
  MemorySpace space = MemorySpace::kDevice;
  TimePoint at{};
  Bytes requested{}, available{};
  std::vector<StorageId> holders{};  // what is live then, largest first
};

struct Deadlock {
  OpId first_waiting{};         // least id among those that could be next
  std::vector<OpId> holders{};  // what holds what it waits for
  std::vector<OpId> cycle{};    // of ops waiting for each other; may be empty
};

struct StepResult {
  std::vector<OpRun> timeline{};               // by (start, op); after a deadlock only the ops that ran
  std::vector<PartRun> parts{};                // by (op, part)
  std::vector<MemoryEvent> memory{};           // by (at, order of the ledger); residents first, at 0
  TimePoint end{};                             // of the last op
  std::optional<OutOfMemory> out_of_memory{};  // the step is simulated to its end all the same
  std::optional<Deadlock> deadlock{};
  bool forced_frees = false;  // a claim fitted only by treating deferred frees as done: time is not to be trusted near capacity
  std::uint64_t events = 0;   // of the event loop
};

// A hash of the timeline (op, start, end), the memory log and the outcome: equal on every machine and build type.
std::uint64_t fingerprint(const StepResult&);

}  // namespace stepsim
