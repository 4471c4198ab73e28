#include "traces/graph_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <tuple>

#include "schema/nearest_name.h"
#include "traces/graph.pb.h"
#include "traces/graph_work.h"
#include "traces/name_table.h"

namespace stepsim {

namespace {

constexpr int kMostParts = 1024;  // of one op, and queues of a part, and loads: they are compared in pairs
constexpr std::int64_t kMostPeers = std::numeric_limits<std::uint16_t>::max();

using Strings = google::protobuf::RepeatedPtrField<std::string>;

class OpReader {
 public:
  OpReader(const graph_file::Graph& graph, const GraphSource& source, GraphTables& tables, OpGraphBuilder& builder, GraphFile& file)
      : graph_(graph), source_(source), tables_(tables), builder_(builder), file_(file), phases_(""), groups_("") {
    groups_.bucket("");
    phases_.bucket("");
    read_names();
  }

  void add_all() {
    for (int i = 0; i < graph_.ops_size(); ++i) add(i);
    file_.phase_names = phases_.words();
    file_.group_names = groups_.words();
    set_phase_meaning();
  }

  const std::vector<std::string>& names() const { return names_.names(); }

 private:
  // What an op refers to; kept from op to op for its memory.
  struct Links {
    std::vector<Edge> edges;
    std::vector<Tensor> reads, writes;
    std::vector<StorageId> holds;
    std::vector<OpId> issue_after;
    std::vector<std::vector<QueueId>> queues;  // by part
    std::vector<StreamId> streams;
  };
  using LoadKey = std::tuple<std::int32_t, std::uint32_t, std::uint16_t, std::uint16_t, bool>;
  using CostKey = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::vector<LoadKey>>;

  void read_names();
  void add(int index);
  OpWork work(const graph_file::Op& op, const FieldPath& path);
  std::int32_t cost_row(const graph_file::Op& op, const FieldPath& path);
  Load load(const graph_file::Load& load, const FieldPath& path) const;
  OpId op_named(const std::string& name, const FieldPath& path) const;
  void read_edges(const Strings& names, EdgeKind kind, std::string_view field, const FieldPath& path, int index);
  void read_tensors(const Strings& names, std::string_view field, const FieldPath& path, std::vector<Tensor>& tensors);
  void read_parts(const graph_file::Op& op, const FieldPath& path, bool marker);
  void read_launch(const graph_file::Op& op, const FieldPath& path, Op& added);
  void set_phase_meaning();

