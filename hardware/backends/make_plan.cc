#include "hardware/backends/make_plan.h"

#include <utility>

#include "hardware/backends/storage_lifetimes.h"
#include "sim/check.h"

namespace stepsim {

namespace {

std::vector<OpId> issued(const OpGraph& graph) {
  std::vector<OpId> order(graph.ops().size());
  for (std::int32_t op = 0; at(op) < order.size(); ++op) order[at(graph.issue_position(OpId{op}))] = OpId{op};
  return order;
}

// By storage: the last op in issue order that touches it.
std::vector<OpId> last_users(const OpGraph& graph, const StorageLifetimes& lifetimes, const std::vector<OpId>& order) {
  std::vector<OpId> last(graph.storages().size());
  for (const OpId op : order) {
    for (const StorageId touched : lifetimes.touched_by(op)) last[at(touched.index)] = op;
  }
  return last;
}

}  // namespace

ExecutionPlan execution_plan(const OpGraph& graph, const KernelProgram& program, std::vector<StorageId> observed) {
  STEPSIM_CHECK(!program_error(graph, program));
  const StorageLifetimes lifetimes(graph);
  const std::vector<OpId> order = issued(graph), last = last_users(graph, lifetimes, order);
  ExecutionPlan plan{.residents = program.residents, .batch = program.batch, .adamw = program.adamw, .step = program.step};
  plan.observed = std::move(observed);
  for (const Stream& stream : graph.streams()) plan.streams.emplace_back(graph.label(stream.kind));
  for (const Storage& storage : graph.storages()) {
    plan.storages.push_back({storage.size, storage.space == MemorySpace::kHost, storage.live_at_start});
  }
  for (const OpId op : order) {
    PlannedOp planned{.op = op.index, .stream = graph.op(op).stream.index, .origin = graph.op(op).origin.index};
    for (const Edge& edge : graph.predecessors(op)) {
      if (graph.op(edge.from).stream == graph.op(op).stream) continue;
      (edge.kind == EdgeKind::kEndToStart ? planned.after_end : planned.after_start).push_back(edge.from.index);
    }
    planned.claims.assign(lifetimes.claimed_by(op).begin(), lifetimes.claimed_by(op).end());
    for (const StorageId touched : lifetimes.touched_by(op)) {
      const bool stays = graph.storages()[at(touched.index)].live_at_end;
      if (!stays && last[at(touched.index)] == op) planned.releases.push_back(touched);
    }
    planned.call = program.calls[at(op.index)];
    plan.ops.push_back(std::move(planned));
  }
  return plan;
}

}  // namespace stepsim
