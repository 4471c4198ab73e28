#include "traces/chrome_trace_writer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <vector>

#include "sim/check.h"
#include "traces/memory_curve.h"
#include "traces/trace_rows.h"
#include "traces/work_text.h"

namespace stepsim {

namespace {

constexpr std::int64_t kPicosecondsPerNanosecond = 1000;

std::int64_t nanoseconds(TimePoint t) {
  STEPSIM_CHECK(t.count() >= 0);
  return t.count() / kPicosecondsPerNanosecond;
}

// Exact below 2^53 and the shortest text that reads back as the same double.
std::string number_text(double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
  return std::string(text.data(), end.ptr);
}

// The members of "args" that say what the work is, each with a comma behind; made once for equal work.
std::string work_members(const OpWork& work) {
  std::string members;
  const std::string text = work_text(work);
  if (!text.empty()) members += "\"work\":\"" + json_escaped(text) + "\",";
  const double flops = arithmetic(work).value;
  if (flops > 0) members += "\"flops\":" + number_text(flops) + ",";
  const std::int64_t bytes = memory_traffic(work).value;
  if (bytes > 0) members += "\"bytes\":" + std::to_string(bytes) + ",";
  return members;
}

// Runs by op, and in the order in which their slices are written: by start, but after all that they wait for. Without the second condition
// an op of zero length could follow an op that it released at the same instant, and its flow would end before it begins.
struct RunOrder {
  std::vector<const OpRun*> of_op;  // null: did not run
  std::vector<const OpRun*> order;

  RunOrder(const OpGraph& graph, const StepResult& result) : of_op(graph.ops().size(), nullptr) {
    for (const OpRun& run : result.timeline) of_op[at(run.op.index)] = &run;
    order.reserve(result.timeline.size());
    std::vector<bool> done(graph.ops().size(), false);
    struct Visit {
      OpId op;
      std::size_t next_edge = 0;
    };
    std::vector<Visit> pending;
    for (const OpRun& run : result.timeline) {
      pending.push_back({run.op});
      while (!pending.empty()) {
        Visit& visit = pending.back();
        const std::span<const Edge> edges = graph.predecessors(visit.op);
        if (done[at(visit.op.index)] || visit.next_edge == edges.size()) {
          if (!done[at(visit.op.index)]) order.push_back(of_op[at(visit.op.index)]);
          done[at(visit.op.index)] = true;
          pending.pop_back();
          continue;
        }
        const OpId from = edges[visit.next_edge++].from;
        const OpRun* before = of_op[at(from.index)];
        if (before != nullptr && !done[at(from.index)] && before->start == of_op[at(visit.op.index)]->start) pending.push_back({from});
      }
    }
  }
};

// Edges across streams whose ops both ran, by the op that they leave; a flow's id is its place among all edges, by the op that they enter.
struct Flows {
  struct Leaving {
    OpId to;
    std::int64_t id;
    EdgeKind kind;
  };
  std::vector<Leaving> leaving;            // rows by op
  std::vector<std::size_t> leaving_begin;  // one more than ops
  std::vector<std::int64_t> entering_begin;

  Flows(const OpGraph& graph, const std::vector<const OpRun*>& runs) {
    const std::size_t ops = graph.ops().size();
    leaving_begin.assign(ops + 1, 0);
    entering_begin.assign(ops + 1, 0);
    for (std::size_t to = 0; to < ops; ++to) {
      entering_begin[to + 1] = entering_begin[to];
      for (const Edge& edge : graph.predecessors(op_id(to))) {
        if (!shown(graph, runs, edge, op_id(to))) continue;
        ++leaving_begin[at(edge.from.index) + 1];
        ++entering_begin[to + 1];
      }
    }
    for (std::size_t op = 0; op < ops; ++op) leaving_begin[op + 1] += leaving_begin[op];
    leaving.resize(leaving_begin.back());
    std::vector<std::size_t> next(leaving_begin.begin(), leaving_begin.end() - 1);
    std::int64_t id = 0;
    for (std::size_t to = 0; to < ops; ++to) {
      for (const Edge& edge : graph.predecessors(op_id(to))) {
        if (shown(graph, runs, edge, op_id(to))) leaving[next[at(edge.from.index)]++] = {op_id(to), ++id, edge.kind};
      }
    }
  }

