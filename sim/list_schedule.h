// A latency-hiding issue order from estimates and limits: a pure pass over the graph, before it runs. The engine then runs in that order.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "sim/op_graph.h"

namespace stepsim {

struct ListScheduleLimits {
  std::optional<Bytes> device_memory;        // live storages in schedule order, per device
  std::optional<std::int32_t> asynchronous;  // ops of copy or collective class started and not yet waited for
};

// Estimate of an op in any one unit; XLA's are blind to bytes (every asynchronous op 5,000, a GEMM 1,000).
using OpEstimate = std::function<std::int64_t(OpId)>;

// All ops in an order that respects edges; asynchronous ops as early as the limits allow, their consumers as late as their latency is covered.
std::vector<OpId> list_schedule(const OpGraph&, const OpEstimate&, const ListScheduleLimits&);

}  // namespace stepsim
