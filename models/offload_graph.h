// A graph of one micro-batch of a stack of equal layers whose saved tensors, one set a layer, go to the host and come back: what closed
// forms of offload are about. Durations are given; knows no layer and no size. Steps of models are step_builder.h.
//
// What is run (layers 1..L, the last keep_last of them stay on the device):
//  1. The compute stream runs forward 1..L, the head, backward L..1. Backward of a layer waits for its set.
//  2. A set is resident from the start of its forward, or of its copy in, to the end of its copy out, or of its backward. Forward and
//  copies
//     in start only while fewer than max_resident sets are.
//  3. The copy out of a layer is queued when its forward ends. Its copy in is queued, in backward order, when backward of the layer
//     `lookahead` above it starts (at the end of the head if there is none), with lookahead 0 when compute reaches its own backward,
//     without lookahead when the head ends. A copy in needs its copy out.
//  4. Copies of one direction run one at a time, in the order in which they are queued; with one engine those of both directions do.
//  5. A set counts on the host from the start of its copy out to the end of its copy in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/cost_model.h"
#include "sim/op_graph.h"
#include "sim/step_result.h"

namespace stepsim {

struct OffloadStack {
  std::int64_t layers = 1;
  Duration forward{}, backward{}, head{};  // of a layer, of a layer, once
  Duration copy_out{}, copy_in{};          // of a set
  std::int64_t keep_last = 0;              // more than the layers: all stay
  std::optional<std::int64_t> max_resident{}, lookahead{};
  std::int32_t engines = 2;  // 1: both directions share one
};

struct OffloadGraph {
  OpGraph graph;
  std::vector<GivenCostModel::Row> costs;
  OpId last_forward{}, last_backward{};
};

struct OffloadFigures {
  Duration forward_end{};                         // of the last forward
  Duration total{};                               // end of the last backward
  Duration exposed{};                             // what total has beyond the durations of the compute stream
  std::int64_t resident_sets = 0, host_sets = 0;  // the most at one time
};

// A gate that no order of events opens: the first forward that never starts, and why ("max_resident 1 ...").
struct OffloadFinding {
  std::int64_t layer = 0;
  std::string sentence;
};

// None: every op of the stack starts.
std::optional<OffloadFinding> offload_finding(const OffloadStack&);

// STEPSIM_CHECK: no finding, at least one layer, no more ops than graph_limit.h allows, no negative number, one or two engines, and all ops
// one behind another are over before the end of time. Every set is a storage of 1 byte; gates are edges. Run it on plain_machine(1) with
// the device-order ledger.
OffloadGraph offload_graph(const OffloadStack&);

// Of a run of offload_graph(stack).
OffloadFigures offload_figures(const OffloadStack&, const OffloadGraph&, const StepResult&);

}  // namespace stepsim
