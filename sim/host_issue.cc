#include "sim/host_issue.h"

#include <algorithm>

#include "sim/prefetch.h"
#include "sim/saturating_sum.h"

namespace stepsim {

namespace {

constexpr std::size_t kPrefetched = 8;  // launches ahead; measured

}  // namespace

HostIssue::HostIssue(const OpGraph& graph, const RunPlan& plan, const OpCosts& costs)
    : graph_(graph), costs_(costs), threads_(graph.issuers().size()) {
  if (threads_.empty()) return;
  const std::size_t ops = graph.ops().size();
  launches_.resize(ops);
  bool waits = false;
  for (std::size_t i = 0; i < ops; ++i) {
    if (!(plan.flags[i] & RunPlan::kIssued)) continue;
    launches_[i] = {.issued = kNotIssued, .issuer = graph.ops()[i].issuer, .cost = plan.rows[i].cost};
    waits = waits || !graph.issue_after(OpId{static_cast<std::int32_t>(i)}).empty();
  }
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    threads_[i].order = graph.issue_order(IssuerId{static_cast<std::int32_t>(i)});
    threads_[i].run_ahead = std::max(1, graph.issuers()[i].run_ahead);
  }
  if (waits) {
    has_ended_.assign(ops, false);
    first_waiting_.assign(ops, IssuerId{});
  }
  if (plan.any_launch_group) {
    launch_.assign(ops, OpId{});
    launch_started_.assign(ops, false);
  }
}

std::size_t HostIssue::launch_end(std::span<const OpId> order, std::size_t begin) const {
  std::size_t end = begin + 1;
  if (launch_.empty()) return end;
  const std::int32_t group = graph_.op(order[begin]).launch_group;
  if (group < 0) return end;
  while (end < order.size() && graph_.op(order[end]).launch_group == group) ++end;
  return end;
}

// Whether an op of the next launch is issued after one that has not ended; the thread is then noted there.
bool HostIssue::waits(IssuerId issuer, std::span<const OpId> order, std::size_t end) {
  Thread& thread = threads_[at(issuer.index)];
  thread.checked = std::max(thread.checked, thread.next);
  for (; thread.checked < end; ++thread.checked) {
    for (const OpId before : graph_.issue_after(order[thread.checked])) {
      if (has_ended_[index(before)]) continue;
      thread.waits_for = before;
      thread.next_waiting = first_waiting_[index(before)];
      first_waiting_[index(before)] = issuer;
      return true;
    }
  }
  return false;
}

std::span<const OpId> HostIssue::advance(IssuerId issuer, TimePoint now) {
  Thread& thread = threads_[at(issuer.index)];
  const std::span<const OpId> order = thread.order;
  const std::size_t first = thread.next;
  thread.free = std::max(thread.free, now);
  thread.waits_for = {};
  thread.full = false;
  while (thread.next < order.size()) {
    if (thread.next + kPrefetched < order.size()) prefetch(&launches_[index(order[thread.next + kPrefetched])]);
    const std::size_t end = launch_end(order, thread.next);
    if (!has_ended_.empty() && waits(issuer, order, end)) break;
    std::size_t kernel = thread.next;
    while (kernel < end && launches_[index(order[kernel])].cost < 0) ++kernel;
    if (kernel < end) {
      if (thread.outstanding >= thread.run_ahead) {
        thread.full = true;
        break;
      }
      ++thread.outstanding;
      thread.free = saturating_sum(thread.free, costs_.row(launches_[index(order[kernel])].cost).issue);
    }
    for (; thread.next < end; ++thread.next) {
      launches_[index(order[thread.next])].issued = std::min(thread.free, kNotIssued - Duration(1));
      if (!launch_.empty()) launch_[index(order[thread.next])] = order[end - 1];
    }
  }
  return order.subspan(first, thread.next - first);
}

IssuerId HostIssue::started(OpId op) {
  if (!launch_.empty()) {
    const std::size_t launch = index(launch_[index(op)]);
    if (launch_started_[launch]) return {};
    launch_started_[launch] = true;
  }
  const IssuerId issuer = launches_[index(op)].issuer;
  Thread& thread = threads_[at(issuer.index)];
  --thread.outstanding;
  return thread.full ? issuer : IssuerId{};
}

std::span<const IssuerId> HostIssue::waiting_for(OpId op) {
  resumed_.clear();
  has_ended_[index(op)] = true;
  for (IssuerId issuer = first_waiting_[index(op)]; issuer.valid(); issuer = threads_[at(issuer.index)].next_waiting) {
    resumed_.push_back(issuer);
  }
  return resumed_;
}

HostIssue::Block HostIssue::block(IssuerId issuer) const {
  const Thread& thread = threads_[at(issuer.index)];
  if (thread.waits_for.valid()) return {.op = thread.waits_for};
  return {.launched = thread.order.first(thread.next)};
}

}  // namespace stepsim
