#include "tools/offload_report.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "sim/check.h"
#include "tools/staging.h"

namespace stepsim {

namespace {

struct Span {
  TimePoint begin{}, end{};
};

Duration length(const std::vector<Span>& spans) {
  Duration sum{};
  for (const Span& span : spans) sum += span.end - span.begin;
  return sum;
}

// Sorted, without overlaps.
std::vector<Span> merged(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });
  std::vector<Span> result;
  for (const Span& span : spans) {
    if (span.begin >= span.end) continue;
    if (!result.empty() && span.begin <= result.back().end) {
      result.back().end = std::max(result.back().end, span.end);
    } else {
      result.push_back(span);
    }
  }
  return result;
}

// Of two sorted lists without overlaps.
Duration common(const std::vector<Span>& a, const std::vector<Span>& b) {
  Duration sum{};
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const TimePoint begin = std::max(a[i].begin, b[j].begin), end = std::min(a[i].end, b[j].end);
    if (begin < end) sum += end - begin;
    a[i].end < b[j].end ? ++i : ++j;
  }
  return sum;
}

DeviceId device_of(const OpGraph& graph, OpId op) { return graph.streams()[at(graph.op(op).stream.index)].device; }

// Of what is offloaded: small copies that kernels need stand on the compute stream.
const Copy* host_copy(const OpGraph& graph, OpId op) {
  const auto* copy = std::get_if<Copy>(&graph.work(op));
  const StreamId stream = graph.op(op).stream;
  if (!stream.valid() || graph.streams()[at(stream.index)].compute) return nullptr;
  return copy == nullptr || copy->direction == CopyDirection::kDeviceToDevice ? nullptr : copy;
}

// By device: when its compute stream is in forward and when in backward, waiting for the next op of that phase included.
struct PhaseTimes {
  std::vector<Span> forward{}, backward{};
};

std::vector<PhaseTimes> phase_times(const OpGraph& graph, const StepResult& result) {
  std::vector<PhaseTimes> times(at(graph.device_count()));
  std::vector<TimePoint> now(times.size());
  for (const OpRun& run : result.timeline) {  // by start: as each compute stream has them
    const Op& op = graph.op(run.op);
    if (!op.stream.valid() || !graph.streams()[at(op.stream.index)].compute) continue;
    const std::size_t device = at(device_of(graph, run.op).index);
    const auto phase = static_cast<Phase>(graph.bucket(op.phase));
    const Span span{now[device], run.end};
    now[device] = std::max(now[device], run.end);
    if (phase == Phase::kForward) times[device].forward.push_back(span);
    if (phase == Phase::kBackward || phase == Phase::kRecompute) times[device].backward.push_back(span);
  }
  for (PhaseTimes& each : times) each = {merged(std::move(each.forward)), merged(std::move(each.backward))};
  return times;
}

bool is_link(const Resource& resource) {
  return resource.kind == "link in" || resource.kind == "link out" || resource.kind == "root port in" || resource.kind == "root port out" ||
         resource.kind == "host memory";
}

// The copies of a link or engine as they hold it, and whose phases they are compared with.
struct Use {
  DeviceId device{};
  std::vector<Span> spans{};
};

std::vector<CopyUse> copy_uses(const StepRun& run) {
  const OpGraph& graph = run.step.graph;
  std::map<std::int32_t, Use> links, engines;  // by ResourceId, QueueId
  const auto add = [](std::map<std::int32_t, Use>& uses, std::int32_t index, DeviceId device, Span span) {
    Use& use = uses[index];
    use.device = device;
    use.spans.push_back(span);
  };
  for (const OpRun& timed : run.run.result.timeline) {
    if (host_copy(graph, timed.op) == nullptr) continue;
    const DeviceId device = device_of(graph, timed.op);
    for (const QueueId queue : graph.queues(timed.op, 0)) add(engines, queue.index, device, {timed.start, timed.end});
    const Cost cost = run.costs->cost(graph.work(timed.op), device);
    for (const Load& load : cost.loads) {  // it loads nothing in its fixed part
      if (is_link(run.run.machine.resources[at(load.resource.index)]))
        add(links, load.resource.index, device, {timed.start + cost.fixed, timed.end});
    }
  }
  const std::vector<PhaseTimes> phases = phase_times(graph, run.run.result);
  const double step_s = run.step_time_s();
  const auto share = [](Duration part, Duration whole) { return whole > Duration{} ? seconds(part) / seconds(whole) : 0.0; };
  std::vector<CopyUse> rows;
  const auto report = [&](const std::string& name, const Use& use) {
    const std::vector<Span> spans = merged(use.spans);
    const PhaseTimes& phase = phases[at(use.device.index)];
    rows.push_back({.name = name,
                    .device = use.device,
                    .busy = length(spans),
                    .of_step = step_s > 0 ? seconds(length(spans)) / step_s : 0,
                    .of_forward = share(common(spans, phase.forward), length(phase.forward)),
                    .of_backward = share(common(spans, phase.backward), length(phase.backward))});
  };
  for (const auto& [index, use] : links) report(run.run.machine.resources[at(index)].name, use);
  for (const auto& [index, use] : engines) report(resource_name({.queue = QueueId{index}}, graph, run.run.machine), use);
  return rows;
}

