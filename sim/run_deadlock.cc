// Part of RunLoop: what to say when nothing can happen any more and ops are left.
#include <algorithm>

#include "sim/run_loop.h"

namespace stepsim {

namespace {

void sort_unique(std::vector<OpId>& ops) {
  std::sort(ops.begin(), ops.end());
  ops.erase(std::unique(ops.begin(), ops.end()), ops.end());
}

// The first cycle found by going from op to what it waits for, `first` tried before all others; least id first.
template <class WaitsFor>
std::vector<OpId> cycle_of_waits(OpId first, const std::vector<bool>& done, const WaitsFor& waits_for) {
  enum class Visit : std::uint8_t { kNew, kOpen, kClosed };
  struct Frame {
    OpId op{};
    std::vector<OpId> waits{};
    std::size_t next = 0;
  };
  std::vector<Visit> visits(done.size(), Visit::kNew);
  std::vector<Frame> path;
  const auto visit = [&](OpId op) -> Visit& { return visits[static_cast<std::size_t>(op.index)]; };
  const auto open = [&](OpId op) {
    visit(op) = Visit::kOpen;
    path.push_back({.op = op, .waits = waits_for(op)});
  };
  for (std::int32_t root = -1; root < static_cast<std::int32_t>(done.size()); ++root) {
    const OpId from = root < 0 ? first : OpId{root};
    if (done[static_cast<std::size_t>(from.index)] || visit(from) != Visit::kNew) continue;
    open(from);
    while (!path.empty()) {
      Frame& frame = path.back();
      if (frame.next == frame.waits.size()) {
        visit(frame.op) = Visit::kClosed;
        path.pop_back();
        continue;
      }
      const OpId to = frame.waits[frame.next++];
      if (visit(to) == Visit::kNew) {
        open(to);
      } else if (visit(to) == Visit::kOpen) {
        std::vector<OpId> cycle;
        for (const Frame& each : path) cycle.push_back(each.op);
        cycle.erase(cycle.begin(), std::find(cycle.begin(), cycle.end(), to));
        std::rotate(cycle.begin(), std::min_element(cycle.begin(), cycle.end()), cycle.end());
        return cycle;
      }
    }
  }
  return {};
}

}  // namespace

// The candidate at the head of the stream; below 0 if it is empty or has no order.
std::int32_t RunLoop::head_of(std::int32_t stream) const {
  const std::span<const OpId> order = plan_.streams[at(stream)];
  const std::uint32_t next = stream_next_[at(stream)];
  return next < order.size() ? order[next].index : -1;
}

// Ops that have not run and without which `op` cannot: by id.
std::vector<OpId> RunLoop::waits_for(OpId op, const std::vector<bool>& done) const {
  std::vector<OpId> found;
  const auto left = [&](OpId other) { return !done[at(other.index)]; };
  for (const Edge& edge : graph_.predecessors(op)) {
    if (left(edge.from)) found.push_back(edge.from);
  }
  if (host_.issued(op) == HostIssue::kNotIssued) {
    const HostIssue::Block block = host_.block(graph_.op(op).issuer);
    const auto stuck = std::find_if(block.launched.begin(), block.launched.end(),
                                    [&](OpId other) { return left(other) && !has(other, RunPlan::kMarker); });
    if (block.op.valid()) {
      found.push_back(block.op);
    } else if (stuck != block.launched.end()) {
      found.push_back(*stuck);
    }
  }
  for_each_candidate(op, [&](std::int32_t candidate) {
    const RunPlan::Row& row = plan_.rows[at(candidate)];
    if (row.stream < 0) return;
    const std::int32_t head = head_of(row.stream);
    if (head >= 0 && head != candidate) found.push_back(plan_.op_of(head));
    const bool waits_for_slot = row.unmet == 0 && has(op, RunPlan::kQueues) && !has(op, RunPlan::kMarker);
    if (!waits_for_slot || (has(op, RunPlan::kParts) && parts_[at(candidate) - plan_.ops()].there)) return;
    for_each_server(candidate, [&](std::size_t server) {
      if (servers_[server].free > 0) return;
      for (std::size_t i = 0; i < parts_.size(); ++i) {
        const OpId holder = plan_.parts[i].op;
        if (!parts_[i].there || !left(holder) || has(holder, RunPlan::kMarker)) continue;
        for_each_server(static_cast<std::int32_t>(plan_.ops() + i), [&](std::size_t held) {
          if (held == server) found.push_back(holder);
        });
      }
    });
  });
  if (has(op, RunPlan::kGated)) {
    const std::vector<OpId> holders = gate_.holders(op);
    found.insert(found.end(), holders.begin(), holders.end());
  }
  sort_unique(found);
  return found;
}

// The least op of which a part lacks only a slot, bytes, its launch or its peers; else at the head of a stream; else of all.
OpId RunLoop::first_waiting(const std::vector<bool>& done) const {
  const auto least = [&](const auto& could_be_next) {
    for (std::int32_t i = 0; at(i) < done.size(); ++i) {
      if (!done[at(i)] && could_be_next(OpId{i})) return OpId{i};
    }
    return OpId{};
  };
  const auto any_part = [&](OpId op, const auto& holds) {
    bool any = false;
    for_each_candidate(op, [&](std::int32_t candidate) { any = any || holds(candidate); });
    return any;
  };
  const OpId ready =
      least([&](OpId op) { return any_part(op, [&](std::int32_t candidate) { return plan_.rows[at(candidate)].unmet == 0; }); });
  if (ready.valid()) return ready;
  const OpId head = least([&](OpId op) {
    return any_part(op, [&](std::int32_t candidate) {
      const std::int32_t stream = plan_.rows[at(candidate)].stream;
      return stream >= 0 && head_of(stream) == candidate;
    });
  });
  return head.valid() ? head : least([](OpId) { return true; });
}

Deadlock RunLoop::deadlock(const std::vector<bool>& done) const {
  const OpId first = first_waiting(done);
  const auto waits = [&](OpId op) { return waits_for(op, done); };
  return {.first_waiting = first, .holders = waits(first), .cycle = cycle_of_waits(first, done, waits)};
}

}  // namespace stepsim