  const graph_file::Graph& graph_;
  const GraphSource& source_;
  GraphTables& tables_;
  OpGraphBuilder& builder_;
  GraphFile& file_;
  NameTable names_;
  Buckets phases_, groups_;
  std::map<CostKey, std::int32_t> rows_;
  Links links_;
  std::int64_t time_left_ = std::numeric_limits<std::int64_t>::max() / 2;
};

void OpReader::read_names() {
  for (int i = 0; i < graph_.ops_size(); ++i) {
    const std::string& name = graph_.ops(i).name();
    if (name.empty()) {
      names_.add_nameless();
    } else if (!names_.add(name)) {
      const FieldPath path{nullptr, "ops", i};
      source_.fail({&path, "name"}, "found a second op " + in_quotes(name) + ", wanted unique names");
    }
  }
}

OpId OpReader::op_named(const std::string& name, const FieldPath& path) const {
  if (const std::optional<std::int32_t> found = names_.find(name)) return OpId{*found};
  std::int32_t number = -1;
  if (name.starts_with('#')) {
    const char* end = name.data() + name.size();
    const auto [last, error] = std::from_chars(name.data() + 1, end, number);
    if (error == std::errc() && last == end && number >= 0) {
      if (number < graph_.ops_size()) return OpId{number};
      source_.fail(path, fmt::format("found {}, wanted an op from #0 to #{}", in_quotes(name), graph_.ops_size() - 1));
    }
  }
  source_.fail(path, "found " + in_quotes(name) + ", wanted the name of an op" + suggestion(name, names_.names()));
}

void OpReader::read_edges(const Strings& names, EdgeKind kind, std::string_view field, const FieldPath& path, int index) {
  for (int i = 0; i < names.size(); ++i) {
    const FieldPath place{&path, field, i};
    const OpId from = op_named(names[i], place);
    if (from.index == index) source_.fail(place, "found " + in_quotes(names[i]) + ", the op itself, wanted another op");
    links_.edges.push_back({.from = from, .kind = kind});
  }
}

void OpReader::read_tensors(const Strings& names, std::string_view field, const FieldPath& path, std::vector<Tensor>& tensors) {
  tensors.clear();
  for (int i = 0; i < names.size(); ++i) {
    const StorageId storage = tables_.storage({&path, field, i}, names[i]);
    tensors.push_back({.storage = storage, .offset = Bytes(0), .size = tables_.storage_size(storage)});
  }
}

void OpReader::read_parts(const graph_file::Op& op, const FieldPath& path, bool marker) {
  links_.streams.clear();
  links_.queues.clear();
  const auto add_part = [&](const FieldPath& part_path, const std::string& stream, const Strings& queues) {
    links_.streams.push_back(tables_.stream({&part_path, "stream"}, stream));
    std::vector<QueueId>& added = links_.queues.emplace_back();
    if (queues.size() > kMostParts) source_.fail(part_path, fmt::format("found {} queues, wanted at most {}", queues.size(), kMostParts));
    for (int i = 0; i < queues.size(); ++i) {
      const FieldPath place{&part_path, "queues", i};
      const QueueId queue = tables_.queue(place, queues[i]);
      if (std::find(added.begin(), added.end(), queue) != added.end()) {
        source_.fail(place, "found " + in_quotes(queues[i]) + " twice, wanted each queue once");
      }
      added.push_back(queue);
    }
  };
  if (op.parts_size() == 0) {
    if (!op.stream().empty()) return add_part(path, op.stream(), op.queues());
    if (!marker) source_.fail(path, "found an op without stream, wanted stream: \"compute\" or the like");
    if (op.queues_size() > 0) source_.fail({&path, "queues", 0}, "found a queue of an op without stream, wanted a stream too");
    return;
  }
  if (!op.stream().empty() || op.queues_size() > 0) {
    source_.fail({&path, "parts", 0}, "found parts beside stream or queues, wanted one of the two");
  }
  if (op.parts_size() > kMostParts) source_.fail(path, fmt::format("found {} parts, wanted at most {}", op.parts_size(), kMostParts));
  for (int i = 0; i < op.parts_size(); ++i) {
    const FieldPath part_path{&path, "parts", i};
    if (op.parts(i).stream().empty()) source_.fail(part_path, "found a part without stream, wanted one");
    add_part(part_path, op.parts(i).stream(), op.parts(i).queues());
    const auto before = links_.streams.end() - 1;
    if (std::find(links_.streams.begin(), before, *before) != before) {
      source_.fail(part_path, "found two parts on stream " + in_quotes(op.parts(i).stream()) + ", wanted a stream for each");
    }
  }
}

Load OpReader::load(const graph_file::Load& from, const FieldPath& path) const {
  const double fraction = from.fraction();
  if (!(fraction > 0 && fraction <= 1)) {
    source_.fail({&path, "fraction"}, fmt::format("found {}, wanted a fraction above 0, at most 1", fraction));
  }
  const auto count = [&](std::string_view name, bool given, std::int64_t value) {
    return static_cast<std::uint16_t>(given ? source_.within({&path, name}, value, 1, kMostPeers) : 1);
  };
  return {.resource = tables_.resource({&path, "resource"}, from.resource()),
          .fraction_2e30 = load_fraction(fraction),
          .peers = count("peers", from.has_peers(), from.peers()),
          .weight = count("weight", from.has_weight(), from.weight()),
          .while_waiting = from.while_waiting()};
}

std::int32_t OpReader::cost_row(const graph_file::Op& op, const FieldPath& path) {
  GivenCostModel::Row row;
  if (op.has_duration()) row.alone = source_.duration({&path, "duration"}, op.duration());
  if (op.has_fixed()) row.fixed = source_.duration({&path, "fixed"}, op.fixed());
  if (op.has_alone()) row.alone = source_.duration({&path, "alone"}, op.alone());
  if (op.has_issue()) row.issue = source_.duration({&path, "issue"}, op.issue());
  if (op.loads_size() > kMostParts) source_.fail(path, fmt::format("found {} loads, wanted at most {}", op.loads_size(), kMostParts));
  std::int64_t most_peers = 1;
  for (int i = 0; i < op.loads_size(); ++i) {
    const FieldPath place{&path, "loads", i};
    row.loads.push_back(load(op.loads(i), place));
    most_peers = std::max<std::int64_t>(most_peers, row.loads.back().peers);
    for (int other = 0; other < i; ++other) {
      if (row.loads[static_cast<std::size_t>(other)].resource != row.loads.back().resource) continue;
      source_.fail(place, "found a second load of " + in_quotes(op.loads(i).resource()) + ", wanted each resource once");
    }
  }
  // All ops one after the other, each slowed by its peers alone, must end before the clock does.
  const auto take = [&](Duration part, std::int64_t slowed_by) {
    if (part.count() > time_left_ / slowed_by) source_.fail(path, "found ops of more than 53 days together, wanted less");
    time_left_ -= part.count() * slowed_by;
  };
  take(row.fixed, 1);
  take(row.issue, 1);
  take(row.alone, most_peers);
  std::vector<LoadKey> loads;
  for (const Load& each : row.loads) {
    loads.emplace_back(each.resource.index, each.fraction_2e30, each.peers, each.weight, each.while_waiting);
  }
  CostKey key{row.fixed.count(), row.alone.count(), row.issue.count(), std::move(loads)};
  const auto [found, added] = rows_.try_emplace(std::move(key), static_cast<std::int32_t>(file_.costs.size()));
  if (added) file_.costs.push_back(std::move(row));
  return found->second;
}

OpWork OpReader::work(const graph_file::Op& op, const FieldPath& path) {
  const std::optional<OpWork> modelled = work_of(op, path, source_);
  const bool given = op.has_duration() || op.has_fixed() || op.has_alone();
  if (op.has_duration() && (op.has_fixed() || op.has_alone())) {
    source_.fail({&path, "duration"}, "found duration beside fixed or alone, wanted one of the two");
  }
  if (modelled && given) source_.fail(path, "found a work and a given time, wanted one of the two");
  if (!modelled && !given) {
    source_.fail(path, "found an op without time, wanted a duration like \"5 us\", a work like gemm, or marker: true");
  }
  if (given) return Given{.index = cost_row(op, path), .op_class = given_class(op, path, source_)};
  if (op.has_issue()) source_.fail({&path, "issue"}, "found an issue time without duration, wanted both or neither");
  if (op.loads_size() > 0) source_.fail({&path, "loads", 0}, "found loads without duration, wanted both or neither");
  if (!std::holds_alternative<Marker>(*modelled)) {
    file_.needs_cost_model = true;
  } else if (op.writes_size() > 0) {
    source_.fail({&path, "writes", 0}, "found a marker that writes, wanted holds");
  }
  return *modelled;
}

void OpReader::read_launch(const graph_file::Op& op, const FieldPath& path, Op& added) {
  links_.issue_after.clear();
  if (op.issuer().empty()) {
    const bool launched = op.has_issue() || op.issue_after_size() > 0 || op.has_launch_group();
    if (launched) source_.fail(path, "found issue, issue_after or launch_group without issuer, wanted an issuer too");
    return;
  }
  added.issuer = tables_.issuer({&path, "issuer"}, op.issuer());
  if (op.has_launch_group()) {
    added.launch_group = static_cast<std::int32_t>(source_.within({&path, "launch_group"}, op.launch_group(), 0, kLargestIndex));
  }
  for (int i = 0; i < op.issue_after_size(); ++i) links_.issue_after.push_back(op_named(op.issue_after(i), {&path, "issue_after", i}));
}

void OpReader::add(int index) {
  const FieldPath path{nullptr, "ops", index};
  const graph_file::Op& op = graph_.ops(index);
  const OpWork its_work = work(op, path);
  read_parts(op, path, std::holds_alternative<Marker>(its_work));
  const std::string& kind = op.kind().empty() ? op.name() : op.kind();
  Op added{.work = builder_.work(its_work),
           .stream = links_.streams.empty() ? StreamId{} : links_.streams.front(),
           .phase = builder_.label(op.phase(), phases_.bucket(op.phase())),
           .kind = builder_.label(kind, groups_.bucket(op.group())),
           .priority = op.priority()};
  if (op.has_layer()) added.layer = static_cast<std::int32_t>(source_.within({&path, "layer"}, op.layer(), 0, kLargestIndex));
  if (op.has_micro_batch()) {
    added.micro_batch = static_cast<std::int32_t>(source_.within({&path, "micro_batch"}, op.micro_batch(), 0, kLargestIndex));
  }
  if (!op.runs_again().empty()) added.origin = op_named(op.runs_again(), {&path, "runs_again"});
  read_launch(op, path, added);
  links_.edges.clear();
  read_edges(op.after(), EdgeKind::kEndToStart, "after", path, index);
  read_edges(op.start_after(), EdgeKind::kStartToStart, "start_after", path, index);
  read_tensors(op.reads(), "reads", path, links_.reads);
  read_tensors(op.writes(), "writes", path, links_.writes);
  links_.holds.clear();
  for (int i = 0; i < op.holds_size(); ++i) links_.holds.push_back(tables_.storage({&path, "holds", i}, op.holds(i)));
  std::vector<OpPart> further;
  for (std::size_t i = 1; i < links_.streams.size(); ++i) further.push_back({.stream = links_.streams[i], .queues = links_.queues[i]});
  const std::span<const QueueId> queues = links_.queues.empty() ? std::span<const QueueId>() : links_.queues.front();
  builder_.add_op(added,
                  {.predecessors = links_.edges,
                   .reads = links_.reads,
                   .writes = links_.writes,
                   .holds = links_.holds,
                   .issue_after = links_.issue_after,
                   .queues = queues},
                  further);
}

// A wait for a copy counts as spec/engine.md, section 5, says for phases of these names; for others as in the forward phase.
void OpReader::set_phase_meaning() {
  constexpr std::int32_t kForward = 0, kBackward = 1, kTail = 2;
  file_.phases.tail = kTail;
  file_.phases.copy_waits = 3;
  for (const std::string& phase : file_.phase_names) {
    const bool backward = phase == "backward" || phase == "recompute", optimizer = phase == "optimizer";
    file_.phases.copy_wait_of_bucket.push_back(optimizer ? kTail : backward ? kBackward : kForward);
    file_.phases.copy_out_first_is_tail.push_back(phase == "backward" || optimizer);
  }
}

}  // namespace

std::vector<std::string> add_ops(const graph_file::Graph& graph, const GraphSource& source, GraphTables& tables, OpGraphBuilder& builder,
                                 GraphFile& file) {
  OpReader reader(graph, source, tables, builder, file);
  reader.add_all();
  std::vector<std::string> names = reader.names();
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty()) names[i] = fmt::format("#{}", i);
  }
  return names;
}

}  // namespace stepsim
