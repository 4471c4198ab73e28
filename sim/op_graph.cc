#include "sim/op_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <boost/graph/strong_components.hpp>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "sim/check.h"

namespace stepsim {

namespace {

// Rows of compressed sparse rows are addressed by 32 bits; a graph above that is refused, not wrapped.
std::uint32_t row_end(std::size_t size) {
  STEPSIM_CHECK(size <= std::numeric_limits<std::uint32_t>::max());
  return static_cast<std::uint32_t>(size);
}

std::int32_t next_index(std::size_t size) {
  STEPSIM_CHECK(size < at(std::numeric_limits<std::int32_t>::max()));
  return static_cast<std::int32_t>(size);
}

template <class Tag>
void check_id(Id<Tag> id, std::size_t size) {
  STEPSIM_CHECK(id.index >= 0);
  STEPSIM_CHECK(at(id.index) < size);
}

template <class Tag>
void check_optional_id(Id<Tag> id, std::size_t size) {
  if (id.index != -1) check_id(id, size);
}

void add_words(std::string& text, std::string_view words) {
  if (words.empty()) return;
  if (!text.empty()) text += ' ';
  text += words;
}

}  // namespace

std::span<const StreamId> OpGraph::parts(OpId id) const { return row(part_streams_, part_begin_, id); }

TransferSide OpGraph::side(OpId id, std::int32_t part) const {
  const std::span<const StreamId> both = parts(id);
  if (both.size() != 2) return TransferSide::kBoth;
  if (op_class(work(id)) != OpClass::kPointToPoint) return TransferSide::kBoth;
  const std::span<const Tensor> written = writes(id);
  const bool first_receives = !written.empty() && storages_[at(written[0].storage.index)].device == streams_[at(both[0].index)].device;
  return (part == 0) == first_receives ? TransferSide::kReceives : TransferSide::kSends;
}

std::span<const QueueId> OpGraph::queues(OpId id, std::int32_t part) const {
  const std::size_t index = part_begin_[at(id.index)] + at(part);
  if (index >= part_begin_[at(id.index) + 1]) return {};  // a marker outside every stream has no part
  return std::span<const QueueId>(part_queues_).subspan(part_queue_begin_[index], part_queue_begin_[index + 1] - part_queue_begin_[index]);
}

std::span<const OpId> OpGraph::issue_order(IssuerId id) const {
  const std::uint32_t begin = issue_order_begin_[at(id.index)];
  return std::span<const OpId>(issue_order_).subspan(begin, issue_order_begin_[at(id.index) + 1] - begin);
}

std::span<const OpId> OpGraph::stream_order(StreamId id) const {
  const std::uint32_t begin = stream_order_begin_[at(id.index)];
  return std::span<const OpId>(stream_order_).subspan(begin, stream_order_begin_[at(id.index) + 1] - begin);
}

std::string_view OpGraph::label(LabelId id) const { return id.valid() ? std::string_view(labels_[at(id.index)].text) : std::string_view(); }

std::int32_t OpGraph::bucket(LabelId id) const { return id.valid() ? labels_[at(id.index)].bucket : 0; }

std::size_t OpGraph::bucket_count() const {
  std::int32_t largest = 0;
  for (const Label& each : labels_) largest = std::max(largest, each.bucket);
  return at(largest) + 1;
}

std::string OpGraph::op_name(OpId id) const {
  const Op& named = op(id);
  std::string name(label(named.phase));
  if (named.layer >= 0) add_words(name, fmt::format("L{}", named.layer));
  add_words(name, label(named.kind));
  if (micro_batch_count_ > 1 && named.micro_batch >= 0) add_words(name, fmt::format("mb{}", named.micro_batch));
  return name.empty() ? fmt::format("op {}", id.index) : name;
}

std::string OpGraph::storage_name(StorageId id) const {
  const Storage& named = storages_[at(id.index)];
  std::string name(label(named.name.valid() ? named.name : named.role));
  if (name.empty()) name = fmt::format("storage {}", id.index);
  if (named.layer >= 0) add_words(name, fmt::format("L{}", named.layer));
  if (micro_batch_count_ > 1 && named.micro_batch >= 0) add_words(name, fmt::format("mb{}", named.micro_batch));
  return name;
}

bool is_asynchronous(const OpGraph& graph, OpId op) {
  const StreamId stream = graph.op(op).stream;
  if (!stream.valid() || graph.streams()[at(stream.index)].compute) return false;
  const OpClass its_class = op_class(graph.work(op));
  return its_class != OpClass::kMarker && its_class != OpClass::kCompute;
}

// Counting sorts of the ops, taken in `order`, by issuer and by stream.
void OpGraph::set_issue_order(std::span<const OpId> order) {
  STEPSIM_CHECK(order.size() == ops_.size());
  issue_position_.assign(ops_.size(), -1);
  for (std::size_t position = 0; position < order.size(); ++position) {
    check_id(order[position], ops_.size());
    std::int32_t& place = issue_position_[at(order[position].index)];
    STEPSIM_CHECK(place == -1);
    place = static_cast<std::int32_t>(position);
  }
  issue_order_begin_.assign(issuers_.size() + 1, 0);
  stream_order_begin_.assign(streams_.size() + 1, 0);
  for (const Op& each : ops_) {
    if (each.issuer.valid()) ++issue_order_begin_[at(each.issuer.index) + 1];
  }
  for (const StreamId stream : part_streams_) ++stream_order_begin_[at(stream.index) + 1];
  std::partial_sum(issue_order_begin_.begin(), issue_order_begin_.end(), issue_order_begin_.begin());
  std::partial_sum(stream_order_begin_.begin(), stream_order_begin_.end(), stream_order_begin_.begin());
  issue_order_.resize(issue_order_begin_.back());
  stream_order_.resize(stream_order_begin_.back());
  std::vector<std::uint32_t> issue_next = issue_order_begin_, stream_next = stream_order_begin_;
  for (const OpId id : order) {
    const IssuerId issuer = op(id).issuer;
    if (issuer.valid()) issue_order_[issue_next[at(issuer.index)]++] = id;
    for (const StreamId stream : parts(id)) stream_order_[stream_next[at(stream.index)]++] = id;
  }
}

OpGraph with_issue_order(OpGraph graph, std::span<const OpId> order) {
  graph.set_issue_order(order);
  return graph;
}

struct GraphWorkHash {
  // One multiplication a value, as in FxHash, and the finalizer of splitmix64 (Steele et al., OOPSLA 2014, figure 15) at the end.
  static std::size_t with(std::size_t seed, std::int64_t value) {
    return (std::rotl(seed, 5) ^ static_cast<std::size_t>(value)) * 0x9e3779b97f4a7c15u;
  }
  static std::size_t mixed(std::size_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  template <class... Values>
  static std::size_t hash_of(Values... values) {
    std::size_t seed = 1;
    ((seed = with(seed, static_cast<std::int64_t>(values))), ...);
    return seed;
  }
  std::size_t operator()(const Marker&) const { return 0; }
  std::size_t operator()(const Gemm& w) const {
    return hash_of(w.m, w.n, w.k, w.batch, w.dtype, w.transpose_a, w.transpose_b, w.accumulate_fp32, w.in_flight);
  }
  std::size_t operator()(const Attention& w) const {
    return hash_of(w.batch, w.heads, w.kv_heads, w.queries, w.keys, w.head_dim, w.dtype, w.causal, w.backward, w.kernel);
  }
  std::size_t operator()(const MemoryBound& w) const { return hash_of(w.read.value, w.written.value, w.kernel, w.launches); }
  std::size_t operator()(const Collective& w) const {
    return hash_of(w.kind, w.message.value, w.ranks, w.stride, w.library, w.routing.experts, w.routing.choices);
  }
  std::size_t operator()(const Copy& w) const { return hash_of(w.bytes.value, w.direction, w.pinned, w.allocates); }
  std::size_t operator()(const Given& w) const { return hash_of(w.index, w.op_class); }
  std::size_t operator()(const OpWork& work) const {
    return mixed(with(std::visit([this](const auto& w) { return (*this)(w); }, work), static_cast<std::int64_t>(work.index())));
  }
};

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

struct OpGraphBuilder::State {
  OpGraph graph;
  std::unordered_map<OpWork, WorkId, GraphWorkHash> work_ids;
  std::unordered_map<std::string, std::vector<LabelId>, TextHash, std::equal_to<>> label_ids;  // one a bucket
  struct LateEdge {
    OpId to;
    Edge edge;
  };
  std::vector<LateEdge> late_edges;
};

OpGraphBuilder::OpGraphBuilder() : state_(std::make_unique<State>()) {
  OpGraph& graph = state_->graph;
  for (auto* begin : {&graph.edge_begin_, &graph.read_begin_, &graph.write_begin_, &graph.hold_begin_, &graph.issue_after_begin_,
                      &graph.part_begin_, &graph.part_queue_begin_}) {
    begin->push_back(0);
  }
}
OpGraphBuilder::~OpGraphBuilder() = default;
OpGraphBuilder::OpGraphBuilder(OpGraphBuilder&&) noexcept = default;

LabelId OpGraphBuilder::label(std::string_view text, std::int32_t bucket) {
  STEPSIM_CHECK(bucket >= 0);
  std::vector<OpGraph::Label>& labels = state_->graph.labels_;
  auto found = state_->label_ids.find(text);
  if (found == state_->label_ids.end()) found = state_->label_ids.emplace(std::string(text), std::vector<LabelId>()).first;
  for (const LabelId known : found->second) {
    if (labels[at(known.index)].bucket == bucket) return known;
  }
  const LabelId id{next_index(labels.size())};
  labels.push_back({std::string(text), bucket});
  found->second.push_back(id);
  return id;
}

WorkId OpGraphBuilder::work(const OpWork& work) {
  std::vector<OpWork>& works = state_->graph.works_;
  const auto [found, added] = state_->work_ids.try_emplace(work, WorkId{next_index(works.size())});
  if (added) works.push_back(work);
  return found->second;
}

DeviceId OpGraphBuilder::add_device() { return DeviceId{state_->graph.device_count_++}; }

StreamId OpGraphBuilder::add_stream(const Stream& stream) {
  check_id(stream.device, at(state_->graph.device_count_));
  state_->graph.streams_.push_back(stream);
  return StreamId{next_index(state_->graph.streams_.size() - 1)};
}

QueueId OpGraphBuilder::add_queue(const Queue& queue) {
  STEPSIM_CHECK(queue.slots >= 1);
  check_optional_id(queue.device, at(state_->graph.device_count_));
  state_->graph.queues_.push_back(queue);
  return QueueId{next_index(state_->graph.queues_.size() - 1)};
}

IssuerId OpGraphBuilder::add_issuer(const Issuer& issuer) {
  STEPSIM_CHECK(issuer.run_ahead >= 1);
  check_optional_id(issuer.device, at(state_->graph.device_count_));
  state_->graph.issuers_.push_back(issuer);
  return IssuerId{next_index(state_->graph.issuers_.size() - 1)};
}

std::int32_t OpGraphBuilder::add_pool(const Pool& pool) {
  STEPSIM_CHECK(pool.capacity.value >= 0);
  STEPSIM_CHECK(!pool.gated || pool.space == MemorySpace::kHost);
  if (pool.space == MemorySpace::kDevice) check_id(pool.device, at(state_->graph.device_count_));
  state_->graph.pools_.push_back(pool);
  return next_index(state_->graph.pools_.size() - 1);
}

StorageId OpGraphBuilder::add_storage(const Storage& storage) {
  const OpGraph& graph = state_->graph;
  STEPSIM_CHECK(storage.size.value >= 0);
  check_id(storage.device, at(graph.device_count_));
  check_optional_id(storage.role, graph.labels_.size());
  check_optional_id(storage.name, graph.labels_.size());
  STEPSIM_CHECK(storage.pool >= -1);
  if (storage.pool >= 0) {
    STEPSIM_CHECK(at(storage.pool) < graph.pools_.size());
    STEPSIM_CHECK(graph.pools_[at(storage.pool)].space == storage.space);
  }
  state_->graph.storages_.push_back(storage);
  return StorageId{next_index(graph.storages_.size() - 1)};
}

OpId OpGraphBuilder::add_op(const Op& op, const OpLinks& links, std::span<const OpPart> further_parts) {
  OpGraph& graph = state_->graph;
  graph.ops_.push_back(op);
  graph.edges_.insert(graph.edges_.end(), links.predecessors.begin(), links.predecessors.end());
  graph.edge_begin_.push_back(row_end(graph.edges_.size()));
  graph.reads_.insert(graph.reads_.end(), links.reads.begin(), links.reads.end());
  graph.read_begin_.push_back(row_end(graph.reads_.size()));
  graph.writes_.insert(graph.writes_.end(), links.writes.begin(), links.writes.end());
  graph.write_begin_.push_back(row_end(graph.writes_.size()));
  graph.holds_.insert(graph.holds_.end(), links.holds.begin(), links.holds.end());
  graph.hold_begin_.push_back(row_end(graph.holds_.size()));
  graph.issue_after_.insert(graph.issue_after_.end(), links.issue_after.begin(), links.issue_after.end());
  graph.issue_after_begin_.push_back(row_end(graph.issue_after_.size()));
  const auto add_part = [&graph](StreamId stream, std::span<const QueueId> queues) {
    graph.part_streams_.push_back(stream);
    graph.part_queues_.insert(graph.part_queues_.end(), queues.begin(), queues.end());
    graph.part_queue_begin_.push_back(row_end(graph.part_queues_.size()));
  };
  STEPSIM_CHECK(op.stream.valid() || (further_parts.empty() && links.queues.empty()));
  if (op.stream.valid()) add_part(op.stream, links.queues);
  for (const OpPart& part : further_parts) add_part(part.stream, part.queues);
  graph.part_begin_.push_back(row_end(graph.part_streams_.size()));
  if (op.micro_batch >= graph.micro_batch_count_) graph.micro_batch_count_ = op.micro_batch + 1;
  return OpId{next_index(graph.ops_.size() - 1)};
}

void OpGraphBuilder::add_edge(OpId to, Edge edge) {
  check_id(to, state_->graph.ops_.size());
  state_->late_edges.push_back({to, edge});
}

void OpGraphBuilder::reserve(std::size_t ops, std::size_t storages) {
  OpGraph& graph = state_->graph;
  graph.ops_.reserve(ops);
  graph.part_streams_.reserve(ops);
  graph.edges_.reserve(2 * ops);  // a guess; memory that stays untouched costs nothing
  graph.reads_.reserve(2 * ops);
  graph.writes_.reserve(ops);
  graph.storages_.reserve(storages);
  for (auto* begin : {&graph.edge_begin_, &graph.read_begin_, &graph.write_begin_, &graph.hold_begin_, &graph.issue_after_begin_,
                      &graph.part_begin_, &graph.part_queue_begin_}) {
    begin->reserve(ops + 1);
  }
}

std::size_t OpGraphBuilder::op_count() const { return state_->graph.ops_.size(); }
const Storage& OpGraphBuilder::storage(StorageId id) const {
  check_id(id, state_->graph.storages_.size());
  return state_->graph.storages_[at(id.index)];
}

namespace {

void check_ops(const OpGraph& graph) {
  const std::size_t ops = graph.ops().size(), labels = at(graph.label_count());
  for (const Op& op : graph.ops()) {
    check_id(op.work, graph.works().size());
    check_optional_id(op.phase, labels);
    check_optional_id(op.kind, labels);
    check_optional_id(op.origin, ops);
    check_optional_id(op.issuer, graph.issuers().size());
    STEPSIM_CHECK(op.stream.valid() || std::holds_alternative<Marker>(graph.work(op.work)));
  }
}

// `last_part`, by stream: the last op that had a part there.
void check_links(const OpGraph& graph, OpId id, std::vector<OpId>& last_part) {
  for (const Edge& edge : graph.predecessors(id)) check_id(edge.from, graph.ops().size());
  for (const OpId before : graph.issue_after(id)) check_id(before, graph.ops().size());
  for (const StorageId held : graph.holds(id)) check_id(held, graph.storages().size());
  for (const auto tensors : {graph.reads(id), graph.writes(id)}) {
    for (const Tensor& tensor : tensors) {
      check_id(tensor.storage, graph.storages().size());
      const Bytes size = graph.storages()[at(tensor.storage.index)].size;
      STEPSIM_CHECK(tensor.offset.value >= 0);
      STEPSIM_CHECK(tensor.size.value >= 0);
      STEPSIM_CHECK(tensor.offset <= size);
      STEPSIM_CHECK(tensor.size <= size - tensor.offset);
    }
  }
  const std::span<const StreamId> parts = graph.parts(id);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    check_id(parts[part], graph.streams().size());
    STEPSIM_CHECK(last_part[at(parts[part].index)] != id);
    last_part[at(parts[part].index)] = id;
    for (const QueueId queue : graph.queues(id, static_cast<std::int32_t>(part))) check_id(queue, graph.queues().size());
  }
}

void check_streams(const OpGraph& graph) {
  std::vector<bool> has_compute(at(graph.device_count()), false);
  for (const Stream& stream : graph.streams()) {
    check_optional_id(stream.kind, at(graph.label_count()));
    if (!stream.compute) continue;
    STEPSIM_CHECK(!has_compute[at(stream.device.index)]);
    has_compute[at(stream.device.index)] = true;
  }
}

}  // namespace

OpGraph OpGraphBuilder::build() && {
  OpGraph graph = std::move(state_->graph);
  std::vector<State::LateEdge>& late = state_->late_edges;
  if (!late.empty()) {
    std::stable_sort(late.begin(), late.end(), [](const State::LateEdge& a, const State::LateEdge& b) { return a.to < b.to; });
    std::vector<Edge> merged;
    merged.reserve(graph.edges_.size() + late.size());
    std::vector<std::uint32_t> begin{0};
    begin.reserve(graph.ops_.size() + 1);
    std::size_t next = 0;
    for (std::int32_t to = 0; at(to) < graph.ops_.size(); ++to) {
      const std::span<const Edge> known = graph.predecessors(OpId{to});
      merged.insert(merged.end(), known.begin(), known.end());
      for (; next < late.size() && late[next].to.index == to; ++next) merged.push_back(late[next].edge);
      begin.push_back(row_end(merged.size()));
    }
    graph.edges_ = std::move(merged);
    graph.edge_begin_ = std::move(begin);
  }
  check_ops(graph);
  check_streams(graph);
  std::vector<OpId> last_part(graph.streams_.size());
  for (std::int32_t op = 0; at(op) < graph.ops_.size(); ++op) check_links(graph, OpId{op}, last_part);
  std::vector<OpId> order(graph.ops_.size());
  for (std::size_t op = 0; op < order.size(); ++op) order[op].index = static_cast<std::int32_t>(op);
  graph.set_issue_order(order);
  state_.reset();
  return graph;
}

namespace {

// Vertices: the start of op i is i, its launch is ops + i. An arc: the second cannot come before the first.
using WaitGraph = boost::compressed_sparse_row_graph<boost::directedS>;
using Vertex = std::size_t;

WaitGraph waits_of(const OpGraph& graph) {
  const std::size_t ops = graph.ops().size();
  std::vector<std::pair<Vertex, Vertex>> arcs;
  for (std::int32_t index = 0; at(index) < ops; ++index) {
    const OpId id{index};
    for (const Edge& edge : graph.predecessors(id)) arcs.emplace_back(at(edge.from.index), at(index));
    for (const OpId before : graph.issue_after(id)) arcs.emplace_back(at(before.index), ops + at(index));
    if (graph.op(id).issuer.valid()) arcs.emplace_back(ops + at(index), at(index));
  }
  for (std::int32_t issuer = 0; at(issuer) < graph.issuers().size(); ++issuer) {
    const std::span<const OpId> order = graph.issue_order(IssuerId{issuer});
    for (std::size_t i = 1; i < order.size(); ++i) arcs.emplace_back(ops + at(order[i - 1].index), ops + at(order[i].index));
  }
  for (std::int32_t stream = 0; at(stream) < graph.streams().size(); ++stream) {
    if (graph.streams()[at(stream)].any_ready_op) continue;
    const std::span<const OpId> order = graph.stream_order(StreamId{stream});
    for (std::size_t i = 1; i < order.size(); ++i) arcs.emplace_back(at(order[i - 1].index), at(order[i].index));
  }
  return WaitGraph(boost::edges_are_unsorted, arcs.begin(), arcs.end(), 2 * ops);
}

// The shortest cycle through `start`, which lies in a strong component with one: breadth first within the component.
std::vector<Vertex> shortest_cycle(const WaitGraph& waits, const std::vector<std::size_t>& component, Vertex start) {
  std::unordered_map<Vertex, Vertex> reached_from;
  std::vector<Vertex> frontier{start};
  for (std::size_t i = 0; i < frontier.size(); ++i) {
    const auto [first, last] = boost::out_edges(frontier[i], waits);
    for (auto arc = first; arc != last; ++arc) {
      const Vertex to = boost::target(*arc, waits);
      if (component[to] != component[start]) continue;
      if (!reached_from.emplace(to, frontier[i]).second) continue;
      if (to != start) {
        frontier.push_back(to);
        continue;
      }
      std::vector<Vertex> cycle{start};
      for (Vertex back = frontier[i]; back != start; back = reached_from.at(back)) cycle.push_back(back);
      std::reverse(cycle.begin() + 1, cycle.end());
      return cycle;
    }
  }
  return {};
}

}  // namespace

// Where everything waits only for what is issued before it there is no cycle, and no need to look for one.
static bool waits_only_backwards(const OpGraph& graph) {
  for (std::int32_t index = 0; at(index) < graph.ops().size(); ++index) {
    const OpId id{index};
    const std::int32_t position = graph.issue_position(id);
    for (const Edge& edge : graph.predecessors(id)) {
      if (graph.issue_position(edge.from) >= position) return false;
    }
    for (const OpId before : graph.issue_after(id)) {
      if (graph.issue_position(before) >= position) return false;
    }
  }
  return true;
}

std::vector<OpId> find_cycle(const OpGraph& graph) {
  if (waits_only_backwards(graph)) return {};
  const std::size_t ops = graph.ops().size();
  const WaitGraph waits = waits_of(graph);
  std::vector<std::size_t> component(2 * ops);
  const std::size_t components =
      boost::strong_components(waits, boost::make_iterator_property_map(component.begin(), boost::get(boost::vertex_index, waits)));
  std::vector<std::size_t> size(components, 0);
  for (const std::size_t each : component) ++size[each];
  for (Vertex vertex = 0; vertex < 2 * ops; ++vertex) {
    if (size[component[vertex]] == 1 && !boost::edge(vertex, vertex, waits).second) continue;
    const std::vector<Vertex> cycle = shortest_cycle(waits, component, vertex);
    STEPSIM_CHECK(!cycle.empty());
    std::vector<OpId> named;
    for (const Vertex each : cycle) {
      const OpId op{static_cast<std::int32_t>(each % ops)};
      if (std::find(named.begin(), named.end(), op) == named.end()) named.push_back(op);  // launch and start are one op
    }
    std::rotate(named.begin(), std::min_element(named.begin(), named.end()), named.end());
    return named;
  }
  return {};
}

}  // namespace stepsim
