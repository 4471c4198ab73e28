// A latency-hiding issue order from estimates and limits: a pure pass over the graph, before it runs. The engine then runs in that order.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "sim/op_graph.h"

namespace stepsim {

struct ListScheduleLimits {
  std::optional<Bytes> device_memory;        // live storages in schedule order, per device
  std::optional<std::int32_t> asynchronous;  // of those that may move: started and not yet waited for
  // Of an asynchronous op: whether it may move; empty: all may. Compilers schedule collectives too, but what stages of a pipeline send to
  // one another belongs to no compiled program, and to fill the waits for it undoes the pipeline's schedule.
  std::function<bool(OpId)> movable = {};
};

// Estimate of an op in any one unit; XLA's are blind to bytes (every asynchronous op 5,000, a GEMM 1,000).
using OpEstimate = std::function<std::int64_t(OpId)>;

// All ops in an order that respects edges, the order of reads and writes of each storage, and markers as fences of their streams. It is
// made from the graph's own order, with asynchronous ops that claim device memory just before the first op that waits for them: the thrifty
// order. From there ops are only moved forward: an asynchronous op to where nothing that it needs is outstanding and the limits allow it,
// another one to fill time in which the ops before it would wait. No move makes live memory exceed the limit; where the thrifty order
// itself exceeds a limit, the result does so too. Asynchronous ops that may not move are fixed: they keep their place in the graph's order
// among the ops of their devices, only markers and what may move pass them, and no time counts that others wait for them. Where nothing
// may move it is the graph's order. Copies, collectives and point-to-point ops on a compute stream are not asynchronous. The
// graph must be a DAG (find_cycle). Estimates are not negative.
std::vector<OpId> list_schedule(const OpGraph&, const OpEstimate&, const ListScheduleLimits&);

}  // namespace stepsim
