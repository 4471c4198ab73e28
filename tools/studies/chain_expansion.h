// The decisions of the exact search: which states follow a state. Internal to chain_search.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tools/studies/chain_state.h"

namespace stepsim {

struct ChainSuccessor {
  ChainState state{};
  int starts = 0;  // how many ops and copies start with the decisions
};

class ChainExpansion {
 public:
  explicit ChainExpansion(const ChainTables& tables) : tables_(tables) {}

  // All states that decisions at the next end of what runs lead to, but those that no best schedule passes (README.md, "What is left out").
  // Valid until the next call.
  std::span<const ChainSuccessor> successors(const ChainState& state);

 private:
  void choose_compute();
  void choose_copy_out(const ChainState& chosen);
  void choose_copy_in(const ChainState& chosen);
  void make_room(const ChainState& chosen);
  void drop_until_it_fits(const ChainState& chosen, TensorSet dropped, std::size_t next, std::int64_t missing);
  void drop(ChainState chosen, TensorSet dropped);
  bool could_compute_before(const ChainState& chosen, TensorSet dropped) const;
  bool could_copy_in_before(const ChainState& chosen, TensorSet dropped) const;
  bool fits_before(std::int64_t more, TensorSet dropped) const;

  const ChainTables& tables_;
  ChainState before_{}, now_{};  // the state to be expanded; the instant of its next end
  bool waited_ = false;          // that is later
  std::int64_t memory_before_ = 0;
  std::vector<TensorBit> candidates_;  // for dropping, the largest first
  std::vector<ChainSuccessor> found_;
};

}  // namespace stepsim
