// A slow reading of the engine's rules, written apart from sim/: every instant looks at every op again, and every rate is computed anew
// for everything that runs. No indexes, no heaps, no running sums; only for graphs of some tens of ops.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "sim/cost_model.h"
#include "sim/op_graph.h"
#include "sim/step_result.h"

namespace stepsim {

class EngineOracle {
 public:
  EngineOracle(const OpGraph& graph, const CostModel& model);

  // timeline and parts as simulate() orders them; `stuck` if ops are left.
  struct Outcome {
    std::vector<OpRun> timeline;
    std::vector<PartRun> parts;
    bool stuck = false;
  };
  Outcome run();

 private:
  using Time = std::int64_t;
  __extension__ typedef unsigned __int128 Wide;
  struct PartState {
    std::optional<Time> met, occupied;
    std::optional<std::int32_t> in_line;  // of a pool
  };
  struct OpState {
    bool marker = false;
    std::vector<PartState> parts;  // one without a stream for a marker outside every stream
    std::optional<Time> issued, start, end;
    Time fixed = 0, alone = 0, issue = 0;
    std::vector<Load> loads;
    std::vector<std::vector<Load>> waiting_loads;  // by part
    Wide left = 0;
    std::uint64_t rate = 0;
  };
  struct Thread {
    Time free = 0;
    std::size_t next = 0;
  };
  struct Key {
    std::int32_t priority;
    Time met;
    std::int32_t op;
    std::size_t part;
    auto operator<=>(const Key&) const = default;
  };

  const OpGraph& graph_;
  std::vector<OpState> ops_;
  std::vector<Thread> threads_;
  Time now_ = 0;

  DeviceId device_of(StreamId stream) const { return graph_.streams()[static_cast<std::size_t>(stream.index)].device; }
  std::size_t count() const { return ops_.size(); }
  static OpId id(std::size_t op) { return OpId{static_cast<std::int32_t>(op)}; }
  bool ended(OpId op) const { return ops_[static_cast<std::size_t>(op.index)].end.has_value(); }
  bool started(OpId op) const { return ops_[static_cast<std::size_t>(op.index)].start.has_value(); }
  void set_costs(std::size_t op, const CostModel& model);
  bool edge_concerns(OpId from, OpId to, std::size_t part) const;
  bool could_start(std::size_t op, std::size_t part) const;
  bool at_head(std::size_t op, std::size_t part) const;
  void note_met();
  bool run_threads();
  bool end_ops();
  bool run_marker();
  bool start_one();
  bool has_slots(std::size_t op, std::size_t part) const;
  std::int64_t free_bytes(std::int32_t pool) const;
  bool claimed(StorageId storage) const;
  std::int64_t wanted(std::size_t op, std::int32_t pool) const;
  std::set<std::int32_t> pools(std::size_t op) const;
  bool stopped_by_pool(std::size_t op, std::size_t part);
  void leave_lines();
  Key key(std::size_t op, std::size_t part) const;
  void occupy(std::size_t op, std::size_t part);
  bool active(std::size_t op) const;
  void set_rates();
  std::optional<Time> next_time() const;
  void pass(Time to);
};

}  // namespace stepsim
