// The best persistent recompute schedule of a chain: rotor's recurrence (Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, "Optimal
// checkpointing for heterogeneous chains", hal-02352969), with every live byte counted, the gradient of the output included. Persistent:
// what is kept is kept until its backward pass, and an input is not dropped before what was made of it. README.md, "Baselines".
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tools/studies/chain_sequence.h"

namespace stepsim {

class RotorTable {
 public:
  // Sizes are counted in units of `unit`, rounded up, and the budget in whole units: exact for unit 1. Time O(L^3 M), memory O(L^2 M) for a
  // budget of M units.
  RotorTable(const Chain& chain, std::int64_t budget_units, std::int64_t unit);

  // Least time to run layers first..last forward and backward within `units`; the input of `first` is there and not counted, the gradient
  // of a^last is and counts. last = L + 1: with the loss. None: impossible.
  std::optional<std::int64_t> time(int first, int last, std::int64_t units) const;
  // Appends the ops of that optimum, without drops; it must be possible.
  void append_ops(int first, int last, std::int64_t units, ChainSchedule& schedule) const;
  // Units left beside the network's input.
  std::int64_t free_units() const { return free_units_; }

 private:
  struct Choice {
    std::int64_t time = 0;
    int checkpoint = 0;  // layer whose input is kept next; 0: `first` is run with everything kept
  };
  std::size_t place(int first, int last, std::int64_t units) const;
  std::optional<Choice> best(int first, int last, std::int64_t units) const;
  std::optional<Choice> best_kept(int first, int last, std::int64_t units) const;

  int layers_;
  std::int64_t budget_units_, free_units_;
  std::vector<std::int64_t> forward_, backward_, output_, saved_, gradient_, forward_transient_,
      backward_transient_;           // by layer, the loss L + 1
  std::vector<std::int64_t> times_;  // by place(); -1: impossible
};

}  // namespace stepsim
