#include "sim/critical_path.h"

#include <algorithm>
#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <boost/graph/topological_sort.hpp>
#include <iterator>
#include <optional>
#include <utility>

#include "sim/check.h"
#include "sim/saturating_sum.h"
#include "sim/waits.h"

namespace stepsim {

namespace {

PathStep step_of(const OpGraph& graph, const OpRun& run) {
  const StreamId stream = graph.op(run.op).stream;
  const DeviceId device = stream.valid() ? graph.streams()[at(stream.index)].device : DeviceId{};
  return {.op = run.op, .device = device, .start = run.start, .duration = run.end - run.start};
}

}  // namespace

std::vector<PathStep> critical_path(const OpGraph& graph, const StepResult& result) {
  if (result.timeline.empty()) return {};
  const Waits waits(graph, result);
  const auto ends_before = [](const OpRun& a, const OpRun& b) { return a.end != b.end ? a.end < b.end : b.op < a.op; };
  const OpRun* run = &*std::max_element(result.timeline.begin(), result.timeline.end(), ends_before);
  std::vector<PathStep> path{step_of(graph, *run)};
  Trail trail(graph);
  trail.enter(run->op, run->start);
  while (const std::optional<Waits::Cause> cause = waits.last_cause(run->op, run->start)) {
    const OpId before = cause->op.valid() ? cause->op : waits.held_up_launch(run->op);
    if (!before.valid()) break;
    run = waits.run(before);
    if (!trail.enter(before, run->start)) break;
    path.push_back(step_of(graph, *run));
  }
  std::reverse(path.begin(), path.end());
  return path;
}

Duration longest_path(const OpGraph& graph, std::span<const Duration> duration_of_op) {
  const std::size_t ops = graph.ops().size();
  STEPSIM_CHECK(duration_of_op.size() == ops);
  std::vector<std::pair<std::size_t, std::size_t>> arcs;
  for (std::int32_t op = 0; at(op) < ops; ++op) {
    for (const Edge& edge : graph.predecessors(OpId{op})) arcs.emplace_back(at(edge.from.index), at(op));
  }
  const boost::compressed_sparse_row_graph<boost::directedS> dag(boost::edges_are_unsorted, arcs.begin(), arcs.end(), ops);
  std::vector<std::size_t> last_first;
  last_first.reserve(ops);
  boost::topological_sort(dag, std::back_inserter(last_first));
  std::vector<Duration> start(ops, Duration(0));
  Duration longest{};
  for (auto op = last_first.rbegin(); op != last_first.rend(); ++op) {
    for (const Edge& edge : graph.predecessors(OpId{static_cast<std::int32_t>(*op)})) {
      const std::size_t from = at(edge.from.index);
      const Duration length = edge.kind == EdgeKind::kStartToStart ? Duration(0) : duration_of_op[from];
      start[*op] = std::max(start[*op], saturating_sum(start[from], length));
    }
    longest = std::max(longest, saturating_sum(start[*op], duration_of_op[*op]));
  }
  return longest;
}

}  // namespace stepsim
