// The recurrence of POFO (Beaumont, Eyraud-Dubois, Shilova, NeurIPS 2021) as ColossalAI's PofoSolver has it: which layers keep their saved
// sets, which segments run again, which tensors go to host memory. What it approximates: chain_baselines.h, pofo().
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "tools/studies/chain_writer.h"
#include "tools/studies/rotor.h"

namespace stepsim {

struct PofoPlan {
  ChainSchedule ops;  // without copies and drops
  ChainOffload offload;
};

class PofoTable {
 public:
  // Sizes in units of `unit`, rounded up. The chain must have copies; their one rate is the mean over all tensors.
  PofoTable(const Chain& chain, std::int64_t budget_units, std::int64_t unit);

  // The plan for so many units, not more than the table's. None: the recurrence finds none.
  std::optional<PofoPlan> plan(std::int64_t units);

 private:
  // At a boundary: the tensor there (a^layer, or abar^layer if `saved`) is in device memory.
  struct State {
    int layer = 0;
    bool saved = false;
    std::int64_t kept = 0;         // units of earlier tensors that stay in device memory
    std::int64_t to_offload = 0;   // units that are still to be copied out
    std::int64_t to_prefetch = 0;  // units to be copied in during the backward passes below
  };
  struct Choice {
    double time = 0;  // infinite: impossible
    int next = 0;     // boundary that follows; the layers up to it run again in the backward pass unless `keeps`
    bool keeps = false, offloads = false;
  };
  struct Passage {  // of the layers up to the next boundary, forward and backward
    double time = 0, offloaded = 0, prefetched = 0;
  };

  Choice best(const State& state);
  void consider(const State& state, const Passage& passage, int next, bool keeps, Choice& best);
  std::optional<Passage> kept_passage(const State& state) const;
  std::optional<Passage> rerun_passage(const State& state, int next) const;
  static State following(const State& state, std::int64_t input, const Passage& passage, int next, bool keeps, bool offloads);
  std::int64_t input_units(const State& state) const;
  std::int64_t units(std::int64_t size) const { return (size + unit_ - 1) / unit_; }

  const Chain& chain_;
  std::int64_t unit_;
  RotorTable rotor_;
  double rate_ = 0;                                    // units per time, either direction
  std::int64_t available_ = 0;                         // units beside the network's input, of the plan that is being made
  std::unordered_map<std::uint64_t, Choice> choices_;  // by packed State; never iterated
};

}  // namespace stepsim
