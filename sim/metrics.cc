#include "sim/metrics.h"

#include <algorithm>
#include <optional>

#include "sim/check.h"
#include "sim/saturating_sum.h"
#include "sim/waits.h"

namespace stepsim {

namespace {

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

bool is_transfer(OpClass of) { return of == OpClass::kCollective || of == OpClass::kPointToPoint; }
bool is_copy(OpClass of) { return of == OpClass::kCopyToHost || of == OpClass::kCopyToDevice; }

DeviceId device_of(const OpGraph& graph, StreamId stream) { return graph.streams()[at(stream.index)].device; }

struct LastOp {  // of a device
  DeviceId device{};
  OpId op{};
  TimePoint end{};
};

// Of the device that ends last; none if nothing ran on a stream.
LastOp last_op(const OpGraph& graph, const StepResult& result) {
  std::vector<LastOp> last(at(graph.device_count()));
  for (const OpRun& run : result.timeline) {
    for (const StreamId part : graph.parts(run.op)) {
      const DeviceId device = device_of(graph, part);
      LastOp& known = last[at(device.index)];
      if (!known.op.valid() || known.end < run.end || (known.end == run.end && run.op < known.op)) known = {device, run.op, run.end};
    }
  }
  LastOp latest;
  for (const LastOp& each : last) {
    if (each.op.valid() && (!latest.op.valid() || latest.end < each.end)) latest = each;
  }
  return latest;
}

// The compute stream of the device; where it has none, the stream of its last op there.
StreamId stream_of(const OpGraph& graph, const LastOp& last) {
  for (std::int32_t stream = 0; at(stream) < graph.streams().size(); ++stream) {
    const Stream& each = graph.streams()[at(stream)];
    if (each.compute && each.device == last.device) return StreamId{stream};
  }
  for (const StreamId part : graph.parts(last.op)) {
    if (device_of(graph, part) == last.device) return part;
  }
  check_failed("last op on its device", __FILE__, __LINE__);
}

class Partition {
 public:
  Partition(const OpGraph& graph, const StepResult& result, const PhaseMeaning& meaning)
      : graph_(graph), result_(result), meaning_(meaning), waits_(graph, result), trail_(graph) {
    const std::size_t buckets = graph.bucket_count();
    parts_.busy.resize(buckets);
    parts_.exposed_collective.resize(buckets);
    parts_.exposed_copy.resize(at(std::max({meaning.copy_waits, meaning.tail + 1, 1})));
    phase_begun_.resize(buckets, false);
  }

  TimePartition of_critical_device() {
    const LastOp last = last_op(graph_, result_);
    TimePoint now{};
    if (last.op.valid()) {
      parts_.device = last.device;
      const StreamId stream = stream_of(graph_, last);
      for (const OpId op : ops_of(stream)) now = after_op(op, stream, now);
      if (now < last.end) {
        const Waits::Cause end{.op = last.op, .met = last.end};
        follow(end, {}, now, last.end);
        now = last.end;
      }
    }
    parts_.idle += result_.end - now;  // markers outside every stream may end the step
    return parts_;
  }

 private:
  std::vector<OpId> ops_of(StreamId stream) const {
    std::vector<OpId> ops;
    if (!graph_.streams()[at(stream.index)].any_ready_op) {
      for (const OpId op : graph_.stream_order(stream)) {
        if (waits_.run(op) != nullptr) ops.push_back(op);
      }
      return ops;
    }
    for (const OpRun& run : result_.timeline) {
      const std::span<const StreamId> parts = graph_.parts(run.op);
      if (std::find(parts.begin(), parts.end(), stream) != parts.end()) ops.push_back(run.op);
    }
    return ops;
  }

  // From when the op's part occupies the stream, waiting for the others.
  TimePoint occupied(OpId op, StreamId stream) const {
    const std::span<const StreamId> parts = graph_.parts(op);
    return waits_.occupied(op, static_cast<std::int32_t>(std::find(parts.begin(), parts.end(), stream) - parts.begin()));
  }

