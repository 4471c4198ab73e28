#include "engine_oracle.h"

#include <algorithm>
#include <limits>

namespace stepsim {

namespace {

__extension__ typedef unsigned __int128 Wide;
constexpr Wide kFull = Wide{1} << 48;

// Progressive filling (engine.md, "Sharing rule" and "Integers"), one stop at a time. Tables are maps; each round adds everything up again.
std::vector<std::uint64_t> filled(const std::vector<std::vector<Load>>& users) {
  std::map<std::int32_t, Wide> demand;
  for (const auto& loads : users) {
    for (const Load& load : loads) demand[load.resource.index] += Wide{load.peers} * load.fraction_2e30;
  }
  const auto contended = [&](const Load& load) { return load.fraction_2e30 > 0 && demand[load.resource.index] > (Wide{1} << 30); };
  std::vector<std::uint64_t> rate(users.size(), 0);
  std::vector<Load> slowest(users.size());  // the load with the largest u / w
  for (std::size_t i = 0; i < users.size(); ++i) {
    for (const Load& load : users[i]) {
      const Load& best = slowest[i];
      if (contended(load) && Wide{load.fraction_2e30} * best.weight > Wide{best.fraction_2e30} * load.weight) slowest[i] = load;
    }
    if (slowest[i].fraction_2e30 == 0) rate[i] = std::uint64_t{1} << 48;
  }
  for (;;) {
    std::map<std::int32_t, Wide> level;  // where each resource would be full
    std::map<std::int32_t, Wide> left, slope;
    for (std::size_t i = 0; i < users.size(); ++i) {
      for (const Load& load : users[i]) {
        if (!contended(load)) continue;
        const std::int32_t r = load.resource.index;
        left.try_emplace(r, Wide{1} << 78);
        const Wide use = Wide{load.peers} * load.fraction_2e30;
        if (rate[i] > 0) {
          left[r] -= std::min(left[r], use * rate[i]);
        } else {
          const Wide d = slowest[i].fraction_2e30;
          slope[r] += ((use * slowest[i].weight << 60) + d - 1) / d;
        }
      }
    }
    if (slope.empty()) return rate;
    Wide least = ~Wide{0};
    for (const auto& [r, sum] : slope) least = std::min(least, level[r] = std::min(kFull, (left[r] << 30) / sum));
    // The first op to reach x = 1, if one does not later than the first resource is full.
    std::size_t first = users.size();
    Wide first_at = 0;
    for (std::size_t i = 0; i < users.size(); ++i) {
      if (rate[i] > 0) continue;
      const Wide full_at = ((Wide{slowest[i].fraction_2e30} << 18) + slowest[i].weight - 1) / slowest[i].weight;
      if (first == users.size() || full_at < first_at) first = i, first_at = full_at;
    }
    if (first_at <= least) {
      rate[first] = std::uint64_t{1} << 48;
      continue;
    }
    for (std::size_t i = 0; i < users.size(); ++i) {
      bool stops = false;
      for (const Load& load : users[i])
        stops = stops || (contended(load) && level.count(load.resource.index) > 0 && level[load.resource.index] == least);
      if (rate[i] > 0 || !stops) continue;
      const Wide x = (least * slowest[i].weight << 30) / slowest[i].fraction_2e30;
      rate[i] = static_cast<std::uint64_t>(std::clamp(x, Wide{1}, kFull));
    }
  }
}

}  // namespace

EngineOracle::EngineOracle(const OpGraph& graph, const CostModel& model)
    : graph_(graph), ops_(graph.ops().size()), threads_(graph.issuers().size()) {
  for (std::size_t op = 0; op < count(); ++op) {
    ops_[op].marker = std::holds_alternative<Marker>(graph.work(id(op)));
    ops_[op].parts.resize(std::max<std::size_t>(1, graph.parts(id(op)).size()));
    if (!graph.op(id(op)).issuer.valid()) ops_[op].issued = 0;
    if (!ops_[op].marker) set_costs(op, model);
  }
}

void EngineOracle::set_costs(std::size_t op, const CostModel& model) {
  OpState& state = ops_[op];
  std::map<std::int32_t, Load> together;
  for (std::size_t part = 0; part < state.parts.size(); ++part) {
    const Cost cost =
        model.cost(graph_.work(id(op)), device_of(graph_.parts(id(op))[part]), graph_.side(id(op), static_cast<std::int32_t>(part)));
    state.fixed = std::max(state.fixed, cost.fixed.count());
    state.alone = std::max(state.alone, cost.alone.count());
    if (part == 0) state.issue = cost.issue.count();
    state.waiting_loads.emplace_back();
    for (const Load& load : cost.loads) {
      if (load.while_waiting) state.waiting_loads.back().push_back(load);
      Load& whole = together.try_emplace(load.resource.index, load).first->second;
      whole.fraction_2e30 = std::max(whole.fraction_2e30, load.fraction_2e30);
      whole.peers = std::max(whole.peers, load.peers);
      whole.weight = std::max(whole.weight, load.weight);
    }
  }
  for (const auto& [resource, load] : together) state.loads.push_back(load);
  state.left = Wide{static_cast<std::uint64_t>(state.alone)} << 48;
}

// A part waits for the edges from its own device, and for those from devices where the op has no part.
bool EngineOracle::edge_concerns(OpId from, OpId to, std::size_t part) const {
  const std::span<const StreamId> to_parts = graph_.parts(to);
  if (to_parts.size() <= 1) return true;
  bool own = false, any = false;
  for (const StreamId stream : graph_.parts(from)) {
    for (std::size_t other = 0; other < to_parts.size(); ++other) {
      const bool same = device_of(stream) == device_of(to_parts[other]);
      any = any || same;
      own = own || (same && other == part);
    }
  }
  return own || !any;
}

bool EngineOracle::at_head(std::size_t op, std::size_t part) const {
  const std::span<const StreamId> parts = graph_.parts(id(op));
  if (parts.empty() || graph_.streams()[at(parts[part].index)].any_ready_op) return true;
  for (const OpId before : graph_.stream_order(parts[part])) {
    if (before == id(op)) return true;
    if (!ended(before)) return false;
  }
  return false;
}

// Everything but slots and bytes.
bool EngineOracle::could_start(std::size_t op, std::size_t part) const {
  const OpState& state = ops_[op];
  if (!state.issued || *state.issued > now_ || !at_head(op, part)) return false;
  for (const Edge& edge : graph_.predecessors(id(op))) {
    if (!edge_concerns(edge.from, id(op), part)) continue;
    if (edge.kind == EdgeKind::kEndToStart ? !ended(edge.from) : !started(edge.from)) return false;
  }
  return true;
}

void EngineOracle::note_met() {
  for (std::size_t op = 0; op < count(); ++op) {
    for (std::size_t part = 0; part < ops_[op].parts.size(); ++part) {
      if (!ops_[op].parts[part].met && could_start(op, part)) ops_[op].parts[part].met = now_;
    }
  }
}

// Host threads that are free now launch what they may; true if one did.
bool EngineOracle::run_threads() {
  bool any = false;
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    Thread& thread = threads_[i];
    const std::span<const OpId> order = graph_.issue_order(IssuerId{static_cast<std::int32_t>(i)});
    if (thread.free > now_ || thread.next == order.size()) continue;
    std::size_t end = thread.next + 1;
    const std::int32_t group = graph_.op(order[thread.next]).launch_group;
    while (group >= 0 && end < order.size() && graph_.op(order[end]).launch_group == group) ++end;
    bool blocked = false;
    std::optional<Time> cost;
    for (std::size_t j = thread.next; j < end; ++j) {
      for (const OpId before : graph_.issue_after(order[j])) blocked = blocked || !ended(before);
      const OpState& op = ops_[at(order[j].index)];
      if (!op.marker && !cost) cost = op.issue;
    }
    // Launches of this thread of which no op has started.
    std::int32_t outstanding = 0;
    for (std::size_t j = 0; j < thread.next;) {
      const std::int32_t its_group = graph_.op(order[j]).launch_group;
      bool has_kernel = false, has_started = false;
      std::size_t k = j;
      do {
        has_kernel = has_kernel || !ops_[at(order[k].index)].marker;
        has_started = has_started || (!ops_[at(order[k].index)].marker && started(order[k]));
        ++k;
      } while (its_group >= 0 && k < thread.next && graph_.op(order[k]).launch_group == its_group);
      outstanding += has_kernel && !has_started ? 1 : 0;
      j = k;
    }
    if (blocked || (cost && outstanding >= graph_.issuers()[i].run_ahead)) continue;
    thread.free = now_ + cost.value_or(0);
    for (; thread.next < end; ++thread.next) ops_[at(order[thread.next].index)].issued = thread.free;
    any = true;
  }
  return any;
}