  static OpId op_id(std::size_t index) { return OpId{static_cast<std::int32_t>(index)}; }

  static bool shown(const OpGraph& graph, const std::vector<const OpRun*>& runs, const Edge& edge, OpId to) {
    if (runs[at(edge.from.index)] == nullptr || runs[at(to.index)] == nullptr) return false;
    const std::span<const StreamId> from_parts = graph.parts(edge.from), to_parts = graph.parts(to);
    if (from_parts.size() == 1 && to_parts.size() == 1) return from_parts.front() != to_parts.front();
    if (from_parts.empty() && to_parts.empty()) return false;  // both outside every stream
    return std::find_first_of(from_parts.begin(), from_parts.end(), to_parts.begin(), to_parts.end()) == from_parts.end();
  }
};

class TraceText {
 public:
  TraceText(const OpGraph& graph, const StepResult& result, const ChromeTraceOptions& options, const TextSink& sink)
      : graph_(graph), result_(result), options_(options), out_(sink), runs_(graph, result) {
    if (options.flows) flows_.emplace(graph, runs_.of_op);
    for (std::int32_t i = 0; i < graph.label_count(); ++i) labels_.push_back(json_escaped(graph.label(LabelId{i})));
    for (const OpWork& work : graph.works()) {
      const OpClass kind = op_class(work);
      works_.push_back({class_text(kind), work_members(work), kind == OpClass::kPointToPoint});
    }
  }

  void write() {
    out_ << "{\"traceEvents\":[";
    for (std::int32_t device = 0; device < graph_.device_count(); ++device) {
      const bool named = at(device) < options_.device_names.size();
      process(device + 1, named ? json_escaped(options_.device_names[at(device)]) : "device " + std::to_string(device));
    }
    TraceRows rows(graph_, [this](TraceRow row, const std::string& name, std::int32_t sort_index) { announce(row, name, sort_index); });
    const bool markers_outside =
        std::any_of(result_.timeline.begin(), result_.timeline.end(), [&](const OpRun& run) { return graph_.parts(run.op).empty(); });
    if (markers_outside) process(rows.outside_process(), "outside the streams");
    for (const OpRun* run : runs_.order) slices(*run, rows);
    memory();
    out_ << "\n],\"metadata\":{\"generator\":\"stepsim\",\"title\":\"" << json_escaped(options_.title) << "\"}}\n";
    out_.flush();
  }

 private:
  struct WorkText {
    std::string_view category;
    std::string members;
    bool point_to_point = false;
  };

  TextBlock& event() {
    out_ << (first_ ? "\n" : ",\n");
    first_ = false;
    return out_;
  }

  void process(std::int32_t process, const std::string& name) {
    event() << "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":" << std::int64_t{process} << ",\"args\":{\"name\":\"" << name << "\"}}";
    event() << "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":" << std::int64_t{process}
            << ",\"args\":{\"sort_index\":" << std::int64_t{process} << "}}";
  }

  void announce(TraceRow row, const std::string& name, std::int32_t sort_index) {
    event() << "{\"ph\":\"M\",\"name\":\"thread_name\"";
    place(row) << ",\"args\":{\"name\":\"" << json_escaped(name) << "\"}}";
    event() << "{\"ph\":\"M\",\"name\":\"thread_sort_index\"";
    place(row) << ",\"args\":{\"sort_index\":" << std::int64_t{sort_index} << "}}";
  }

  TextBlock& place(TraceRow row) { return out_ << ",\"pid\":" << std::int64_t{row.process} << ",\"tid\":" << std::int64_t{row.thread}; }
  TextBlock& microseconds(std::string_view key, std::int64_t nanoseconds_since_start) {
    return (out_ << key).decimal(nanoseconds_since_start, 3);
  }

