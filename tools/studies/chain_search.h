// The fastest schedule of a chain within a budget, and whether that is proven: A* over all schedules (recompute, and copies to host memory
// and back beside it). README.md says what is proven and how.
#pragma once

#include <cstdint>
#include <optional>

#include "tools/studies/chain_sequence.h"

namespace stepsim {

struct ChainSearchOptions {
  std::int64_t state_limit = 1'000'000;  // states that are stored; about 250 bytes each
  bool copies = true;                    // false: recompute only, though the chain says what copies take
  bool baselines = true;                 // starts from the best of chain_baselines(); false: the search finds all by itself
};

struct ChainSearchResult {
  std::optional<ChainSchedule> schedule{};  // none: nothing fits if `proven`, else none was found
  std::int64_t time = 0, peak = 0;          // of its replay; 0 without a schedule
  std::int64_t lower_bound = 0;             // no schedule within the budget ends earlier; `time` if that is proven
  std::int64_t expanded = 0, stored = 0;    // states
  bool proven = false;                      // that nothing is faster, or that nothing fits
};

// The schedule is settled() and replays within the budget. At most kMaximumSearchLayers (31) layers (STEPSIM_CHECK).
ChainSearchResult fastest_schedule(const Chain& chain, const ChainBudget& budget, const ChainSearchOptions& options = {});

// Whether any op of the chain needs more than the budget whatever else is dropped: a reason why nothing can fit, not the only one.
bool exceeds_alone(const Chain& chain, std::int64_t device_budget);

}  // namespace stepsim