bool EngineOracle::end_ops() {
  bool any = false;
  for (std::size_t op = 0; op < count(); ++op) {
    OpState& state = ops_[op];
    if (state.marker || !state.start || state.end) continue;
    if (now_ >= *state.start + state.fixed && state.left == 0) {
      state.end = now_;
      any = true;
    }
  }
  return any;
}

bool EngineOracle::run_marker() {
  note_met();
  for (std::size_t op = 0; op < count(); ++op) {
    OpState& state = ops_[op];
    if (!state.marker || state.start) continue;
    bool all = true;
    for (PartState& part : state.parts) {
      if (part.met && !part.occupied) part.occupied = now_;
      all = all && part.met;
    }
    if (!all) continue;
    state.start = state.end = now_;
    return true;
  }
  return false;
}

// A slot in every queue of the part, and the stream if it starts any ready op.
bool EngineOracle::has_slots(std::size_t op, std::size_t part) const {
  std::map<std::int32_t, std::int32_t> used;
  std::set<std::int32_t> busy;
  for (std::size_t other = 0; other < count(); ++other) {
    for (std::size_t p = 0; p < ops_[other].parts.size(); ++p) {
      if (ops_[other].marker || !ops_[other].parts[p].occupied || ops_[other].end) continue;
      const auto queues = graph_.queues(id(other), static_cast<std::int32_t>(p));
      for (const QueueId queue : std::set<QueueId>(queues.begin(), queues.end())) ++used[queue.index];
      busy.insert(graph_.parts(id(other))[p].index);
    }
  }
  for (const QueueId queue : graph_.queues(id(op), static_cast<std::int32_t>(part))) {
    if (used[queue.index] >= graph_.queues()[at(queue.index)].slots) return false;
  }
  return busy.count(graph_.parts(id(op))[part].index) == 0;
}

