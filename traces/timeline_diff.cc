#include "traces/timeline_diff.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "sim/check.h"

namespace stepsim {

namespace {

struct Interval {
  TimePoint begin{}, end{};
};

std::vector<std::optional<OpRun>> by_op(const OpGraph& graph, const StepResult& result) {
  std::vector<std::optional<OpRun>> runs(graph.ops().size());
  for (const OpRun& run : result.timeline) runs[at(run.op.index)] = run;
  return runs;
}

Duration length(const OpRun& run) { return run.end - run.start; }

// When the stream runs ops, in order.
std::vector<Interval> busy(const OpGraph& graph, StreamId stream, const std::vector<std::optional<OpRun>>& runs) {
  std::vector<Interval> found;
  for (const OpId op : graph.stream_order(stream)) {
    if (const std::optional<OpRun>& run = runs[at(op.index)]; run && run->end > run->start) found.push_back({run->start, run->end});
  }
  return found;
}

// Both lists are in order and without overlap of their own.
Duration overlap(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  Duration sum{};
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const TimePoint begin = std::max(a[i].begin, b[j].begin), end = std::min(a[i].end, b[j].end);
    if (end > begin) sum += end - begin;
    (a[i].end < b[j].end ? i : j) += 1;
  }
  return sum;
}

Duration total(const std::vector<Interval>& intervals) {
  Duration sum{};
  for (const Interval& each : intervals) sum += each.end - each.begin;
  return sum;
}

std::optional<StreamId> compute_stream(const OpGraph& graph, DeviceId device) {
  for (std::int32_t stream = 0; at(stream) < graph.streams().size(); ++stream) {
    const Stream& each = graph.streams()[at(stream)];
    if (each.compute && each.device == device) return StreamId{stream};
  }
  return std::nullopt;
}

using Runs = std::vector<std::optional<OpRun>>;

std::vector<StreamDifference> stream_differences(const OpGraph& graph, const Runs& first, const Runs& second) {
  std::vector<StreamDifference> found;
  for (std::int32_t index = 0; at(index) < graph.streams().size(); ++index) {
    const StreamId stream{index};
    if (graph.stream_order(stream).empty()) continue;
    const std::vector<Interval> of_first = busy(graph, stream, first), of_second = busy(graph, stream, second);
    StreamDifference difference{.stream = stream, .first_busy = total(of_first), .second_busy = total(of_second)};
    const std::optional<StreamId> compute = compute_stream(graph, graph.streams()[at(index)].device);
    if (compute && *compute != stream) {
      difference.first_overlap = overlap(of_first, busy(graph, *compute, first));
      difference.second_overlap = overlap(of_second, busy(graph, *compute, second));
    }
    found.push_back(difference);
  }
  return found;
}

std::vector<KindDifference> kind_differences(const OpGraph& graph, const Runs& first, const Runs& second) {
  std::vector<KindDifference> found;
  std::map<std::pair<LabelId, LabelId>, std::size_t> places;
  for (std::size_t i = 0; i < graph.ops().size(); ++i) {
    if (!first[i] || !second[i]) continue;
    const Op& op = graph.ops()[i];
    const auto [place, added] = places.try_emplace({op.phase, op.kind}, found.size());
    if (added) found.push_back({.phase = op.phase, .kind = op.kind});
    KindDifference& kind = found[place->second];
    ++kind.ops;
    kind.first += length(*first[i]);
    kind.second += length(*second[i]);
  }
  const auto size = [](const KindDifference& kind) {
    return kind.first > kind.second ? kind.first - kind.second : kind.second - kind.first;
  };
  std::stable_sort(found.begin(), found.end(), [&](const KindDifference& a, const KindDifference& b) { return size(a) > size(b); });
  return found;
}

double ratio(Duration a, Duration b) { return as_double(a.count()) / as_double(b.count()); }

}  // namespace

double TimelineDifference::end_error() const { return ratio(first_end, second_end) - 1; }

TimelineDifference timeline_difference(const OpGraph& graph, const StepResult& first, const StepResult& second) {
  const Runs of_first = by_op(graph, first), of_second = by_op(graph, second);
  TimelineDifference difference{.first_end = first.end, .second_end = second.end};
  difference.kinds = kind_differences(graph, of_first, of_second);
  STEPSIM_CHECK(!difference.kinds.empty());
  difference.streams = stream_differences(graph, of_first, of_second);
  std::vector<double> errors;
  Duration apart{}, all{};
  for (std::size_t i = 0; i < graph.ops().size(); ++i) {
    if (!of_first[i] || !of_second[i] || length(*of_second[i]).count() == 0) continue;
    const Duration a = length(*of_first[i]), b = length(*of_second[i]);
    errors.push_back(std::abs(ratio(a, b) - 1));
    apart += a > b ? a - b : b - a;
    all += b;
  }
  if (errors.empty()) return difference;
  std::sort(errors.begin(), errors.end());
  difference.median_op_error = errors[(errors.size() - 1) / 2];
  difference.weighted_op_error = ratio(apart, all);
  return difference;
}

StepResult joined_runs(std::span<const GraphRunView> runs) {
  StepResult joined;
  std::int32_t ops = 0, storages = 0;  // of the graphs before
  for (const GraphRunView& each : runs) {
    for (OpRun run : each.result->timeline) {
      run.op.index += ops;
      joined.timeline.push_back(run);
    }
    for (PartRun part : each.result->parts) {
      part.op.index += ops;
      joined.parts.push_back(part);
    }
    for (MemoryEvent event : each.result->memory) {
      event.storage.index += storages;
      if (event.by.valid()) event.by.index += ops;
      joined.memory.push_back(event);
    }
    joined.end = std::max(joined.end, each.result->end);
    ops += static_cast<std::int32_t>(each.graph->ops().size());
    storages += static_cast<std::int32_t>(each.graph->storages().size());
  }
  std::stable_sort(joined.timeline.begin(), joined.timeline.end(),
                   [](const OpRun& a, const OpRun& b) { return std::pair(a.start, a.op) < std::pair(b.start, b.op); });
  std::stable_sort(joined.memory.begin(), joined.memory.end(), [](const MemoryEvent& a, const MemoryEvent& b) { return a.at < b.at; });
  return joined;
}

}  // namespace stepsim
