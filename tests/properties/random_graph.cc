#include "random_graph.h"

#include <algorithm>
#include <random>

namespace stepsim {

namespace {

class Source {
 public:
  Source(std::uint64_t seed, const RandomGraphShape& shape) : random_(seed), shape_(shape) {}
  RandomCase made();

 private:
  std::int32_t below(std::int32_t end) { return static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(end)); }
  bool chance(std::int32_t percent) { return below(100) < percent; }
  template <class T>
  const T& one_of(const std::vector<T>& all) {
    return all[at(below(static_cast<std::int32_t>(all.size())))];
  }
  Duration duration() {
    const std::int64_t shortest = shape_.zero_durations && chance(20) ? 0 : 1;
    return Duration(shortest == 0 ? 0 : 1 + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(shape_.longest)));
  }
  void add_machine();
  std::vector<Load> loads();
  std::int32_t add_row();
  std::vector<Edge> edges(std::int32_t before);
  std::vector<QueueId> some_queues();
  Tensor view(StorageId id) { return {.storage = id, .offset = Bytes(0), .size = builder_.storage(id).size}; }
  void add_op();

  std::mt19937_64 random_;
  const RandomGraphShape& shape_;
  OpGraphBuilder builder_;
  Machine machine_;
  std::vector<GivenCostModel::Row> rows_;
  std::vector<StreamId> streams_;
  std::vector<QueueId> queues_;
  std::vector<IssuerId> issuers_;
  std::vector<StorageId> storages_;  // in the gated pool, in use
  std::int32_t pools_ = 0;
  std::int32_t resources_ = 0;
  std::int32_t group_ = -1;
};

void Source::add_machine() {
  const std::int32_t devices = 1 + below(3);
  machine_ = plain_machine(devices);
  resources_ = shape_.sharing ? 1 + below(4) : 0;
  for (std::int32_t i = 0; i < resources_; ++i) machine_.resources.push_back({.name = std::to_string(i), .kind = "sm"});
  std::vector<DeviceId> ids;
  for (std::int32_t i = 0; i < devices; ++i) ids.push_back(builder_.add_device());
  const std::int32_t streams = 1 + below(5);
  for (std::int32_t i = 0; i < streams; ++i) {
    streams_.push_back(
        builder_.add_stream({.device = one_of(ids), .kind = {}, .compute = false, .any_ready_op = shape_.any_ready && chance(20)}));
  }
  for (std::int32_t i = shape_.queues ? below(4) : 0; i > 0; --i) {
    queues_.push_back(builder_.add_queue({.device = one_of(ids), .kind = {}, .slots = 1 + below(2)}));
  }
  for (std::int32_t i = shape_.host && chance(60) ? 1 + below(2) : 0; i > 0; --i) {
    issuers_.push_back(builder_.add_issuer({.device = one_of(ids), .run_ahead = chance(30) ? 1024 : 1 + below(4)}));
  }
  for (std::int32_t i = shape_.gates && chance(50) ? 1 + below(2) : 0; i > 0; --i) {
    builder_.add_pool({.space = MemorySpace::kHost, .host = 0, .device = {}, .capacity = Bytes(4 + below(8)), .gated = true});
    ++pools_;
  }
}

std::vector<Load> Source::loads() {
  std::vector<Load> loads;
  for (std::int32_t i = 0; i < resources_; ++i) {
    if (!chance(50)) continue;
    const std::uint32_t fraction = chance(30) ? kFullLoad : 1 + static_cast<std::uint32_t>(random_() % kFullLoad);
    loads.push_back({.resource = ResourceId{i},
                     .fraction_2e30 = chance(5) ? 1 : fraction,
                     .peers = static_cast<std::uint16_t>(chance(80) ? 1 : 1 + below(4)),
                     .weight = static_cast<std::uint16_t>(chance(70) ? 1 : 1 + below(50)),
                     .while_waiting = chance(50)});
  }
  return loads;
}

std::int32_t Source::add_row() {
  const bool again = !rows_.empty() && chance(20);
  if (again) return below(static_cast<std::int32_t>(rows_.size()));
  rows_.push_back({.fixed = chance(40) ? duration() : Duration(0), .alone = duration(), .issue = Duration(below(4)), .loads = loads()});
  return static_cast<std::int32_t>(rows_.size()) - 1;
}

