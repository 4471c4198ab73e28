#include "sim/ledger_steps.h"

#include "sim/prefetch.h"

namespace stepsim {

namespace {

constexpr TimePoint kDidNotRun = TimePoint::min();

// A time of each op's run, by op.
std::vector<TimePoint> times_of_ops(const OpGraph& graph, const std::vector<OpRun>& timeline, TimePoint OpRun::*time) {
  std::vector<TimePoint> times(graph.ops().size(), kDidNotRun);
  for (const OpRun& run : timeline) times[at(run.op.index)] = run.*time;
  return times;
}

}  // namespace

LaunchMerge::LaunchMerge(const OpGraph& graph, const std::vector<OpRun>& timeline, std::vector<LedgerStep> before)
    : graph_(graph), issued_(times_of_ops(graph, timeline, &OpRun::issued)), before_(std::move(before)) {
  sorted_.reserve(graph.issuers().size());
  sources_.emplace_back();
  for (std::int32_t issuer = 0; at(issuer) < graph.issuers().size(); ++issuer) {
    const std::span<const OpId> order = in_order_of_time(graph.issue_order(IssuerId{issuer}));
    if (!order.empty()) sources_.push_back({.order = order});
  }
  std::erase_if(sources_, [this](Source& source) { return !advance(source); });
  for (std::size_t place = sources_.size() / 2; place-- > 0;) sink(place);
}

std::span<const OpId> LaunchMerge::in_order_of_time(std::span<const OpId> order) {
  const auto earlier = [this](OpId a, OpId b) { return issued_[at(a.index)] < issued_[at(b.index)]; };
  if (std::is_sorted(order.begin(), order.end(), earlier)) return order;
  std::vector<OpId>& ran = sorted_.emplace_back();
  for (const OpId op : order) {
    if (issued_[at(op.index)] != kDidNotRun) ran.push_back(op);
  }
  std::stable_sort(ran.begin(), ran.end(), earlier);
  return ran;
}

// To the source's next step; false at its end.
bool LaunchMerge::advance(Source& source) const {
  if (source.order.empty()) {
    if (source.next == before_.size()) return false;
    source.head = before_[source.next++];
    return true;
  }
  while (source.next < source.order.size()) {
    const OpId op = source.order[source.next++];
    const TimePoint issued = issued_[at(op.index)];
    if (issued == kDidNotRun) continue;
    source.head = {.time = issued, .op = op, .claims = true, .releases = true};
    source.position = graph_.issue_position(op);
    prefetch(graph_.reads(op).data());  // its turn comes when the other threads have had theirs
    prefetch(graph_.writes(op).data());
    return true;
  }
  return false;
}

void LaunchMerge::take_next() {
  if (!advance(sources_.front())) {
    sources_.front() = sources_.back();
    sources_.pop_back();
  }
  if (sources_.size() > 1) sink(0);
}

void LaunchMerge::sink(std::size_t place) {
  const Source sunk = sources_[place];
  for (std::size_t child = 2 * place + 1; child < sources_.size(); child = 2 * place + 1) {
    if (child + 1 < sources_.size() && sooner(sources_[child + 1], sources_[child])) ++child;
    if (!sooner(sources_[child], sunk)) break;
    sources_[place] = sources_[child];
    place = child;
  }
  sources_[place] = sunk;
}

LaunchMerge launches_of(const OpGraph& graph, const std::vector<OpRun>& timeline) {
  const auto without_issuer = [&graph](OpId op) { return !graph.op(op).issuer.valid(); };
  std::size_t launched = 0;
  for (std::int32_t i = 0; at(i) < graph.issuers().size(); ++i) launched += graph.issue_order(IssuerId{i}).size();
  std::vector<LedgerStep> before;
  if (launched < graph.ops().size()) {
    for_each_device_step(graph, timeline, without_issuer, [&before](const LedgerStep& step) { before.push_back(step); });
  }
  return LaunchMerge(graph, timeline, std::move(before));
}

std::vector<LedgerStep> schedule_steps(const OpGraph& graph, const StepResult& result) {
  enum : std::uint8_t { kNotStarted, kStarted, kDone };
  std::vector<LedgerStep> steps;
  steps.reserve(result.timeline.size());
  std::vector<std::uint8_t> state(graph.ops().size(), kNotStarted);  // of asynchronous ops
  std::vector<TimePoint> place(at(graph.device_count()), TimePoint{});
  const std::vector<TimePoint> starts = times_of_ops(graph, result.timeline, &OpRun::start);
  std::vector<OpId> order(graph.ops().size());
  for (std::int32_t op = 0; at(op) < order.size(); ++op) order[at(graph.issue_position(OpId{op}))] = OpId{op};
  for (const OpId op : order) {
    TimePoint time = starts[at(op.index)];
    if (time == kDidNotRun) continue;
    const StreamId stream = graph.op(op).stream;
    const bool asynchronous = is_asynchronous(graph, op);
    if (stream.valid()) {
      TimePoint& here = place[at(graph.streams()[at(stream.index)].device.index)];
      if (!asynchronous) here = std::max(here, time);
      time = here;
    }
    for (const Edge& edge : graph.predecessors(op)) {
      if (edge.kind != EdgeKind::kEndToStart || state[at(edge.from.index)] != kStarted) continue;
      state[at(edge.from.index)] = kDone;
      steps.push_back({.time = time, .op = edge.from, .releases = true});
    }
    if (asynchronous) state[at(op.index)] = kStarted;
    steps.push_back({.time = time, .op = op, .claims = true, .releases = !asynchronous});
  }
  for (const OpId op : order) {
    if (state[at(op.index)] == kStarted) steps.push_back({.time = result.end, .op = op, .releases = true});
  }
  return steps;
}

}  // namespace stepsim
