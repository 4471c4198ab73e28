// What a real machine's kernels take, as measured in one graph, as costs of other graphs. Knows no backend and no model.
#pragma once

#include <compare>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hardware/backends/kernel_backend.h"
#include "sim/cost_model.h"
#include "sim/machine.h"
#include "sim/op_graph.h"

namespace stepsim {

// A graph whose ops cost what was measured, on a machine whose one resource is what copies and kernels take from each other.
struct MeasuredCosts {
  OpGraph graph;
  Machine machine;
  GivenCostModel costs;
};

class KernelTimes {
 public:
  // Takes what the ops of a graph took; what is known already stays. Kernels: `copies` false, then all but copies are taken, else copies
  // alone.
  void add(const OpGraph& graph, const KernelProgram& program, const MeasuredOps& measured, bool copies);

  // An op takes what an equal op took (same kind, same work); else what one of its kind took, in proportion to its bytes or FLOPs, the
  // nearest in size. All times `slower`. STEPSIM_CHECK: one of each kind was measured.
  MeasuredCosts costs(const OpGraph& graph, const KernelProgram& program, double slower = 1) const;

 private:
  struct Key {
    std::string kind;  // of copies: their direction
    OpWork work{};
    bool accumulates = false;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Times {
    Duration alone{}, beside{};  // beside: a copy
  };
  static Key key_of(const OpGraph& graph, const KernelProgram& program, OpId op);
  Times times_of(const Key& key) const;

  std::map<Key, Times> times_;
  Duration handoff_{};     // what an op takes longer that waits for another stream
  double copy_speed_ = 1;  // of a copy beside kernels, of its speed alone
};

}  // namespace stepsim