std::vector<Edge> Source::edges(std::int32_t before) {
  std::vector<Edge> edges;
  for (std::int32_t i = before > 0 ? below(3) : 0; i > 0; --i) {
    const bool starts = shape_.start_edges && chance(25);
    edges.push_back(
        {.from = OpId{before - 1 - below(std::min(before, 8))}, .kind = starts ? EdgeKind::kStartToStart : EdgeKind::kEndToStart});
  }
  return edges;
}

std::vector<QueueId> Source::some_queues() {
  std::vector<QueueId> queues;
  for (const QueueId queue : queues_) {
    if (chance(35)) queues.push_back(queue);
  }
  return queues;
}

void Source::add_op() {
  const auto index = static_cast<std::int32_t>(builder_.op_count());
  Op op{.priority = chance(20) ? below(3) : 0};
  const bool marker = shape_.markers && chance(20);
  if (marker) {
    op.work = builder_.work(Marker{});
  } else {  // of two parts, a transfer has sides
    const std::int32_t row = add_row();
    op.work = builder_.work(Given{.index = row, .op_class = row % 2 == 0 ? Given::Class::kPointToPoint : Given::Class::kCompute});
  }
  const bool outside = marker && chance(40);
  std::vector<OpPart> further;
  std::vector<std::vector<QueueId>> further_queues;
  std::vector<StreamId> shuffled = streams_;
  std::shuffle(shuffled.begin(), shuffled.end(), random_);
  if (!outside) op.stream = shuffled[0];
  if (!outside && shape_.parts && chance(20)) {
    for (std::size_t i = 1; i < shuffled.size() && chance(70); ++i) further_queues.push_back(some_queues());
    for (std::size_t i = 0; i < further_queues.size(); ++i) further.push_back({.stream = shuffled[i + 1], .queues = further_queues[i]});
  }
  if (!issuers_.empty() && chance(85)) op.issuer = one_of(issuers_);
  if (op.issuer.valid() && chance(20)) op.launch_group = chance(70) && group_ >= 0 ? group_ : ++group_;
  std::vector<OpId> issue_after;
  if (op.issuer.valid() && index > 0 && chance(15)) issue_after.push_back(OpId{index - 1 - below(std::min(index, 6))});
  std::vector<Tensor> writes, reads;
  std::vector<StorageId> holds;
  if (pools_ > 0 && !storages_.empty() && chance(40)) reads.push_back(view(one_of(storages_)));
  if (pools_ > 0 && !storages_.empty() && chance(20)) holds.push_back(one_of(storages_));
  while (pools_ > 0 && !marker && chance(30)) {
    storages_.push_back(builder_.add_storage({.size = Bytes(below(5)),
                                              .device = DeviceId{0},
                                              .space = MemorySpace::kHost,
                                              .pool = below(pools_),
                                              .live_at_start = chance(10),
                                              .live_at_end = chance(5)}));
    writes.push_back(view(storages_.back()));
  }
  if (storages_.size() > 4) storages_.erase(storages_.begin());
  const std::vector<Edge> predecessors = edges(index);
  const std::vector<QueueId> queues = outside ? std::vector<QueueId>() : some_queues();
  builder_.add_op(
      op, {.predecessors = predecessors, .reads = reads, .writes = writes, .holds = holds, .issue_after = issue_after, .queues = queues},
      further);
}

RandomCase Source::made() {
  add_machine();
  const std::int32_t ops = 2 + below(shape_.most_ops - 1);
  for (std::int32_t i = 0; i < ops; ++i) add_op();
  OpGraph graph = std::move(builder_).build();
  if (shape_.shuffled && chance(30)) {
    std::vector<OpId> order;
    for (std::int32_t i = 0; i < ops; ++i) order.push_back(OpId{i});
    for (std::int32_t i = 1; i < ops; ++i) {
      if (chance(40)) std::swap(order[at(i)], order[at(i - 1)]);
    }
    graph = with_issue_order(std::move(graph), order);
  }
  return {.graph = std::move(graph), .rows = std::move(rows_), .machine = std::move(machine_)};
}

}  // namespace

RandomCase random_case(std::uint64_t seed, const RandomGraphShape& shape) { return Source(seed, shape).made(); }

}  // namespace stepsim
