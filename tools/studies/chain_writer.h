// From a plan of a chain to a schedule: which layers are checkpoints, what is copied, where drops stand.
#pragma once

#include <optional>
#include <vector>

#include "tools/studies/chain_sequence.h"

namespace stepsim {

// Ops without copies and drops; each tensor is dropped behind the last op that reads it. Where a layer has both its output and its saved
// set, ops read the saved set.
ChainSchedule with_drops(const Chain& chain, const ChainSchedule& ops);

// Consecutive layers, of which the saved sets are kept, or only the input of the first, in which case they run again before their backward
// pass.
struct ChainSegment {
  int first = 0, last = 0;
  bool kept = false;
};
ChainSchedule segment_ops(const std::vector<ChainSegment>& segments);

// Tensors that go to host memory, by layer.
struct ChainOffload {
  std::vector<bool> output, saved;
};
// The ops with copies of those tensors: out as soon as they are made; dropped when something needs the room, the first copied first; in
// again `lookahead` backward ops before the op that reads them. None where that does not replay within the budget.
std::optional<ChainSchedule> with_copies(const Chain& chain, const ChainBudget& budget, const ChainSchedule& ops,
                                         const ChainOffload& offload, int lookahead);
// Of lookaheads 0..3 the fastest.
std::optional<ChainSchedule> with_best_copies(const Chain& chain, const ChainBudget& budget, const ChainSchedule& ops,
                                              const ChainOffload& offload);

}  // namespace stepsim
