#include "sim/append_graph.h"

#include <utility>

namespace stepsim {

namespace {

// What the builder had before: ids of the copy are those of the graph, shifted.
struct Shift {
  std::int32_t device = 0, stream = 0, queue = 0, issuer = 0, pool = 0, storage = 0, op = 0;
};

template <class Tag>
Id<Tag> shifted(Id<Tag> id, std::int32_t by) {
  return id.valid() ? Id<Tag>{id.index + by} : id;
}

LabelId copied_label(OpGraphBuilder& builder, const OpGraph& graph, LabelId id) {
  return id.valid() ? builder.label(graph.label(id), graph.bucket(id)) : id;
}

std::vector<Tensor> shifted(std::span<const Tensor> tensors, std::int32_t by) {
  std::vector<Tensor> found(tensors.begin(), tensors.end());
  for (Tensor& tensor : found) tensor.storage = shifted(tensor.storage, by);
  return found;
}

template <class Tag>
std::vector<Id<Tag>> shifted(std::span<const Id<Tag>> ids, std::int32_t by) {
  std::vector<Id<Tag>> found(ids.begin(), ids.end());
  for (Id<Tag>& id : found) id = shifted(id, by);
  return found;
}

// The ids that the copies got: builders count each kind from 0.
Shift append_tables(OpGraphBuilder& builder, const OpGraph& graph) {
  Shift shift;
  shift.op = static_cast<std::int32_t>(builder.op_count());
  for (std::int32_t device = 0; device < graph.device_count(); ++device) {
    const DeviceId added = builder.add_device();
    if (device == 0) shift.device = added.index;
  }
  for (std::size_t i = 0; i < graph.streams().size(); ++i) {
    Stream stream = graph.streams()[i];
    stream.device = shifted(stream.device, shift.device);
    stream.kind = copied_label(builder, graph, stream.kind);
    const StreamId added = builder.add_stream(stream);
    if (i == 0) shift.stream = added.index;
  }
  for (std::size_t i = 0; i < graph.queues().size(); ++i) {
    Queue queue = graph.queues()[i];
    queue.device = shifted(queue.device, shift.device);
    queue.kind = copied_label(builder, graph, queue.kind);
    const QueueId added = builder.add_queue(queue);
    if (i == 0) shift.queue = added.index;
  }
  for (std::size_t i = 0; i < graph.issuers().size(); ++i) {
    Issuer issuer = graph.issuers()[i];
    issuer.device = shifted(issuer.device, shift.device);
    const IssuerId added = builder.add_issuer(issuer);
    if (i == 0) shift.issuer = added.index;
  }
  for (std::size_t i = 0; i < graph.pools().size(); ++i) {
    Pool pool = graph.pools()[i];
    pool.device = shifted(pool.device, shift.device);
    const std::int32_t added = builder.add_pool(pool);
    if (i == 0) shift.pool = added;
  }
  for (std::size_t i = 0; i < graph.storages().size(); ++i) {
    Storage storage = graph.storages()[i];
    storage.device = shifted(storage.device, shift.device);
    storage.role = copied_label(builder, graph, storage.role);
    storage.name = copied_label(builder, graph, storage.name);
    if (storage.pool >= 0) storage.pool += shift.pool;
    const StorageId added = builder.add_storage(storage);
    if (i == 0) shift.storage = added.index;
  }
  return shift;
}

Op copied_op(OpGraphBuilder& builder, const OpGraph& graph, OpId id, const Shift& shift, const OpWork& work) {
  Op op = graph.op(id);
  op.work = builder.work(work);
  op.stream = shifted(op.stream, shift.stream);
  op.phase = copied_label(builder, graph, op.phase);
  op.kind = copied_label(builder, graph, op.kind);
  op.origin = shifted(op.origin, shift.op);
  op.issuer = shifted(op.issuer, shift.issuer);
  return op;
}

void append_op(OpGraphBuilder& builder, const OpGraph& graph, OpId id, const Shift& shift, const OpWork& work) {
  std::vector<Edge> edges;  // from ops that are there; append_graph adds the others
  for (Edge edge : graph.predecessors(id)) {
    const bool earlier = edge.from < id;
    edge.from = shifted(edge.from, shift.op);
    if (earlier) edges.push_back(edge);
  }
  const std::vector<Tensor> reads = shifted(graph.reads(id), shift.storage), writes = shifted(graph.writes(id), shift.storage);
  const std::vector<StorageId> holds = shifted(graph.holds(id), shift.storage);
  const std::vector<OpId> after = shifted(graph.issue_after(id), shift.op);
  const std::span<const StreamId> streams = graph.parts(id);
  std::vector<std::vector<QueueId>> queues;
  std::vector<OpPart> parts;
  for (std::size_t part = 0; part < streams.size(); ++part) {
    queues.push_back(shifted(graph.queues(id, static_cast<std::int32_t>(part)), shift.queue));
  }
  for (std::size_t part = 1; part < streams.size(); ++part) parts.push_back({shifted(streams[part], shift.stream), queues[part]});
  OpLinks links{.predecessors = edges, .reads = reads, .writes = writes, .holds = holds, .issue_after = after};
  if (!queues.empty()) links.queues = queues.front();
  builder.add_op(copied_op(builder, graph, id, shift, work), links, parts);
}

// All ops in the order in which the graph issues them.
std::vector<OpId> issue_order(const OpGraph& graph, std::int32_t shift) {
  std::vector<OpId> order(graph.ops().size());
  for (std::int32_t op = 0; at(op) < order.size(); ++op) order[at(graph.issue_position(OpId{op}))] = OpId{op + shift};
  return order;
}

}  // namespace

void append_graph(OpGraphBuilder& builder, const OpGraph& graph, const std::function<OpWork(OpId)>& work) {
  const Shift shift = append_tables(builder, graph);
  const auto count = static_cast<std::int32_t>(graph.ops().size());
  for (std::int32_t op = 0; op < count; ++op) append_op(builder, graph, OpId{op}, shift, work(OpId{op}));
  for (std::int32_t op = 0; op < count; ++op) {
    for (Edge edge : graph.predecessors(OpId{op})) {
      if (edge.from < OpId{op}) continue;
      edge.from = shifted(edge.from, shift.op);
      builder.add_edge(OpId{op + shift.op}, edge);
    }
  }
}

OpGraph with_works(const OpGraph& graph, const std::function<OpWork(OpId)>& work) {
  OpGraphBuilder builder;
  builder.reserve(graph.ops().size(), graph.storages().size());
  append_graph(builder, graph, work);
  return with_issue_order(std::move(builder).build(), issue_order(graph, 0));
}

OpGraph side_by_side(std::span<const OpGraph* const> graphs) {
  OpGraphBuilder builder;
  std::vector<OpId> order;
  for (const OpGraph* graph : graphs) {
    const std::vector<OpId> own = issue_order(*graph, static_cast<std::int32_t>(builder.op_count()));
    order.insert(order.end(), own.begin(), own.end());
    append_graph(builder, *graph, [&](OpId op) { return graph->work(op); });
  }
  return with_issue_order(std::move(builder).build(), order);
}

}  // namespace stepsim
