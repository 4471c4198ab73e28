#include "sim/waits.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>

namespace stepsim {

namespace {

constexpr std::int32_t kDidNotRun = -1;

}  // namespace

Waits::Waits(const OpGraph& graph, const StepResult& result) : graph_(graph), result_(result) {
  run_.assign(graph.ops().size(), kDidNotRun);
  before_.resize(graph.ops().size());
  for (std::size_t i = 0; i < result.timeline.size(); ++i) run_[at(result.timeline[i].op.index)] = static_cast<std::int32_t>(i);
  note_streams();
  note_queues_and_ready_streams();
  note_gated_pools();
  note_launches();
  std::sort(before_parts_.begin(), before_parts_.end());
}

const OpRun* Waits::run(OpId op) const {
  const std::int32_t found = run_[at(op.index)];
  return found == kDidNotRun ? nullptr : &result_.timeline[at(found)];
}

void Waits::note(OpId waiting, OpId before) {
  if (!before.valid()) return;
  if (graph_.parts(waiting).size() > 1) {
    before_parts_.emplace_back(waiting, before);
    return;
  }
  OpId& known = before_[at(waiting.index)];
  if (!known.valid()) {
    known = before;
    return;
  }
  const TimePoint end = run(before)->end, known_end = run(known)->end;
  if (end > known_end || (end == known_end && before < known)) known = before;
}

void Waits::note_streams() {
  for (std::int32_t stream = 0; at(stream) < graph_.streams().size(); ++stream) {
    if (graph_.streams()[at(stream)].any_ready_op) continue;
    OpId before{};
    for (const OpId op : graph_.stream_order(StreamId{stream})) {
      if (run(op) == nullptr) continue;
      note(op, before);
      before = op;
    }
  }
}

TimePoint Waits::occupied(OpId op, std::int32_t part) const {
  const TimePoint start = run(op)->start;
  if (graph_.parts(op).size() < 2) return start;
  const auto before = [](const PartRun& a, const std::pair<OpId, std::int32_t>& b) { return std::pair(a.op, a.part) < b; };
  const auto found = std::lower_bound(result_.parts.begin(), result_.parts.end(), std::pair(op, part), before);
  if (found == result_.parts.end() || found->op != op || found->part != part) return start;
  return std::min(found->occupied, start);
}

// A queue frees its slots as ops end; a stream that starts any ready op is one with one slot. A part has them from when it is in place.
void Waits::note_queues_and_ready_streams() {
  struct Use {
    TimePoint begin{}, start{}, end{};
    OpId op{};
    std::size_t server = 0;
  };
  const std::size_t queues = graph_.queues().size();
  const auto starts_any = [](const Stream& stream) { return stream.any_ready_op; };
  if (queues == 0 && std::none_of(graph_.streams().begin(), graph_.streams().end(), starts_any)) return;
  std::vector<Use> uses;
  for (const OpRun& its_run : result_.timeline) {  // by start, then op: where nothing waits in place, the order that is wanted
    const OpId op = its_run.op;
    const std::span<const StreamId> parts = graph_.parts(op);
    for (std::int32_t part = 0; at(part) < parts.size(); ++part) {
      const std::size_t stream = at(parts[at(part)].index);
      const bool any_ready = graph_.streams()[stream].any_ready_op;
      const std::span<const QueueId> taken = graph_.queues(op, part);
      if (!any_ready && taken.empty()) continue;
      const TimePoint begin = occupied(op, part);
      for (const QueueId queue : taken) uses.push_back({begin, its_run.start, its_run.end, op, at(queue.index)});
      if (any_ready) uses.push_back({begin, its_run.start, its_run.end, op, queues + stream});
    }
  }
  const auto sooner = [](const Use& a, const Use& b) { return std::tie(a.begin, a.start, a.op) < std::tie(b.begin, b.start, b.op); };
  if (!std::is_sorted(uses.begin(), uses.end(), sooner)) std::stable_sort(uses.begin(), uses.end(), sooner);
  struct Server {
    using End = std::pair<TimePoint, OpId>;
    std::priority_queue<End, std::vector<End>, std::greater<>> busy;
    OpId freed{};  // what ended last
  };
  std::vector<Server> servers(queues + graph_.streams().size());
  for (const Use& use : uses) {
    Server& server = servers[use.server];
    for (; !server.busy.empty() && server.busy.top().first <= use.begin; server.busy.pop()) {
      const OpId ended = server.busy.top().second;
      if (!server.freed.valid() || run(server.freed)->end < run(ended)->end) server.freed = ended;
    }
    note(use.op, server.freed);
    if (use.begin < use.end) server.busy.emplace(use.end, use.op);  // nobody waits for one without duration
  }
}

void Waits::note_gated_pools() {
  const auto gated = [](const Pool& pool) { return pool.gated; };
  if (std::none_of(graph_.pools().begin(), graph_.pools().end(), gated)) return;
  std::vector<OpId> freed(graph_.pools().size());
  for (const MemoryEvent& event : result_.memory) {
    const std::int32_t pool = graph_.storages()[at(event.storage.index)].pool;
    if (pool < 0 || !graph_.pools()[at(pool)].gated || !event.by.valid() || run(event.by) == nullptr) continue;
    if (event.bytes.value < 0) {
      freed[at(pool)] = event.by;
    } else {
      note(event.by, freed[at(pool)]);
    }
  }
}

void Waits::note_launches() {
  for (std::int32_t issuer = 0; at(issuer) < graph_.issuers().size(); ++issuer) {
    OpId held{};
    for (const OpId op : graph_.issue_order(IssuerId{issuer})) {
      OpId latest{};
      for (const OpId before : graph_.issue_after(op)) {
        if (run(before) == nullptr) continue;
        const bool later = !latest.valid() || run(latest)->end < run(before)->end;
        if (later || (run(latest)->end == run(before)->end && before < latest)) latest = before;
      }
      if (latest.valid()) held = latest;
      if (!held.valid()) continue;
      if (held_up_.empty()) held_up_.resize(graph_.ops().size());
      held_up_[at(op.index)] = held;
    }
  }
}

std::optional<Waits::Cause> Waits::last_cause(OpId waiting, TimePoint until) const {
  std::optional<Cause> last;
  const auto consider = [&](const Cause& cause) {
    if (cause.met > until) return;
    if (last && (cause.met < last->met || (cause.met == last->met && last->op <= cause.op))) return;
    last = cause;
  };
  const auto consider_end = [&](OpId op) {
    if (const OpRun* its_run = run(op)) consider({.op = op, .met = its_run->end});
  };
  for (const Edge& edge : graph_.predecessors(waiting)) {
    const OpRun* from = run(edge.from);
    if (from == nullptr) continue;
    const bool only_start = edge.kind == EdgeKind::kStartToStart;
    consider({.op = edge.from, .met = only_start ? from->start : from->end, .only_start = only_start});
  }
  if (before_[at(waiting.index)].valid()) consider_end(before_[at(waiting.index)]);
  if (graph_.parts(waiting).size() > 1) {
    auto pair = std::lower_bound(before_parts_.begin(), before_parts_.end(), std::pair(waiting, OpId{}));
    for (; pair != before_parts_.end() && pair->first == waiting; ++pair) consider_end(pair->second);
  }
  // A launch at 0 is known from the start; at one time with an op, the op is named.
  const OpRun* its_run = run(waiting);
  if (its_run != nullptr && graph_.op(waiting).issuer.valid() && its_run->issued.count() > 0 && its_run->issued <= until) {
    if (!last || last->met < its_run->issued) last = Cause{.op = {}, .met = its_run->issued};
  }
  return last;
}

}  // namespace stepsim
