// Two runs of one graph compared, usually a simulated and a measured one: by op, by kind of op, by stream. Knows no file format.
#pragma once

#include <span>
#include <vector>

#include "sim/op_graph.h"
#include "sim/step_result.h"

namespace stepsim {

// What ops of one kind and phase took in all, in either run.
struct KindDifference {
  LabelId phase{}, kind{};
  std::size_t ops = 0;
  Duration first{}, second{};
};

struct StreamDifference {
  StreamId stream{};
  Duration first_busy{}, second_busy{};  // sum of its ops
  // While it ran, the compute stream of its device ran too: what of a copy is hidden.
  Duration first_overlap{}, second_overlap{};
};

struct TimelineDifference {
  TimePoint first_end{}, second_end{};
  std::vector<KindDifference> kinds{};      // largest |first - second| first; tie: first op
  std::vector<StreamDifference> streams{};  // that have ops
  double median_op_error = 0;               // of |first / second - 1| over ops that took time in the second
  double weighted_op_error = 0;             // sum of |first - second| over the sum of second
  double end_error() const;                 // first / second - 1
};

// Ops that ran in both. STEPSIM_CHECK: at least one did.
TimelineDifference timeline_difference(const OpGraph& graph, const StepResult& first, const StepResult& second);

// A graph and a run of it.
struct GraphRunView {
  const OpGraph* graph = nullptr;
  const StepResult* result = nullptr;
};

// Several runs as one result of their graphs side by side (sim/append_graph.h side_by_side): what the writers of traces take.
StepResult joined_runs(std::span<const GraphRunView> runs);

}  // namespace stepsim