// By op: the compute op before it on its stream that takes time, or none.
std::vector<OpId> op_before(const OpGraph& graph) {
  std::vector<OpId> before(graph.ops().size());
  for (std::int32_t stream = 0; at(stream) < graph.streams().size(); ++stream) {
    if (!graph.streams()[at(stream)].compute) continue;
    OpId last{};
    for (const OpId op : graph.stream_order(StreamId{stream})) {
      before[at(op.index)] = last;
      if (op_class(graph.work(op)) != OpClass::kMarker) last = op;
    }
  }
  return before;
}

std::vector<ReloadSlack> reload_slack(const StepRun& run, const CopiedStorages& copied) {
  const OpGraph& graph = run.step.graph;
  const std::vector<OpId> before = op_before(graph);
  std::vector<const OpRun*> runs(graph.ops().size(), nullptr);
  for (const OpRun& timed : run.run.result.timeline) runs[at(timed.op.index)] = &timed;
  std::vector<ReloadSlack> rows;
  for (const ReloadedStorage& storage : copied.reloaded) {
    const OpRun* const copy = runs[at(storage.copy.index)];
    const bool used = storage.first_use.valid() && runs[at(storage.first_use.index)] != nullptr;
    if (copy == nullptr || !used) continue;  // the step was stopped
    const OpId previous = before[at(storage.first_use.index)];
    const OpRun* const done = previous.valid() ? runs[at(previous.index)] : nullptr;
    const TimePoint needed = done == nullptr ? TimePoint{} : done->end;
    rows.push_back({needed - copy->end, graph.op_name(storage.copy)});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const ReloadSlack& a, const ReloadSlack& b) { return a.slack < b.slack; });
  return rows;
}

// Bytes over the time that hides them, of the stage that ends last.
void add_hidden_rates(const StepRun& run, OffloadReport& report) {
  const TimePartition& time = run.run.time;
  if (!time.device.valid()) return;
  const auto busy = [&](Phase phase) {
    const auto i = static_cast<std::size_t>(phase);
    return i < time.busy.size() ? time.busy[i] : Duration{};
  };
  const auto rate = [](Bytes bytes, Duration hiding) -> std::optional<BytesPerSecond> {
    if (bytes.value == 0 || hiding <= Duration{}) return std::nullopt;
    return BytesPerSecond(static_cast<double>(bytes.value) / seconds(hiding));
  };
  const StageOffload& stage = report.stages[at(time.device.index)];
  report.hidden_out = rate(stage.out, busy(Phase::kForward));
  report.hidden_in = rate(stage.in, busy(Phase::kBackward) + busy(Phase::kRecompute));
}

}  // namespace

std::size_t OffloadReport::late() const {
  return static_cast<std::size_t>(
      std::count_if(slack.begin(), slack.end(), [](const ReloadSlack& each) { return each.slack < Duration{}; }));
}

const ReloadSlack& OffloadReport::median() const {
  STEPSIM_CHECK(!slack.empty());
  return slack[(slack.size() - 1) / 2];
}

const CopyUse* OffloadReport::link(DeviceId device, const std::string& direction) const {
  const std::string name = device_name(device) + " link " + direction;
  const auto found = std::find_if(links.begin(), links.end(), [&](const CopyUse& use) { return use.name == name; });
  return found == links.end() ? nullptr : &*found;
}

std::size_t OffloadReport::fullest_host() const {
  STEPSIM_CHECK(!stages.empty());
  const auto less = [](const StageOffload& a, const StageOffload& b) { return a.host_peak < b.host_peak; };
  return static_cast<std::size_t>(std::max_element(stages.begin(), stages.end(), less) - stages.begin());
}

std::optional<OffloadReport> offload_report(const Job& job, const StepRun& run) {
  if (!job.placement.offloads()) return std::nullopt;
  const OpGraph& graph = run.step.graph;
  OffloadReport report;
  report.stages.resize(at(graph.device_count()));
  for (const OpRun& timed : run.run.result.timeline) {
    const Copy* const copy = host_copy(graph, timed.op);
    if (copy == nullptr) continue;
    StageOffload& stage = report.stages[at(device_of(graph, timed.op).index)];
    (copy->direction == CopyDirection::kDeviceToHost ? stage.out : stage.in) += copy->bytes;
    ++stage.copies;
  }
  const CopiedStorages copied = copied_storages(graph);
  const std::vector<Staging> staging = staging_of(graph, run.run.result, copied);
  const std::vector<Bytes> on_host = host_copied(graph, run.run.result);
  for (std::size_t i = 0; i < report.stages.size(); ++i) {
    StageOffload& stage = report.stages[i];
    report.out += stage.out;
    report.in += stage.in;
    report.copies += stage.copies;
    stage.host_peak = run.run.memory[i].host_peak;
    stage.host_copied = on_host[i];
    stage.staging_at_peak = staging[i].at_peak;
    stage.staging_peak = staging[i].peak;
  }
  report.links = copy_uses(run);
  report.slack = reload_slack(run, copied);
  add_hidden_rates(run, report);
  return report;
}

}  // namespace stepsim