bool EngineOracle::claimed(StorageId storage) const {
  bool written = graph_.storages()[at(storage.index)].live_at_start;
  for (std::size_t op = 0; op < count(); ++op) {
    for (const Tensor& tensor : graph_.writes(id(op))) {
      written = written || (tensor.storage == storage && started(id(op)) && !ops_[op].marker);
    }
  }
  return written;
}

std::int64_t EngineOracle::free_bytes(std::int32_t pool) const {
  std::int64_t left = graph_.pools()[at(pool)].capacity.value;
  for (std::size_t i = 0; i < graph_.storages().size(); ++i) {
    const Storage& storage = graph_.storages()[i];
    const StorageId storage_id{static_cast<std::int32_t>(i)};
    if (storage.pool != pool || !claimed(storage_id)) continue;
    bool held = storage.live_at_end, any_holder = false;
    for (std::size_t op = 0; op < count(); ++op) {
      bool holds = false;
      for (const Tensor& tensor : graph_.writes(id(op))) holds = holds || tensor.storage == storage_id;
      for (const Tensor& tensor : graph_.reads(id(op))) holds = holds || tensor.storage == storage_id;
      for (const StorageId held_storage : graph_.holds(id(op))) holds = holds || held_storage == storage_id;
      any_holder = any_holder || holds;
      held = held || (holds && !ended(id(op)));
    }
    if (held || !any_holder) left -= storage.size.value;
  }
  return left;
}