  // Accounts for [now, end of op) and returns its end. Measured ops of a stream may overlap: no instant counts twice.
  TimePoint after_op(OpId op, StreamId stream, TimePoint now) {
    const OpRun& run = *waits_.run(op);
    const std::size_t phase = at(graph_.bucket(graph_.op(op).phase));
    const TimePoint there = std::max(now, occupied(op, stream)), start = std::max(there, run.start);
    if (now < there) follow(waits_.last_cause(op, there), op, now, there);
    parts_.bubble += start - there;
    phase_begun_[phase] = true;
    const TimePoint end = std::max(start, run.end);
    const Duration busy = end - start;
    const OpClass its_class = op_class(graph_.work(op));
    if (is_transfer(its_class)) {
      parts_.exposed_collective[at(graph_.bucket(graph_.op(op).kind))] += busy;
    } else if (is_copy(its_class)) {  // a copy that the compute stream itself runs hides behind nothing
      parts_.exposed_copy[at(copy_wait(op, its_class))] += busy;
    } else {
      const Duration slowed = std::clamp(run.slowed, Duration(0), busy);
      parts_.contention += slowed;
      parts_.busy[phase] += busy - slowed;
    }
    return end;
  }

  // The idle instants of [from, until) before `waiting` (none: the end of the step), back along what was waited for.
  void follow(std::optional<Waits::Cause> cause, OpId waiting, TimePoint from, TimePoint until) {
    while (from < until) {
      if (!cause || cause->met <= from) {
        parts_.idle += until - from;
        return;
      }
      const TimePoint met = std::min(cause->met, until);
      parts_.idle += until - met;
      until = met;
      if (!cause->op.valid()) {
        parts_.host += until - from;
        return;
      }
      if (!cause->only_start) {
        const TimePoint begin = std::clamp(waits_.run(cause->op)->start, from, until);
        wait_for(cause->op, waiting, until - begin);
        until = begin;
      }
      cause = trail_.enter(cause->op, until) ? waits_.last_cause(cause->op, until) : std::nullopt;
    }
  }

  void wait_for(OpId running, OpId waiting, Duration time) {
    const OpClass its_class = op_class(graph_.work(running));
    if (is_copy(its_class)) {
      parts_.exposed_copy[at(copy_wait(waiting, its_class))] += time;
    } else if (is_transfer(its_class)) {
      parts_.exposed_collective[at(graph_.bucket(graph_.op(running).kind))] += time;
    } else if (graph_.op(running).stream.valid() && device_of(graph_, graph_.op(running).stream) != parts_.device) {
      parts_.bubble += time;
    } else {
      parts_.idle += time;
    }
  }

  std::int32_t copy_wait(OpId waiting, OpClass copy) const {
    if (!waiting.valid()) return meaning_.tail;
    const std::size_t phase = at(graph_.bucket(graph_.op(waiting).phase));
    const bool out_first = phase < meaning_.copy_out_first_is_tail.size() && meaning_.copy_out_first_is_tail[phase];
    if (out_first && copy == OpClass::kCopyToHost && !phase_begun_[phase]) return meaning_.tail;
    return phase < meaning_.copy_wait_of_bucket.size() ? meaning_.copy_wait_of_bucket[phase] : meaning_.tail;
  }

  const OpGraph& graph_;
  const StepResult& result_;
  const PhaseMeaning& meaning_;
  Waits waits_;
  Trail trail_;
  std::vector<bool> phase_begun_;  // by bucket: an op of it has started on the compute stream
  TimePartition parts_;
};

}  // namespace

Duration TimePartition::total() const {
  Duration sum = contention + bubble + host + idle;
  for (const auto* parts : {&busy, &exposed_collective, &exposed_copy}) {
    for (const Duration part : *parts) sum += part;
  }
  return sum;
}

TimePartition time_partition(const OpGraph& graph, const StepResult& result, const PhaseMeaning& meaning) {
  STEPSIM_CHECK(meaning.tail >= 0);
  for (const std::int32_t wait : meaning.copy_wait_of_bucket) {
    STEPSIM_CHECK(wait >= 0);
    STEPSIM_CHECK(wait < meaning.copy_waits);
  }
  return Partition(graph, result, meaning).of_critical_device();
}

namespace {

struct Interval {
  TimePoint begin, end;
};

// Length of the union.
Duration covered(std::vector<Interval>& intervals) {
  const auto earlier = [](const Interval& a, const Interval& b) { return a.begin < b.begin; };
  if (!std::is_sorted(intervals.begin(), intervals.end(), earlier)) std::sort(intervals.begin(), intervals.end(), earlier);
  Duration sum{};
  TimePoint until = TimePoint::min();
  for (const Interval& each : intervals) {
    if (each.end <= until) continue;
    sum += each.end - std::max(until, each.begin);
    until = each.end;
  }
  return sum;
}

// Costs by work and device, asked once each.
class KnownCosts {
 public:
  KnownCosts(const OpGraph& graph, const CostModel& model) : graph_(graph), model_(model), known_(at(graph.device_count())) {}

