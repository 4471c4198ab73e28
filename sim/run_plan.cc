#include "sim/run_plan.h"

#include <algorithm>

namespace stepsim {

namespace {

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

struct Sources {
  const OpGraph& graph;
  std::span<const Stream> streams;
  OpCosts& costs;
};

bool is_marker(const OpGraph& graph, WorkId work) { return std::holds_alternative<Marker>(graph.work(work)); }

// Rows of the parts, behind all ops; they go into `part_rows` until the rows of the ops are complete.
void add_parts(const Sources& from, OpId id, RunPlan& plan, std::vector<RunPlan::Row>& part_rows) {
  if (plan.first_part.empty()) plan.first_part.assign(from.graph.ops().size(), -1);
  const Op& op = from.graph.op(id);
  const bool marker = is_marker(from.graph, op.work);
  plan.first_part[at(id.index)] = static_cast<std::int32_t>(from.graph.ops().size() + plan.parts.size());
  std::vector<std::int32_t> costs;
  std::int32_t part_index = 0;
  for (const StreamId part : from.graph.parts(id)) {
    const Stream& stream = from.streams[at(part.index)];
    if (!marker) costs.push_back(from.costs.row_on(op.work, stream.device));
    if (stream.any_ready_op) plan.unordered.push_back(static_cast<std::int32_t>(from.graph.ops().size() + plan.parts.size()));
    plan.parts.push_back({id, part_index++});
    part_rows.push_back({.unmet = 1, .stream = part.index, .priority = op.priority, .cost = marker ? -1 : costs.back()});
  }
  plan.rows.push_back({.unmet = static_cast<std::int32_t>(from.graph.parts(id).size()),
                       .stream = RunPlan::kSeveral,
                       .priority = op.priority,
                       .cost = marker ? -1 : from.costs.together(costs)});
}

void add_candidates(const Sources& from, RunPlan& plan) {
  const OpGraph& graph = from.graph;
  const std::span<const Op> ops = graph.ops();
  const bool any_queues = !graph.queues().empty();
  std::vector<RunPlan::Row> part_rows;
  plan.rows.reserve(ops.size());
  plan.flags.resize(ops.size());
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Op& op = ops[i];
    const OpId id{static_cast<std::int32_t>(i)};
    const bool marker = is_marker(graph, op.work);
    std::uint8_t flags = marker ? RunPlan::kMarker : 0;
    if (op.issuer.valid()) flags |= RunPlan::kIssued;
    plan.any_launch_group = plan.any_launch_group || op.launch_group >= 0;
    const std::size_t parts = graph.parts(id).size();
    if (parts > 1) {
      flags |= RunPlan::kQueues | RunPlan::kParts;
      add_parts(from, id, plan, part_rows);
    } else {
      RunPlan::Row row{.unmet = 1, .stream = op.stream.index, .priority = op.priority, .cost = -1};
      const bool any_ready_op = parts == 1 && from.streams[at(op.stream.index)].any_ready_op;
      if (any_ready_op || (any_queues && !graph.queues(id, 0).empty())) flags |= RunPlan::kQueues;
      if (any_ready_op || parts == 0) plan.unordered.push_back(id.index);
      if (!marker) row.cost = from.costs.row_on(op.work, from.streams[at(op.stream.index)].device);
      plan.rows.push_back(row);
    }
    plan.flags[i] = flags;
  }
  plan.rows.insert(plan.rows.end(), part_rows.begin(), part_rows.end());
}

OpId candidate_on(const OpGraph& graph, const RunPlan& plan, OpId op, StreamId stream) {
  if (!(plan.flags[at(op.index)] & RunPlan::kParts)) return op;
  const std::span<const StreamId> parts = graph.parts(op);
  std::int32_t part = 0;
  while (parts[at(part)] != stream) ++part;
  return OpId{plan.first_part[at(op.index)] + part};
}

void add_streams(const OpGraph& graph, RunPlan& plan) {
  if (!plan.parts.empty()) plan.owned_order.reserve(plan.rows.size());  // not moved afterwards: each candidate is in one stream
  for (std::size_t i = 0; i < graph.streams().size(); ++i) {
    const StreamId stream{static_cast<std::int32_t>(i)};
    const std::span<const OpId> order = graph.streams()[i].any_ready_op ? std::span<const OpId>() : graph.stream_order(stream);
    plan.streams.push_back(order);
    if (plan.parts.empty()) continue;
    const std::size_t begin = plan.owned_order.size();
    for (const OpId op : order) plan.owned_order.push_back(candidate_on(graph, plan, op, stream));
    plan.streams.back() = std::span<const OpId>(plan.owned_order).subspan(begin);
  }
}

RunPlan::Successors& successors(RunPlan& plan, EdgeKind kind) { return kind == EdgeKind::kEndToStart ? plan.at_end : plan.at_start; }

void add_successor(RunPlan& plan, const Edge& edge, std::int32_t candidate) {
  RunPlan::Successors& table = successors(plan, edge.kind);
  table.candidates[table.rows[at(edge.from.index)].end++] = candidate;
  ++plan.rows[at(candidate)].unmet;
}

void add_successor_parts(const OpGraph& graph, RunPlan& plan, const Edge& edge, OpId to) {
  const std::span<const StreamId> parts = graph.parts(to), from_parts = graph.parts(edge.from);
  const auto on_device_of = [&](StreamId part) {
    const auto device = [&](StreamId stream) { return graph.streams()[at(stream.index)].device; };
    return std::any_of(from_parts.begin(), from_parts.end(), [&](StreamId stream) { return device(stream) == device(part); });
  };
  const bool concerns_all = std::none_of(parts.begin(), parts.end(), on_device_of);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (!concerns_all && !on_device_of(parts[part])) continue;
    add_successor(plan, edge, plan.first_part[at(to.index)] + static_cast<std::int32_t>(part));
  }
}

