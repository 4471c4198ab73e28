// Byte counters of the gated pools: an op whose first writes would not fit waits, first come first served, all or nothing.
//
// A storage is claimed when the first op that writes it starts and returned when the last of the ops that read, write or hold it has ended
// (never, if live_at_end). Residents are there from the beginning. Nobody overtakes: while an op waits, a later one waits behind it even if
// it would fit.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sim/op_graph.h"
#include "sim/ready_set.h"

namespace stepsim {

class PoolGate {
 public:
  explicit PoolGate(const OpGraph&);

  bool any() const { return !use_begin_.empty(); }
  // Whether the op writes into gated pools, or uses a storage there and so may free it.
  bool concerns(OpId op) const { return use_begin_[index(op)] != use_begin_[index(op) + 1]; }

  // The pool that stops the op, if one does.
  std::optional<std::int32_t> stopped_by(const Ready&) const;
  void wait(std::int32_t pool, const Ready& ready) { pools_[at(pool)].waiting.push(ready); }
  void claim(OpId);  // the op starts
  void ended(OpId);  // frees what it was the last to hold
  // The first in line of a pool in which the op has storages, if it now fits: it is taken out of the line. Call until none.
  std::optional<Ready> next(OpId);

  // For a report: ops not yet ended that hold bytes of the pools that the op waits for, and who is before it in the line.
  std::vector<OpId> holders(OpId) const;

 private:
  struct Use {  // of one storage by one op, as often as the op names it
    StorageId storage{};
    std::int32_t pool = 0;
    bool writes = false;
  };
  struct PoolState {
    std::int64_t left = 0;
    ReadySet waiting;
  };
  struct StorageState {
    std::uint32_t uses = 0;  // by ops that have not ended
    bool claimed = false;
  };
  static std::size_t index(OpId op) { return static_cast<std::size_t>(op.index); }
  std::span<const Use> uses(OpId op) const {
    return std::span<const Use>(uses_).subspan(use_begin_[index(op)], use_begin_[index(op) + 1] - use_begin_[index(op)]);
  }
  std::int64_t wanted(OpId, std::int32_t pool) const;

  const OpGraph& graph_;
  std::vector<PoolState> pools_;
  std::vector<StorageState> storages_;
  std::vector<Use> uses_;
  std::vector<std::uint32_t> use_begin_;  // by op; empty if no storage is in a gated pool
  std::vector<bool> has_ended_;           // by op
};

}  // namespace stepsim