std::set<std::int32_t> EngineOracle::pools(std::size_t op) const {
  std::set<std::int32_t> found;
  for (const Tensor& tensor : graph_.writes(id(op))) {
    const std::int32_t pool = graph_.storages()[at(tensor.storage.index)].pool;
    if (pool >= 0 && graph_.pools()[at(pool)].gated && !claimed(tensor.storage)) found.insert(pool);
  }
  return found;
}

std::int64_t EngineOracle::wanted(std::size_t op, std::int32_t pool) const {
  std::set<StorageId> storages;
  for (const Tensor& tensor : graph_.writes(id(op))) {
    if (graph_.storages()[at(tensor.storage.index)].pool == pool && !claimed(tensor.storage)) storages.insert(tensor.storage);
  }
  std::int64_t bytes = 0;
  for (const StorageId storage : storages) bytes += graph_.storages()[at(storage.index)].size.value;
  return bytes;
}

EngineOracle::Key EngineOracle::key(std::size_t op, std::size_t part) const {
  return {graph_.op(id(op)).priority, *ops_[op].parts[part].met, static_cast<std::int32_t>(op), part};
}

// Joins the line of a pool that has too little left or where an op with a lesser key stands.
bool EngineOracle::stopped_by_pool(std::size_t op, std::size_t part) {
  for (std::size_t other = 0; other < ops_[op].parts.size(); ++other) {
    if (other != part && !ops_[op].parts[other].occupied) return false;  // not the part that starts the op
  }
  for (const Tensor& tensor : graph_.writes(id(op))) {
    const std::int32_t pool = graph_.storages()[at(tensor.storage.index)].pool;
    if (pools(op).count(pool) == 0 || claimed(tensor.storage)) continue;
    bool behind = false;
    for (std::size_t i = 0; i < count(); ++i) {
      for (std::size_t p = 0; p < ops_[i].parts.size(); ++p) {
        behind = behind || (ops_[i].parts[p].in_line == pool && key(i, p) < key(op, part));
      }
    }
    if (!behind && wanted(op, pool) <= free_bytes(pool)) continue;
    ops_[op].parts[part].in_line = pool;
    return true;
  }
  return false;
}

// Those at the front of a line leave it as soon as they fit.
void EngineOracle::leave_lines() {
  for (bool changed = true; changed;) {
    changed = false;
    std::map<std::int32_t, Key> front;
    for (std::size_t op = 0; op < count(); ++op) {
      for (std::size_t part = 0; part < ops_[op].parts.size(); ++part) {
        const std::optional<std::int32_t> pool = ops_[op].parts[part].in_line;
        if (!pool) continue;
        const auto [found, added] = front.try_emplace(*pool, key(op, part));
        if (!added) found->second = std::min(found->second, key(op, part));
      }
    }
    for (const auto& [pool, first] : front) {
      if (wanted(at(first.op), pool) > free_bytes(pool)) continue;
      ops_[at(first.op)].parts[first.part].in_line.reset();
      changed = true;
    }
  }
}

void EngineOracle::occupy(std::size_t op, std::size_t part) {
  OpState& state = ops_[op];
  state.parts[part].occupied = now_;
  if (std::all_of(state.parts.begin(), state.parts.end(), [](const PartState& each) { return each.occupied.has_value(); })) {
    state.start = now_;
  }
}