  // All slices and flow ends of one op, in each event what varies last: it compresses better and faster. The flow ends follow their slice
  // directly: among slices of one row that start together, a viewer binds a flow to the one read last.
  void slices(const OpRun& run, TraceRows& rows) {
    static constexpr std::array<StreamId, 1> kOutside = {StreamId{}};
    std::span<const StreamId> parts = graph_.parts(run.op);
    if (parts.empty()) parts = kOutside;
    const NanosecondSpan span{.start = nanoseconds(run.start), .end = nanoseconds(run.end)};
    row_of_part_.clear();
    for (std::size_t part = 0; part < parts.size(); ++part) {
      if (parts.size() > 1) wait(run, static_cast<std::int32_t>(part), parts[part], rows);
      row_of_part_.push_back(rows.row(parts[part], span));
    }
    for (std::size_t part = 0; part < parts.size(); ++part) {
      slice(run, row_of_part_[part], span);
      if (flows_) flow_ends(run.op, part, span);
    }
    const bool transfer = flows_ && parts.size() > 1 && works_[at(graph_.op(run.op).work.index)].point_to_point;
    const std::size_t sender = transfer ? sending_part(run.op) : 0;
    for (std::size_t part = 0; transfer && part < parts.size(); ++part) {
      if (part != sender) transfer_flow(sender, part, span);
    }
  }

  std::size_t sending_part(OpId op) const { return graph_.side(op, 1) == TransferSide::kSends ? 1 : 0; }

  // Behind the slices of both parts: of slices of one row that start together, an end binds to the one read last.
  void transfer_flow(std::size_t sender, std::size_t receiver, NanosecondSpan span) {
    const std::int64_t id = flows_->entering_begin.back() + ++transfers_;
    flow_end("s", id, "transfer", row_of_part_[sender], span.start);
    flow_end("f\",\"bp\":\"e", id, "transfer", row_of_part_[receiver], std::max(span.start, span.end - 1));
  }

  void slice(const OpRun& run, TraceRow row, NanosecondSpan span) {
    const Op& op = graph_.op(run.op);
    const WorkText& work = works_[at(op.work.index)];
    event() << "{\"ph\":\"X\",\"name\":\"";
    name(run.op);
    out_ << "\",\"cat\":\"" << work.category << "\"";
    place(row);
    out_ << ",\"args\":{" << work.members << "\"op\":" << std::int64_t{run.op.index};
    if (op.micro_batch >= 0) out_ << ",\"micro_batch\":" << std::int64_t{op.micro_batch};
    if (op.origin.valid()) out_ << ",\"runs_again_op\":" << std::int64_t{op.origin.index};
    if (run.slowed.count() >= kPicosecondsPerNanosecond) microseconds(",\"slowed_us\":", nanoseconds(run.slowed));
    microseconds("},\"ts\":", span.start);
    microseconds(",\"dur\":", span.end - span.start) << "}";
  }

  // "forward L3 attention": the same for every micro-batch, since viewers colour by name.
  void name(OpId id) {
    const Op& op = graph_.op(id);
    const std::string_view phase = label(op.phase), kind = label(op.kind);
    out_ << phase;
    bool empty = phase.empty();
    if (op.layer >= 0) {
      out_ << (empty ? "L" : " L") << std::int64_t{op.layer};
      empty = false;
    }
    if (!kind.empty()) {
      if (!empty) out_ << " ";
      out_ << kind;
      empty = false;
    }
    if (empty) out_ << "op";
  }
  std::string_view label(LabelId id) const { return id.valid() ? std::string_view(labels_[at(id.index)]) : std::string_view(); }

  void wait(const OpRun& run, std::int32_t part, StreamId stream, TraceRows& rows) {
    const auto found = std::lower_bound(result_.parts.begin(), result_.parts.end(), std::pair(run.op, part),
                                        [](const PartRun& a, const auto& b) { return std::pair(a.op, a.part) < b; });
    if (found == result_.parts.end() || found->op != run.op || found->part != part) return;
    const NanosecondSpan span{.start = nanoseconds(found->occupied), .end = nanoseconds(run.start)};
    if (span.start >= span.end) return;
    event() << "{\"ph\":\"X\",\"name\":\"wait\",\"cat\":\"wait\"";
    place(rows.row(stream, span));
    microseconds(",\"ts\":", span.start);
    microseconds(",\"dur\":", span.end - span.start) << ",\"args\":{\"op\":" << std::int64_t{run.op.index} << "}}";
  }

