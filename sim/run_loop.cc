#include "sim/run_loop.h"

#include <algorithm>

#include "sim/prefetch.h"
#include "sim/saturating_sum.h"

namespace stepsim {

namespace {

constexpr TimePoint kRunning = TimePoint::min();  // OpRun::end until the op ends; its slot is in OpRun::slowed

}  // namespace

RunLoop::RunLoop(const OpGraph& graph, const Machine& machine, const CostModel& model)
    : graph_(graph),
      costs_(graph, machine, model),
      plan_(run_plan(graph, costs_)),
      host_(graph, plan_, costs_),
      gate_(graph),
      contention_(static_cast<std::int32_t>(machine.resources.size())),
      stream_next_(graph.streams().size(), 0),
      servers_(graph.queues().size() + graph.streams().size()),
      parts_(plan_.parts.size()) {
  for (std::size_t i = 0; i < servers_.size(); ++i) servers_[i].free = i < graph.queues().size() ? graph.queues()[i].slots : 1;
  result_.timeline.reserve(plan_.ops());
  if (!gate_.any()) return;
  for (std::size_t i = 0; i < plan_.ops(); ++i) {
    if (gate_.concerns(OpId{static_cast<std::int32_t>(i)})) plan_.flags[i] |= RunPlan::kGated;
  }
}

StepResult RunLoop::run() {
  begin();
  instant();
  while (!events_.empty() || !due_.empty()) {
    now_ = events_.empty() ? due_.least().met : events_.next().at;
    if (!due_.empty()) now_ = std::min(now_, due_.least().met);
    instant();
  }
  if (result_.timeline.size() < plan_.ops()) {
    const std::vector<OpRun>& timeline = result_.timeline;
    std::vector<bool> done(plan_.ops(), false);
    for (const OpRun& run : timeline) done[at(run.op.index)] = true;
    std::erase_if(result_.parts, [&](const PartRun& part) { return !done[at(part.op.index)]; });
    result_.deadlock = deadlock(done);
  }
  std::sort(result_.parts.begin(), result_.parts.end(),
            [](const PartRun& a, const PartRun& b) { return a.op != b.op ? a.op < b.op : a.part < b.part; });
  return std::move(result_);
}

void RunLoop::begin() {
  for (std::size_t i = 0; i < graph_.issuers().size(); ++i) host_.advance(IssuerId{static_cast<std::int32_t>(i)}, TimePoint(0));
  for (const std::span<const OpId> order : plan_.streams) {
    if (!order.empty()) let_go(order[0].index);
  }
  for (const std::int32_t candidate : plan_.unordered) let_go(candidate);
}

void RunLoop::instant() {
  const std::size_t first = result_.timeline.size();
  do {
    take_events();
    run_markers();
    while (!ready_.empty()) try_start(ready_.pop());
  } while (!markers_.empty() || (!events_.empty() && events_.next().at == now_));
  contention_.renew_rates(now_, events_);
  if (result_.timeline.size() - first > 1) order_instant(first);
}

void RunLoop::try_start(const Ready& ready) {
  const std::uint8_t flags = plan_.flags[at(ready.op.index)];
  if ((flags & (RunPlan::kQueues | RunPlan::kGated)) != 0) {
    if (stopped(ready)) return;
    for_each_server(ready.candidate, [&](std::size_t server) { --servers_[server].free; });
  }
  if ((flags & RunPlan::kParts) == 0 || last_part_there(ready.candidate)) start(ready.op);
}

void RunLoop::take_events() {
  while (!events_.empty() && events_.next().at == now_) {
    const EventQueue::Event event = events_.next();
    events_.pop();
    ++result_.events;
    if (slots_[event.slot].shares) {
      if (const std::optional<TimePoint> at_end = contention_.end_if_begins(event.slot)) {
        events_.push({.at = *at_end, .op = event.op, .slot = event.slot});
        continue;
      }
    }
    end(event.slot);
  }
  while (!due_.empty() && due_.least().met == now_) {
    ++result_.events;
    const Ready launched = due_.pop();
    arrive(launched.op, launched.candidate);
  }
}

void RunLoop::run_markers() {
  while (!markers_.empty()) {
    const std::int32_t candidate = markers_.back();
    markers_.pop_back();
    const OpId op = plan_.op_of(candidate);
    if (has(op, RunPlan::kParts)) {
      result_.parts.push_back({.op = op, .part = plan_.part_of(candidate), .occupied = now_});
      parts_[at(candidate) - plan_.ops()].there = true;
      if (--plan_.rows[at(op.index)].unmet > 0) continue;
    }
    ++result_.events;
    result_.timeline.push_back({.op = op, .issued = host_.issued(op), .start = now_, .end = now_, .slowed = Duration(0)});
    for (const std::int32_t successor : plan_.at_start.of(op)) let_go(successor);
    released(op);
  }
}

void RunLoop::end(std::uint32_t slot) {
  const Slot ended = slots_[slot];
  const OpId op = ended.op;
  OpRun& run = result_.timeline[ended.run];
  run.end = now_;
  run.slowed = now_ - ended.unslowed_end;
  if (ended.shares) contention_.leave(slot);
  free_slot(slot);
  if (has(op, RunPlan::kQueues)) free_servers(op);
  released(op);
}

void RunLoop::released(OpId op) {
  result_.end = now_;
  if (has(op, RunPlan::kParts)) {
    for_each_candidate(op, [&](std::int32_t candidate) { leave_stream(candidate); });
  } else if (plan_.rows[at(op.index)].stream >= 0) {
    leave_stream(op.index);
  }
  for (const std::int32_t successor : plan_.at_end.of(op)) let_go(successor);
  for (const IssuerId issuer : host_.ended(op)) issue(issuer);
  if (has(op, RunPlan::kGated)) {
    gate_.ended(op);
    wake_pools(op);
  }
}

void RunLoop::leave_stream(std::int32_t candidate) {
  const std::size_t stream = at(plan_.rows[at(candidate)].stream);
  const std::uint32_t next = ++stream_next_[stream];
  const std::span<const OpId> order = plan_.streams[stream];
  if (next + 4 < order.size()) prefetch(&plan_.rows[at(order[next + 4].index)]);
  if (next < order.size()) let_go(order[next].index);
}

void RunLoop::let_go(std::int32_t candidate) {
  if (--plan_.rows[at(candidate)].unmet == 0) met(candidate);
}

// Edges and stream order are met; the launch may still be missing.
void RunLoop::met(std::int32_t candidate) {
  const OpId op = plan_.op_of(candidate);
  if (has(op, RunPlan::kIssued)) {
    const TimePoint issued = host_.issued(op);
    if (issued == HostIssue::kNotIssued) return;  // issue() comes back to it
    if (issued > now_) {
      due_.push({.met = issued, .op = op, .candidate = candidate});
      return;
    }
  }
  arrive(op, candidate);
}

void RunLoop::arrive(OpId op, std::int32_t candidate) {
  if (has(op, RunPlan::kMarker)) {
    markers_.push_back(candidate);
  } else {
    ready_.push({.met = now_, .priority = plan_.rows[at(candidate)].priority, .op = op, .candidate = candidate});
  }
}

void RunLoop::issue(IssuerId issuer) {
  for (const OpId op : host_.advance(issuer, now_)) {
    for_each_candidate(op, [&](std::int32_t candidate) {
      if (plan_.rows[at(candidate)].unmet == 0) met(candidate);
    });
  }
}

// What started in one instant is put in order of op id; slots follow.
void RunLoop::order_instant(std::size_t first) {
  const auto begin = result_.timeline.begin() + static_cast<std::ptrdiff_t>(first);
  const auto by_op = [](const OpRun& a, const OpRun& b) { return a.op < b.op; };
  if (std::is_sorted(begin, result_.timeline.end(), by_op)) return;
  std::sort(begin, result_.timeline.end(), by_op);
  for (std::size_t i = first; i < result_.timeline.size(); ++i) {
    const OpRun& run = result_.timeline[i];
    if (run.end == kRunning) slots_[static_cast<std::size_t>(run.slowed.count())].run = static_cast<std::uint32_t>(i);
  }
}

void RunLoop::start(OpId op) {
  const OpCosts::Row& cost = costs_.row(plan_.rows[at(op.index)].cost);
  const std::uint32_t slot = new_slot(op);
  result_.timeline.push_back({.op = op, .issued = host_.issued(op), .start = now_, .end = kRunning, .slowed = Duration(slot)});
  const TimePoint from = saturating_sum(now_, cost.fixed);
  const TimePoint end = saturating_sum(from, cost.alone);
  const bool shares = cost.loads > 0 && cost.alone.count() > 0;
  slots_[slot] = {.op = op, .run = static_cast<std::uint32_t>(result_.timeline.size() - 1), .unslowed_end = end, .shares = shares};
  events_.push({.at = end, .op = op, .slot = slot});
  if (shares) contention_.join(slot, {costs_.loads(cost), cost.first_load}, from, cost.alone);
  if (has(op, RunPlan::kGated)) {
    gate_.claim(op);
    wake_pools(op);
  }
  for (const std::int32_t successor : plan_.at_start.of(op)) let_go(successor);
  if (has(op, RunPlan::kIssued)) {
    const IssuerId blocked = host_.started(op);
    if (blocked.valid()) issue(blocked);
  }
}

}  // namespace stepsim