// Starts the least op or part that has what it needs; false if there is none.
bool EngineOracle::start_one() {
  note_met();
  leave_lines();
  std::vector<Key> could;
  for (std::size_t op = 0; op < count(); ++op) {
    for (std::size_t part = 0; part < ops_[op].parts.size(); ++part) {
      const PartState& state = ops_[op].parts[part];
      if (!ops_[op].marker && state.met && !state.occupied && !state.in_line) could.push_back(key(op, part));
    }
  }
  std::sort(could.begin(), could.end());
  for (const Key& next : could) {
    if (!has_slots(at(next.op), next.part) || stopped_by_pool(at(next.op), next.part)) continue;
    occupy(at(next.op), next.part);
    return true;
  }
  return false;
}

bool EngineOracle::active(std::size_t op) const {
  const OpState& state = ops_[op];
  return !state.marker && state.start && !state.end && now_ >= *state.start + state.fixed;
}

void EngineOracle::set_rates() {
  std::vector<std::vector<Load>> users;
  std::vector<std::size_t> running;
  for (std::size_t op = 0; op < count(); ++op) {
    if (active(op)) {
      running.push_back(op);
      users.push_back(ops_[op].loads);
    }
  }
  for (std::size_t op = 0; op < count(); ++op) {
    if (ops_[op].marker || ops_[op].start) continue;
    for (std::size_t part = 0; part < ops_[op].parts.size(); ++part) {
      if (ops_[op].parts[part].occupied) users.push_back(ops_[op].waiting_loads[part]);
    }
  }
  const std::vector<std::uint64_t> rates = filled(users);
  for (std::size_t i = 0; i < running.size(); ++i) ops_[running[i]].rate = rates[i];
}

std::optional<EngineOracle::Time> EngineOracle::next_time() const {
  std::optional<Time> next;
  const auto consider = [&](Time time) {
    if (time > now_ && (!next || time < *next)) next = time;
  };
  for (std::size_t op = 0; op < count(); ++op) {
    const OpState& state = ops_[op];
    if (state.issued) consider(*state.issued);
    if (state.marker || !state.start || state.end) continue;
    consider(*state.start + state.fixed);
    if (active(op)) consider(now_ + static_cast<Time>((state.left + state.rate - 1) / state.rate));
  }
  for (std::size_t i = 0; i < threads_.size(); ++i) consider(threads_[i].free);
  return next;
}

void EngineOracle::pass(Time to) {
  for (std::size_t op = 0; op < count(); ++op) {
    if (!active(op)) continue;
    const Wide done = Wide{ops_[op].rate} * static_cast<std::uint64_t>(to - now_);
    ops_[op].left -= std::min(ops_[op].left, done);
  }
  now_ = to;
}

EngineOracle::Outcome EngineOracle::run() {
  for (std::optional<Time> next = 0; next; next = next_time()) {
    if (*next > now_) pass(*next);
    for (bool again = true; again;) {
      again = end_ops();
      while (run_threads()) {
      }
      while (run_marker()) {
        again = true;
        while (run_threads()) {
        }
      }
      while (start_one()) {
        again = true;
        while (run_threads()) {
        }
      }
    }
    set_rates();
  }
  Outcome outcome;
  for (std::size_t op = 0; op < count(); ++op) {
    const OpState& state = ops_[op];
    if (!state.end) {
      outcome.stuck = true;
      continue;
    }
    const Duration start(*state.start), end(*state.end);
    const Duration alone(state.fixed + state.alone);
    outcome.timeline.push_back(
        {.op = id(op), .issued = Duration(*state.issued), .start = start, .end = end, .slowed = end - start - alone});
    for (std::size_t part = 0; state.parts.size() > 1 && part < state.parts.size(); ++part) {
      outcome.parts.push_back({.op = id(op), .part = static_cast<std::int32_t>(part), .occupied = Duration(*state.parts[part].occupied)});
    }
  }
  std::sort(outcome.timeline.begin(), outcome.timeline.end(),
            [](const OpRun& a, const OpRun& b) { return a.start != b.start ? a.start < b.start : a.op < b.op; });
  return outcome;
}

}  // namespace stepsim