  struct PartPair {
    std::size_t from = 0, to = 0;
  };
  // Which parts a flow joins: the first two on one device, else the first of each.
  PartPair joined_parts(OpId from, OpId to) const {
    const std::span<const StreamId> from_parts = graph_.parts(from), to_parts = graph_.parts(to);
    if (from_parts.size() < 2 && to_parts.size() < 2) return {};
    for (std::size_t i = 0; i < from_parts.size(); ++i) {
      for (std::size_t j = 0; j < to_parts.size(); ++j) {
        if (device(from_parts[i]) == device(to_parts[j])) return {i, j};
      }
    }
    return {};
  }
  DeviceId device(StreamId stream) const { return graph_.streams()[at(stream.index)].device; }

  void flow_ends(OpId id, std::size_t part, NanosecondSpan span) {
    std::int64_t entering = flows_->entering_begin[at(id.index)];
    for (const Edge& edge : graph_.predecessors(id)) {
      if (!Flows::shown(graph_, runs_.of_op, edge, id)) continue;
      ++entering;
      if (joined_parts(edge.from, id).to == part)
        flow_end("f\",\"bp\":\"e", entering, edge_text(edge.kind), row_of_part_[part], span.start);
    }
    for (std::size_t i = flows_->leaving_begin[at(id.index)]; i < flows_->leaving_begin[at(id.index) + 1]; ++i) {
      const Flows::Leaving& flow = flows_->leaving[i];
      // The last nanosecond of the slice: its end may be the start of the next one.
      const std::int64_t leaves = flow.kind == EdgeKind::kStartToStart ? span.start : std::max(span.start, span.end - 1);
      if (joined_parts(id, flow.to).from == part) flow_end("s", flow.id, edge_text(flow.kind), row_of_part_[part], leaves);
    }
  }

  static std::string_view edge_text(EdgeKind kind) { return kind == EdgeKind::kStartToStart ? "after start" : "after"; }

  void flow_end(std::string_view phase, std::int64_t id, std::string_view what, TraceRow row, std::int64_t instant) {
    event() << "{\"ph\":\"" << phase << "\",\"name\":\"" << what << "\",\"cat\":\"flow\"";
    place(row) << ",\"id\":" << id;
    microseconds(",\"ts\":", instant) << "}";
  }

  // A counter a device and space; every key in every event, since chrome://tracing stacks what one event holds.
  void memory() {
    const std::size_t buckets = bucket_count(graph_);
    const std::vector<std::string> names = bucket_names(options_.role_names, buckets);
    std::vector<bool> used(buckets, false);
    for (const Storage& storage : graph_.storages()) used[at(graph_.bucket(storage.role))] = true;
    std::vector<std::pair<std::size_t, std::string>> keys;
    for (std::size_t i = 0; i < buckets; ++i) {
      if (used[i]) keys.emplace_back(i, (keys.empty() ? "\"" : ",\"") + json_escaped(names[i]) + "\":");
    }
    replay_memory(graph_, result_, Duration(kPicosecondsPerNanosecond), [&](const MemoryPoint& point) {
      event() << "{\"ph\":\"C\",\"name\":\"" << (point.space == MemorySpace::kHost ? "host memory" : "memory")
              << "\",\"pid\":" << std::int64_t{point.device.index + 1} << ",\"args\":{";
      for (const auto& [bucket, key] : keys) out_ << key << point.by_bucket[bucket].value;
      microseconds("},\"ts\":", nanoseconds(point.at)) << "}";
    });
  }

  const OpGraph& graph_;
  const StepResult& result_;
  const ChromeTraceOptions& options_;
  TextBlock out_;
  RunOrder runs_;
  std::optional<Flows> flows_;
  std::vector<std::string> labels_;
  std::vector<WorkText> works_;
  std::vector<TraceRow> row_of_part_;  // of the op being written
  std::int64_t transfers_ = 0;         // flows along point-to-point ops so far
  bool first_ = true;
};

}  // namespace

void write_chrome_trace(const OpGraph& graph, const StepResult& result, const ChromeTraceOptions& options, const TextSink& sink) {
  TraceText(graph, result, options, sink).write();
}

}  // namespace stepsim