  // Of an op with several parts: fixed and alone the maxima over the parts, and of each resource the largest load.
  struct OpCost {
    Duration fixed{}, alone{};
    std::vector<Load> loads{};
  };
  OpCost of(OpId op) {
    OpCost all;
    for (const StreamId part : graph_.parts(op)) {
      const Cost& cost = on(graph_.op(op).work, device_of(graph_, part));
      all.fixed = std::max(all.fixed, cost.fixed);
      all.alone = std::max(all.alone, cost.alone);
      for (const Load& load : cost.loads) {
        const auto same = [&load](const Load& other) { return other.resource == load.resource; };
        const auto found = std::find_if(all.loads.begin(), all.loads.end(), same);
        if (found == all.loads.end()) {
          all.loads.push_back(load);
        } else {
          found->fraction_2e30 = std::max(found->fraction_2e30, load.fraction_2e30);
          found->peers = std::max(found->peers, load.peers);
        }
      }
    }
    return all;
  }

 private:
  const Cost& on(WorkId work, DeviceId device) {
    std::vector<std::optional<Cost>>& costs = known_[at(device.index)];
    costs.resize(graph_.works().size());
    std::optional<Cost>& cost = costs[at(work.index)];
    if (!cost) cost = model_.cost(graph_.work(work), device);
    return *cost;
  }

  const OpGraph& graph_;
  const CostModel& model_;
  std::vector<std::vector<std::optional<Cost>>> known_;  // by device, by work
};

}  // namespace

std::vector<ResourceUse> resource_use(const OpGraph& graph, const Machine& machine, const CostModel& model, const StepResult& result) {
  KnownCosts costs(graph, model);
  const std::size_t resources = machine.resources.size(), queues = graph.queues().size();
  std::vector<std::vector<Interval>> intervals(resources + queues);
  std::vector<ResourceUse> uses(resources + queues);
  for (std::size_t i = 0; i < resources; ++i) uses[i].resource = ResourceId{static_cast<std::int32_t>(i)};
  for (std::size_t i = 0; i < queues; ++i) uses[resources + i].queue = QueueId{static_cast<std::int32_t>(i)};
  for (const OpRun& run : result.timeline) {
    if (std::holds_alternative<Marker>(graph.work(run.op))) continue;
    const KnownCosts::OpCost cost = costs.of(run.op);
    const TimePoint loads_from = std::min(run.end, saturating_sum(run.start, cost.fixed));
    for (const Load& load : cost.loads) {
      const std::size_t resource = at(load.resource.index);
      intervals[resource].push_back({loads_from, run.end});
      // The integral of x over the op is its time alone, however long it took.
      uses[resource].load_s += static_cast<double>(load.fraction_2e30) / static_cast<double>(kFullLoad) * load.peers * seconds(cost.alone);
    }
    for (std::int32_t part = 0; at(part) < graph.parts(run.op).size(); ++part) {
      for (const QueueId queue : graph.queues(run.op, part)) {
        const std::size_t index = resources + at(queue.index);
        intervals[index].push_back({run.start, run.end});
        uses[index].load_s += seconds(run.end - run.start) / graph.queues()[at(queue.index)].slots;
      }
    }
  }
  for (std::size_t i = 0; i < uses.size(); ++i) uses[i].busy = covered(intervals[i]);
  return uses;
}

}  // namespace stepsim
