// When a graph's storages are claimed and released on a real backend: by the device-order rule of sim/memory_ledger.h, claimed at the start
// of the op that writes first, released at the end of the last one that reads, writes or holds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/op_graph.h"

namespace stepsim {

class StorageLifetimes {
 public:
  explicit StorageLifetimes(const OpGraph&);

  std::span<const StorageId> claimed_by(OpId op) const { return row(claims_, claim_begin_, op); }
  std::span<const StorageId> touched_by(OpId op) const { return row(touched_, touch_begin_, op); }  // read, written or held; each once
  // Ops that must end before it is released; none: it outlives the step.
  std::span<const std::int32_t> holders() const { return holders_; }
  std::span<const StorageId> residents() const { return residents_; }  // live at the start

 private:
  static std::span<const StorageId> row(const std::vector<StorageId>& values, const std::vector<std::size_t>& begin, OpId op) {
    const std::size_t i = at(op.index);
    return std::span<const StorageId>(values).subspan(begin[i], begin[i + 1] - begin[i]);
  }
  std::vector<StorageId> claims_, touched_, residents_;
  std::vector<std::size_t> claim_begin_, touch_begin_;  // by op
  std::vector<std::int32_t> holders_;                   // by storage; 0: never released
};

}  // namespace stepsim
