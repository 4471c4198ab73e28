#include "tools/latency_hiding.h"

#include <algorithm>

#include "sim/list_schedule.h"

namespace stepsim {

namespace {

// XLA's latency-hiding scheduler, spec/offload.md section 1.4 (openxla/xla xla/service/gpu/gpu_latency_hiding_scheduler.cc): every
// asynchronous op lasts 5,000 units whatever its bytes, a matrix product or attention 1,000; what is left is nearly free.
std::int64_t blind_estimate(const OpGraph& graph, OpId op) {
  if (is_asynchronous(graph, op)) return 5000;
  const OpWork& work = graph.work(op);
  if (std::holds_alternative<Marker>(work)) return 0;
  return std::holds_alternative<Gemm>(work) || std::holds_alternative<Attention>(work) ? 1000 : 1;
}

// In picoseconds, alone on its device.
std::int64_t true_estimate(const OpGraph& graph, const CostModel& costs, OpId op) {
  const OpWork& work = graph.work(op);
  const std::span<const StreamId> parts = graph.parts(op);
  if (std::holds_alternative<Marker>(work) || parts.empty()) return 0;
  const Cost cost = costs.cost(work, graph.streams()[static_cast<std::size_t>(parts[0].index)].device);
  return (cost.fixed + cost.alone).count();
}

}  // namespace

OpGraph latency_hidden(OpGraph graph, const OffloadSchedule& schedule, const Machine& machine, const CostModel& costs) {
  if (schedule.order == OffloadSchedule::Order::kProgram) return graph;
  const auto is_copy = [&graph](OpId op) {
    const OpClass of = op_class(graph.work(op));
    return of == OpClass::kCopyToHost || of == OpClass::kCopyToDevice;
  };
  ListScheduleLimits limits{.device_memory = {}, .asynchronous = schedule.asynchronous_limit, .movable = is_copy};
  for (const std::optional<Bytes>& capacity : machine.device_capacity) {
    if (capacity && (!limits.device_memory || *capacity < *limits.device_memory)) limits.device_memory = capacity;
  }
  const bool blind = schedule.order == OffloadSchedule::Order::kLatencyHiding;
  const std::vector<OpId> order = list_schedule(
      graph, [&](OpId op) { return blind ? blind_estimate(graph, op) : true_estimate(graph, costs, op); }, limits);
  return with_issue_order(std::move(graph), order);
}

}  // namespace stepsim
