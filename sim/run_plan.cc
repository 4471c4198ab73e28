#include "sim/run_plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "sim/check.h"

namespace stepsim {

namespace {

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
    if (!marker) costs.push_back(from.costs.row_on(op.work, stream.device, from.graph.side(id, part_index)));
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

// The candidates of every stream, ops with several parts by the part that is there: they are found in one walk through the ops.
void own_order(const OpGraph& graph, RunPlan& plan) {
  std::vector<OpId> order(plan.ops());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const OpId op{static_cast<std::int32_t>(i)};
    order[at(graph.issue_position(op))] = op;
  }
  std::vector<std::size_t> next;  // by stream
  std::size_t end = 0;
  for (std::size_t i = 0; i < graph.streams().size(); ++i) {
    next.push_back(end);
    end += graph.stream_order(StreamId{static_cast<std::int32_t>(i)}).size();
  }
  plan.owned_order.resize(end);
  for (const OpId op : order) {
    std::int32_t candidate = (plan.flags[at(op.index)] & RunPlan::kParts) ? plan.first_part[at(op.index)] : op.index;
    for (const StreamId stream : graph.parts(op)) plan.owned_order[next[at(stream.index)]++] = OpId{candidate++};
  }
}

void add_streams(const OpGraph& graph, RunPlan& plan) {
  const bool owned = !plan.parts.empty();
  if (owned) own_order(graph, plan);
  std::size_t begin = 0;
  for (std::size_t i = 0; i < graph.streams().size(); ++i) {
    const std::span<const OpId> order = graph.stream_order(StreamId{static_cast<std::int32_t>(i)});
    plan.streams.push_back(owned ? std::span<const OpId>(plan.owned_order).subspan(begin, order.size()) : order);
    begin += order.size();
    if (graph.streams()[i].any_ready_op) plan.streams.back() = {};
  }
}

// Which parts of an op with several an edge concerns: found by device, so that a row over thousands of devices takes no square of them.
class ConcernedParts {
 public:
  explicit ConcernedParts(const OpGraph& graph) : graph_(graph) {}

  void of_op(OpId to) {
    by_device_.clear();
    for (const StreamId part : graph_.parts(to)) by_device_.push_back({device(part), static_cast<std::int32_t>(by_device_.size())});
    std::sort(by_device_.begin(), by_device_.end());
  }
  // Calls `use` with the number of each, ascending.
  template <class Use>
  void for_each(const Edge& edge, const Use& use) {
    found_.clear();
    for (const StreamId stream : graph_.parts(edge.from)) {
      auto part = std::lower_bound(by_device_.begin(), by_device_.end(), Place{device(stream), 0});
      for (; part != by_device_.end() && part->first == device(stream); ++part) found_.push_back(part->second);
    }
    std::sort(found_.begin(), found_.end());
    found_.erase(std::unique(found_.begin(), found_.end()), found_.end());
    for (const std::int32_t part : found_) use(part);
    if (!found_.empty()) return;
    for (std::int32_t part = 0; at(part) < by_device_.size(); ++part) use(part);
  }

 private:
  using Place = std::pair<DeviceId, std::int32_t>;  // of a part
  DeviceId device(StreamId stream) const { return graph_.streams()[at(stream.index)].device; }

  const OpGraph& graph_;
  std::vector<Place> by_device_;
  std::vector<std::int32_t> found_;
};

RunPlan::Successors& successors(RunPlan& plan, EdgeKind kind) { return kind == EdgeKind::kEndToStart ? plan.at_end : plan.at_start; }

void add_successor(RunPlan& plan, const Edge& edge, std::int32_t candidate) {
  RunPlan::Successors& table = successors(plan, edge.kind);
  table.candidates[table.rows[at(edge.from.index)].end++] = candidate;
  ++plan.rows[at(candidate)].unmet;
}

// Where each row begins, from the sizes in `end`; all rows are empty then.
void open_rows(RunPlan::Successors& table) {
  std::size_t begin = 0;
  for (RunPlan::Successors::Row& row : table.rows) {
    const std::size_t size = row.end;
    row.begin = row.end = static_cast<std::uint32_t>(begin);
    begin += size;
    STEPSIM_CHECK(begin <= std::numeric_limits<std::uint32_t>::max());
  }
  table.candidates.resize(begin);
}

// Rows are made for all edges; those that the order of a stream already implies then leave them partly empty.
void add_successors(const OpGraph& graph, RunPlan& plan) {
  ConcernedParts concerned(graph);
  for (std::size_t i = 0; i < plan.ops(); ++i) {
    const OpId to{static_cast<std::int32_t>(i)};
    const bool several = plan.rows[i].stream == RunPlan::kSeveral;
    if (several) concerned.of_op(to);
    for (const Edge& edge : graph.predecessors(to)) {
      std::vector<RunPlan::Successors::Row>& rows = successors(plan, edge.kind).rows;
      if (rows.empty()) rows.resize(plan.ops());
      std::uint32_t& size = rows[at(edge.from.index)].end;
      several ? concerned.for_each(edge, [&size](std::int32_t) { ++size; }) : static_cast<void>(++size);
    }
  }
  if (plan.at_end.rows.empty() && plan.at_start.rows.empty()) return;
  open_rows(plan.at_end);
  open_rows(plan.at_start);
  for (std::size_t i = 0; i < plan.ops(); ++i) {
    const OpId to{static_cast<std::int32_t>(i)};
    const std::span<const Edge> edges = graph.predecessors(to);
    if (edges.empty()) continue;
    const std::int32_t stream = plan.rows[i].stream;
    if (stream == RunPlan::kSeveral) {
      concerned.of_op(to);
      for (const Edge& edge : edges) {
        concerned.for_each(edge, [&](std::int32_t part) { add_successor(plan, edge, plan.first_part[i] + part); });
      }
      continue;
    }
    const bool in_order = stream >= 0 && !graph.streams()[at(stream)].any_ready_op;
    for (const Edge& edge : edges) {
      const bool implied = in_order && edge.kind == EdgeKind::kEndToStart && plan.rows[at(edge.from.index)].stream == stream &&
                           graph.issue_position(edge.from) < graph.issue_position(to);
      if (!implied) add_successor(plan, edge, to.index);
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
