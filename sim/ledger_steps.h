// In which order a memory ledger takes the claims and releases of the ops of a timeline: one list of steps for each ledger rule.
// Knows no storage.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "sim/memory_ledger.h"
#include "sim/op_graph.h"
#include "sim/step_result.h"

namespace stepsim {

struct LedgerStep {
  TimePoint time{};
  OpId op{};
  bool claims = false;    // what the op writes first
  bool releases = false;  // what the op is the last to hold
};

// Starts and ends of the wanted ops in device time. Few ops run at once, so a heap of their ends is cheaper than sorting all ends.
template <class Wanted, class Use>
void for_each_device_step(const OpGraph& graph, const std::vector<OpRun>& timeline, const Wanted& wanted, const Use& use) {
  using End = std::pair<TimePoint, OpId>;
  std::priority_queue<End, std::vector<End>, std::greater<>> running;
  const auto end_all_until = [&](TimePoint time) {
    for (; !running.empty() && running.top().first <= time; running.pop()) {
      use(LedgerStep{.time = running.top().first, .op = running.top().second, .releases = true});
    }
  };
  for (std::size_t first = 0, last = 0; first < timeline.size(); first = last) {
    const TimePoint now = timeline[first].start;
    bool any_zero = false;
    for (; last < timeline.size() && timeline[last].start == now; ++last) any_zero = any_zero || timeline[last].end == now;
    end_all_until(now);
    if (any_zero) {
      for (const bool markers : {true, false}) {
        for (std::size_t i = first; i < last; ++i) {
          const OpId op = timeline[i].op;
          if (timeline[i].end != now || std::holds_alternative<Marker>(graph.work(op)) != markers || !wanted(op)) continue;
          use(LedgerStep{.time = now, .op = op, .claims = true, .releases = true});
        }
      }
    }
    for (std::size_t i = first; i < last; ++i) {
      if (timeline[i].end == now || !wanted(timeline[i].op)) continue;
      use(LedgerStep{.time = now, .op = timeline[i].op, .claims = true});
      running.emplace(timeline[i].end, timeline[i].op);
    }
  }
  end_all_until(TimePoint::max());
}

// The launches of all threads, merged: by time, at one time by issue position.
class LaunchMerge {
 public:
  // `before`: steps in device time, in order; at one time they come before launches.
  LaunchMerge(const OpGraph&, const std::vector<OpRun>& timeline, std::vector<LedgerStep> before);

  template <class Use>
  void for_each(const Use& use) {
    while (!sources_.empty()) {
      use(sources_.front().head);
      take_next();
    }
  }

  // Unmerged: all of one thread, then all of the next; ops without issuer as if they had a thread.
  template <class Use>
  void for_each_in_turn(const Use& use) {
    for (Source& source : sources_) {
      do {
        use(source.head);
      } while (advance(source));
    }
    sources_.clear();
  }

 private:
  struct Source {  // a thread, or the steps in device time (order empty)
    LedgerStep head{};
    std::int32_t position = -1;  // of head
    std::size_t next = 0;
    std::span<const OpId> order{};
  };
  static bool sooner(const Source& a, const Source& b) {
    return a.head.time != b.head.time ? a.head.time < b.head.time : a.position < b.position;
  }
  std::span<const OpId> in_order_of_time(std::span<const OpId> order);
  bool advance(Source&) const;
  void take_next();
  void sink(std::size_t place);

  const OpGraph& graph_;
  std::vector<TimePoint> issued_;          // by op; TimePoint::min(): did not run
  std::vector<LedgerStep> before_;         // in device time
  std::vector<std::vector<OpId>> sorted_;  // measured launches may be out of order
  std::vector<Source> sources_;            // a heap, soonest first
};

// Of the launches of the graph and of its ops without issuer.
LaunchMerge launches_of(const OpGraph&, const std::vector<OpRun>& timeline);

std::vector<LedgerStep> schedule_steps(const OpGraph&, const StepResult&);

template <class Use>
void for_each_ledger_step(const OpGraph& graph, const StepResult& result, LedgerRule rule, const Use& use) {
  switch (rule) {
    case LedgerRule::kIssueOrder:
      return launches_of(graph, result.timeline).for_each(use);
    case LedgerRule::kDeviceOrder:
      return for_each_device_step(
          graph, result.timeline, [](OpId) { return true; }, use);
    case LedgerRule::kScheduleOrder:
      for (const LedgerStep& step : schedule_steps(graph, result)) use(step);
  }
}

}  // namespace stepsim
