#include "tools/time_shares.h"

#include <algorithm>

#include "sim/check.h"
#include "sim/waits.h"

namespace stepsim {

namespace {

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

constexpr const char* kOtherStages = "waiting for other stages";
constexpr const char* kLaunches = "waiting for the host's launches";
constexpr const char* kIdle = "idle";

class Shares {
 public:
  Shares(const OpGraph& graph, const GraphRun& run) : graph_(graph), run_(run), waits_(graph, run.result), trail_(graph) {}

  std::map<std::string, Duration> of_critical_device() {
    TimePoint now{};
    const DeviceId device = run_.time.device;
    for (std::int32_t stream = 0; device.valid() && at(stream) < graph_.streams().size(); ++stream) {
      const Stream& each = graph_.streams()[at(stream)];
      if (!each.compute || each.device != device) continue;
      for (const OpId op : graph_.stream_order(StreamId{stream})) now = after_op(op, now);
      break;
    }
    if (now < run_.result.end) add_end(now);
    return std::move(shares_);
  }

 private:
  void add(const std::string& name, Duration time) {
    if (time > Duration{}) shares_[name] += time;
  }

  std::string name(OpId op) const {
    const std::string phase(graph_.label(graph_.op(op).phase)), kind(graph_.label(graph_.op(op).kind));
    return phase.empty() ? kind : phase + " " + kind;
  }

  TimePoint after_op(OpId op, TimePoint now) {
    const OpRun* const run = waits_.run(op);
    if (run == nullptr) return now;  // the step was stopped
    const TimePoint start = std::max(now, run->start), end = std::max(start, run->end);
    const TimePoint there = std::max(now, std::min(start, occupied(op)));
    follow(waits_.last_cause(op, there), op, now, there);
    add(kOtherStages, start - there);
    add(name(op), end - start);
    return end;
  }

  // From when its part here waited for the others.
  TimePoint occupied(OpId op) const {
    const std::span<const StreamId> parts = graph_.parts(op);
    for (std::size_t part = 0; part < parts.size(); ++part) {
      if (graph_.streams()[at(parts[part].index)].device == run_.time.device) return waits_.occupied(op, static_cast<std::int32_t>(part));
    }
    return waits_.run(op)->start;
  }

  // Behind the last op of the stream: what ends last.
  void add_end(TimePoint now) {
    for (auto last = run_.result.timeline.rbegin(); last != run_.result.timeline.rend(); ++last) {
      if (last->end != run_.result.end) continue;
      follow(Waits::Cause{.op = last->op, .met = last->end}, last->op, now, last->end);
      return;
    }
    add(kIdle, run_.result.end - now);
  }

  // The instants of [from, until) before `waiting`, back along what was waited for.
  void follow(std::optional<Waits::Cause> cause, OpId waiting, TimePoint from, TimePoint until) {
    OpId launched = waiting;
    while (from < until) {
      if (!cause || cause->met <= from) {
        add(kIdle, until - from);
        return;
      }
      const TimePoint met = std::min(cause->met, until);
      add(kIdle, until - met);
      until = met;
      if (!cause->op.valid()) {
        const OpId held = waits_.held_up_launch(launched);
        const TimePoint freed = held.valid() ? std::clamp(waits_.run(held)->end, from, until) : from;
        add(kLaunches, until - freed);
        until = freed;
        cause = held.valid() ? std::optional(Waits::Cause{.op = held, .met = until}) : std::nullopt;
        continue;
      }
      if (!cause->only_start) {
        const TimePoint begin = std::clamp(waits_.run(cause->op)->start, from, until);
        add(runs_here(cause->op) ? "waiting for " + name(cause->op) : kOtherStages, until - begin);
        until = begin;
      }
      launched = cause->op;
      cause = trail_.enter(launched, until) ? waits_.last_cause(launched, until) : std::nullopt;
    }
  }

  bool runs_here(OpId op) const {
    const std::span<const StreamId> parts = graph_.parts(op);
    const auto here = [this](StreamId part) { return graph_.streams()[at(part.index)].device == run_.time.device; };
    return parts.empty() || std::any_of(parts.begin(), parts.end(), here);
  }

  const OpGraph& graph_;
  const GraphRun& run_;
  Waits waits_;
  Trail trail_;
  std::map<std::string, Duration> shares_;
};

}  // namespace

std::map<std::string, Duration> time_shares(const OpGraph& graph, const GraphRun& run) {
  std::map<std::string, Duration> shares = Shares(graph, run).of_critical_device();
  Duration sum{};
  for (const auto& [name, time] : shares) sum += time;
  STEPSIM_CHECK(sum == run.result.end);
  return shares;
}

}  // namespace stepsim