// Rows are made for all edges; those that the order of a stream already implies then leave them partly empty.
void add_successors(const OpGraph& graph, RunPlan& plan) {
  for (std::size_t i = 0; i < plan.ops(); ++i) {
    const OpId to{static_cast<std::int32_t>(i)};
    for (const Edge& edge : graph.predecessors(to)) {
      std::vector<RunPlan::Successors::Row>& rows = successors(plan, edge.kind).rows;
      if (rows.empty()) rows.resize(plan.ops());
      rows[at(edge.from.index)].end += plan.rows[i].stream == RunPlan::kSeveral ? static_cast<std::uint32_t>(graph.parts(to).size()) : 1;
    }
  }
  for (RunPlan::Successors* table : {&plan.at_end, &plan.at_start}) {
    std::uint32_t begin = 0;
    for (RunPlan::Successors::Row& row : table->rows) {
      const std::uint32_t size = row.end;
      row = {.begin = begin, .end = begin};
      begin += size;
    }
    table->candidates.resize(begin);
  }
  if (plan.at_end.rows.empty() && plan.at_start.rows.empty()) return;
  for (std::size_t i = 0; i < plan.ops(); ++i) {
    const OpId to{static_cast<std::int32_t>(i)};
    const std::span<const Edge> edges = graph.predecessors(to);
    if (edges.empty()) continue;
    const std::int32_t stream = plan.rows[i].stream;
    const bool in_order = stream >= 0 && !graph.streams()[at(stream)].any_ready_op;
    for (const Edge& edge : edges) {
      const bool implied = in_order && edge.kind == EdgeKind::kEndToStart && plan.rows[at(edge.from.index)].stream == stream &&
                           graph.issue_position(edge.from) < graph.issue_position(to);
      if (implied) continue;
      if (stream == RunPlan::kSeveral) {
        add_successor_parts(graph, plan, edge, to);
      } else {
        add_successor(plan, edge, to.index);
      }
    }
  }
}

}  // namespace

RunPlan run_plan(const OpGraph& graph, OpCosts& costs) {
  RunPlan plan;
  add_candidates({graph, graph.streams(), costs}, plan);
  add_streams(graph, plan);
  add_successors(graph, plan);
  return plan;
}

}  // namespace stepsim
