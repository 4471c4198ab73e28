#include "sim/metrics.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "sim/check.h"
#include "sim/prefetch.h"
#include "sim/saturating_sum.h"
#include "sim/waits.h"

namespace stepsim {

namespace {

bool is_transfer(OpClass of) { return of == OpClass::kCollective || of == OpClass::kPointToPoint; }
bool is_copy(OpClass of) { return of == OpClass::kCopyToHost || of == OpClass::kCopyToDevice; }

DeviceId device_of(const OpGraph& graph, StreamId stream) { return graph.streams()[at(stream.index)].device; }

struct LastOp {  // of a device
  DeviceId device{};
  OpId op{};
  TimePoint end{};
};

// Of the device that ends last, the first of equals; none if nothing ran on a stream. Late ops end late: few are looked at twice.
LastOp last_op(const OpGraph& graph, const StepResult& result) {
  LastOp last;
  for (auto run = result.timeline.rbegin(); run != result.timeline.rend(); ++run) {
    if (last.op.valid() && run->end < last.end) continue;
    for (const StreamId part : graph.parts(run->op)) {
      const DeviceId device = device_of(graph, part);
      const bool sooner = std::pair(device, run->op) < std::pair(last.device, last.op);
      if (!last.op.valid() || last.end < run->end || sooner) last = {device, run->op, run->end};
    }
  }
  return last;
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
  Partition(const OpGraph& graph, const StepResult& result, const PhaseMeaning& meaning, const TimeObserver& observer)
      : graph_(graph), result_(result), meaning_(meaning), observer_(observer), waits_(graph, result), trail_(graph) {
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
    add_idle(now, result_.end);  // markers outside every stream may end the step
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
    observe(TimeSpent::On::kDevices, op, there, start);
    phase_begun_[phase] = true;
    const TimePoint end = std::max(start, run.end);
    const Duration busy = end - start;
    observe(TimeSpent::On::kRunning, op, start, end);
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
    OpId launched = waiting;  // whose cause it is
    while (from < until) {
      if (!cause || cause->met <= from) {
        add_idle(from, until);
        return;
      }
      const TimePoint met = std::min(cause->met, until);
      add_idle(met, until);
      until = met;
      if (!cause->op.valid()) {  // the host: until the end of what it waited for itself
        const OpId held = launched.valid() ? waits_.held_up_launch(launched) : OpId{};
        const TimePoint freed = held.valid() ? std::clamp(waits_.run(held)->end, from, until) : from;
        parts_.host += until - freed;
        observe(TimeSpent::On::kLaunch, {}, freed, until);
        until = freed;
        if (until == from) return;
        cause = Waits::Cause{.op = held, .met = until};
      }
      if (!cause->only_start) {
        const TimePoint begin = std::clamp(waits_.run(cause->op)->start, from, until);
        wait_for(cause->op, waiting, until - begin);
        if (observer_) observe(runs_elsewhere(cause->op) ? TimeSpent::On::kDevices : TimeSpent::On::kOp, cause->op, begin, until);
        until = begin;
      }
      launched = cause->op;
      cause = trail_.enter(launched, until) ? waits_.last_cause(launched, until) : std::nullopt;
    }
  }

  // What other devices do among themselves, their collectives included, is a bubble here.
  void wait_for(OpId running, OpId waiting, Duration time) {
    const OpClass its_class = op_class(graph_.work(running));
    if (runs_elsewhere(running)) {
      parts_.bubble += time;
    } else if (is_copy(its_class)) {
      parts_.exposed_copy[at(copy_wait(waiting, its_class))] += time;
    } else if (is_transfer(its_class)) {
      parts_.exposed_collective[at(graph_.bucket(graph_.op(running).kind))] += time;
    } else {
      parts_.idle += time;
    }
  }

  bool runs_elsewhere(OpId op) const {
    const std::span<const StreamId> parts = graph_.parts(op);
    const auto here = [this](StreamId part) { return device_of(graph_, part) == parts_.device; };
    return !parts.empty() && std::none_of(parts.begin(), parts.end(), here);
  }

  void add_idle(TimePoint from, TimePoint until) {
    parts_.idle += until - from;
    observe(TimeSpent::On::kNothing, {}, from, until);
  }

  void observe(TimeSpent::On on, OpId op, TimePoint from, TimePoint until) const {
    if (observer_ && from < until) observer_({.on = on, .op = op, .from = from, .until = until});
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
  const TimeObserver& observer_;  // may be empty
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

TimePartition time_partition(const OpGraph& graph, const StepResult& result, const PhaseMeaning& meaning, const TimeObserver& observer) {
  STEPSIM_CHECK(meaning.tail >= 0);
  for (const std::int32_t wait : meaning.copy_wait_of_bucket) {
    STEPSIM_CHECK(wait >= 0);
    STEPSIM_CHECK(wait < meaning.copy_waits);
  }
  return Partition(graph, result, meaning, observer).of_critical_device();
}

namespace {

// The union of intervals that come almost in the order of their beginnings.
class Union {
 public:
  void add(TimePoint begin, TimePoint end) {
    if (end <= begin) return;
    if (parts_.empty() || parts_.back().end < begin) {
      parts_.push_back({begin, end});
    } else if (parts_.back().begin <= begin) {
      parts_.back().end = std::max(parts_.back().end, end);
    } else {
      insert(begin, end);
    }
  }
  Duration length() const {
    Duration sum{};
    for (const Part& part : parts_) sum += part.end - part.begin;
    return sum;
  }

 private:
  struct Part {
    TimePoint begin, end;
  };
  void insert(TimePoint begin, TimePoint end) {
    const auto first = std::lower_bound(parts_.begin(), parts_.end(), begin, [](const Part& part, TimePoint at) { return part.end < at; });
    auto last = first;  // [first, last) touch the new interval
    for (; last != parts_.end() && last->begin <= end; ++last) {
      begin = std::min(begin, last->begin);
      end = std::max(end, last->end);
    }
    if (first == last) {
      parts_.insert(first, {begin, end});
    } else {
      *first = {begin, end};
      parts_.erase(first + 1, last);
    }
  }
  std::vector<Part> parts_;  // in order, apart from one another
};

// What an op does to shared resources.
struct Loads {
  struct Row {
    std::size_t resource = 0;
    double fraction = 0;
    std::uint16_t peers = 1;
  };
  Duration fixed{}, alone{};
  std::vector<Row> rows{};
};

// Loads by work, device and side, asked once each.
class KnownLoads {
 public:
  KnownLoads(const OpGraph& graph, const CostModel& model) : graph_(graph), model_(model), known_(at(graph.device_count())) {}

  // Valid until the next call.
  const Loads& of(OpId op) {
    const std::span<const StreamId> parts = graph_.parts(op);
    const WorkId work = graph_.op(op).work;
    if (parts.size() == 1) return on(work, device_of(graph_, parts[0]), TransferSide::kBoth);
    together_ = {};
    for (std::size_t part = 0; part < parts.size(); ++part) {
      add(on(work, device_of(graph_, parts[part]), graph_.side(op, static_cast<std::int32_t>(part))));
    }
    for (const Loads::Row& row : together_.rows) place_[row.resource] = kNone;
    return together_;
  }

 private:
  // Of an op with several parts: fixed and alone the maxima over the parts, and of each resource the largest load.
  void add(const Loads& part) {
    together_.fixed = std::max(together_.fixed, part.fixed);
    together_.alone = std::max(together_.alone, part.alone);
    for (const Loads::Row& row : part.rows) {
      if (place_.size() <= row.resource) place_.resize(row.resource + 1, kNone);
      std::size_t& place = place_[row.resource];
      if (place == kNone) {
        place = together_.rows.size();
        together_.rows.push_back(row);
      } else {
        Loads::Row& known = together_.rows[place];
        known.fraction = std::max(known.fraction, row.fraction);
        known.peers = std::max(known.peers, row.peers);
      }
    }
  }

  const Loads& on(WorkId work, DeviceId device, TransferSide side) {
    std::vector<std::optional<Loads>>& of_side = known_[at(device.index)][static_cast<std::size_t>(side)];
    if (of_side.empty()) of_side.resize(graph_.works().size());
    std::optional<Loads>& loads = of_side[at(work.index)];
    if (loads) return *loads;
    const Cost cost = model_.cost(graph_.work(work), device, side);
    loads.emplace(Loads{.fixed = cost.fixed, .alone = cost.alone});
    for (const Load& load : cost.loads) {
      loads->rows.push_back(
          {at(load.resource.index), static_cast<double>(load.fraction_2e30) / static_cast<double>(kFullLoad), load.peers});
    }
    return *loads;
  }

  const OpGraph& graph_;
  const CostModel& model_;
  std::vector<std::array<std::vector<std::optional<Loads>>, 3>> known_;  // by device, side, work
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  Loads together_;
  std::vector<std::size_t> place_;  // by resource: its row in together_, kNone between two ops
};

}  // namespace

std::vector<ResourceUse> resource_use(const OpGraph& graph, const Machine& machine, const CostModel& model, const StepResult& result) {
  KnownLoads known(graph, model);
  const std::size_t resources = machine.resources.size(), queues = graph.queues().size();
  std::vector<Union> busy(resources + queues);
  std::vector<ResourceUse> uses(resources + queues);
  for (std::size_t i = 0; i < resources; ++i) uses[i].resource = ResourceId{static_cast<std::int32_t>(i)};
  for (std::size_t i = 0; i < queues; ++i) uses[resources + i].queue = QueueId{static_cast<std::int32_t>(i)};
  constexpr std::size_t kAhead = 16;  // runs; measured
  for (std::size_t i = 0; i < result.timeline.size(); ++i) {
    const OpRun& run = result.timeline[i];
    if (i + kAhead < result.timeline.size()) prefetch(&graph.op(result.timeline[i + kAhead].op));
    if (std::holds_alternative<Marker>(graph.work(run.op))) continue;
    const Loads& loads = known.of(run.op);
    const TimePoint loads_from = std::min(run.end, saturating_sum(run.start, loads.fixed));
    for (const Loads::Row& row : loads.rows) {
      busy[row.resource].add(loads_from, run.end);
      // The integral of x over the op is its time alone, however long it took.
      uses[row.resource].load_s += row.fraction * row.peers * seconds(loads.alone);
    }
    const auto parts = static_cast<std::int32_t>(graph.parts(run.op).size());
    for (std::int32_t part = 0; part < parts; ++part) {
      for (const QueueId queue : graph.queues(run.op, part)) {
        const std::size_t index = resources + at(queue.index);
        busy[index].add(run.start, run.end);
        uses[index].load_s += seconds(run.end - run.start) / graph.queues()[at(queue.index)].slots;
      }
    }
  }
  for (std::size_t i = 0; i < uses.size(); ++i) uses[i].busy = busy[i].length();
  return uses;
}

}  // namespace stepsim
