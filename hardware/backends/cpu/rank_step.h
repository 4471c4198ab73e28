// One rank's step while it runs: its memory, the state of its random numbers, its gradient norm. Threads of several streams share it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "hardware/backends/cpu/counted_arena.h"
#include "hardware/backends/cpu/rank_meeting.h"
#include "hardware/backends/cpu/rotary.h"
#include "hardware/backends/kernel_backend.h"
#include "hardware/backends/storage_lifetimes.h"

namespace stepsim::cpu {

struct Arenas {
  CountedArena device{}, host{};
};

class RankStep {
 public:
  // All must outlive it. `meetings`: by op, of collectives; shared by the ranks.
  struct Setting {
    const OpGraph& graph;
    const KernelProgram& program;
    const StorageLifetimes& lifetimes;
    const ExecuteOptions& options;
    Arenas& arenas;
    std::vector<std::unique_ptr<RankMeeting>>& meetings;
    std::size_t rank = 0;
  };
  // Claims what is resident and fills it.
  explicit RankStep(const Setting& setting);
  ~RankStep();
  RankStep(const RankStep&) = delete;
  RankStep& operator=(const RankStep&) = delete;

  // The clock of the step's times; before the first op.
  void start_clock(std::chrono::steady_clock::time_point origin) { origin_ = origin; }

  // Claims memory, runs the op's kernel, releases memory. False: its claim did not fit, or the step was stopped. `started` is called once
  // the op has its memory.
  bool run(OpId op, const std::atomic<bool>& stop, const std::function<void()>& started);

  // After all ops: what was measured.
  Execution finish();

 private:
  using RotaryKey = std::tuple<std::int64_t, std::int64_t, double>;  // sequence, head_dim, base
  const RotaryTable& table(const HeadShape& shape, double base) const { return tables_.at({shape.sequence, shape.head_dim, base}); }
  void add_tables();
  bool begin(OpId op);
  void end(OpId op);
  void fill_batch(StorageId storage);
  CountedArena& arena(StorageId storage);
  const Storage& storage(StorageId id) const { return set_.graph.storages()[at(id.index)]; }
  TimePoint now() const;
  void observe(StorageId storage);
  bool run_kernel(OpId op, const std::atomic<bool>& stop);  // false: the step was stopped meanwhile
  void record_out_of_memory(OpId op, StorageId wanted, TimePoint when);
  Draw drawn(OpId op, Draw draw);

  Setting set_;
  std::chrono::steady_clock::time_point origin_{};
  std::mutex mutex_;  // of all below but addresses_, which an op reads of what it has claimed or waited for
  StorageAddresses addresses_{};
  std::vector<std::int32_t> holders_;  // by storage: ops still to end
  std::vector<OpRun> runs_;            // by op
  std::vector<MemoryEvent> events_;
  std::vector<std::int32_t> place_of_observed_;  // by storage; -1: not observed
  std::vector<Observation> observed_;
  std::optional<OutOfMemory> out_of_memory_{};
  std::uint64_t next_offset_ = 0;
  std::vector<std::uint64_t> offset_of_;  // by op that draws: the state before it drew
  double squared_norm_ = 0;
  std::map<RotaryKey, RotaryTable> tables_;
};

}  // namespace stepsim::cpu
