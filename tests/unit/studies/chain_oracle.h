// The optimum of a small chain by the plainest means: breadth first over all states at every unit of time, one decision after the other,
// without bounds, dominance or orders of starts. Shares nothing with the search but the Chain.
#pragma once

#include <cstdint>
#include <optional>

#include "tools/studies/chain.h"

namespace stepsim {

struct OracleAnswer {
  bool finished = false;               // false: more states than allowed
  std::optional<std::int64_t> time{};  // none: nothing fits
};

// Ops may start at any whole time.
OracleAnswer oracle_time(const Chain& chain, const ChainBudget& budget, std::size_t most_states);

}  // namespace stepsim
