#include "sim/issue_dependencies.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "sim/check.h"

namespace stepsim {

namespace {

struct Dependency {
  OpId from{}, to{};
  EdgeKind kind = EdgeKind::kEndToStart;
};

// Depth first from each root, what an op depends on before it, lower `rank` first.
template <class Before, class Skip>
std::vector<OpId> ordered(std::span<const OpId> roots, const std::vector<std::int32_t>& rank, const Before& before, const Skip& skip) {
  enum : std::uint8_t { kUnseen, kOpen, kTaken };
  std::vector<std::uint8_t> state(roots.size(), kUnseen);
  std::vector<OpId> order, open;
  order.reserve(roots.size());
  for (const bool skipped : {false, true}) {
    for (const OpId root : roots) {
      if (state[at(root.index)] == kTaken || skip(root) != skipped) continue;
      open.push_back(root);
      while (!open.empty()) {
        const OpId op = open.back();
        std::uint8_t& its_state = state[at(op.index)];
        if (its_state == kUnseen) {
          its_state = kOpen;
          const auto first = static_cast<std::ptrdiff_t>(open.size());
          for (const Edge& edge : before(op)) {
            STEPSIM_CHECK(state[at(edge.from.index)] != kOpen);  // a cycle
            if (state[at(edge.from.index)] == kUnseen) open.push_back(edge.from);
          }
          const auto later = [&rank](OpId a, OpId b) { return rank[at(a.index)] > rank[at(b.index)]; };
          std::sort(open.begin() + first, open.end(), later);
          continue;
        }
        open.pop_back();
        if (its_state == kTaken) continue;
        its_state = kTaken;
        order.push_back(op);
      }
    }
  }
  return order;
}

std::vector<std::int32_t> ranks(std::span<const OpId> order) {
  std::vector<std::int32_t> rank(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) rank[at(order[i].index)] = static_cast<std::int32_t>(i);
  return rank;
}

std::vector<OpId> ordered_by_edges(const OpGraph& graph) {
  std::vector<OpId> by_position(graph.ops().size());
  for (std::int32_t op = 0; at(op) < by_position.size(); ++op) by_position[at(graph.issue_position(OpId{op}))] = OpId{op};
  const std::vector<std::int32_t> rank = ranks(by_position);
  const auto before = [&graph](OpId op) { return graph.predecessors(op); };
  return ordered(by_position, rank, before, [](OpId) { return false; });
}

// A read comes after the last write, a write after the last write and the reads since; a hold counts as a read.
void add_order_of_uses(const OpGraph& graph, std::span<const OpId> order, std::vector<Dependency>& dependencies) {
  constexpr std::int32_t kNone = -1;
  struct Use {
    OpId op{};
    std::int32_t next = kNone;
  };
  struct State {
    OpId writer{};
    std::int32_t first_read = kNone;  // since the last write
  };
  std::vector<State> states(graph.storages().size());
  std::vector<Use> uses;
  const auto depends = [&dependencies](OpId op, OpId on) {
    if (on.valid() && on != op) dependencies.push_back({.from = on, .to = op, .kind = EdgeKind::kStartToStart});
  };
  for (const OpId op : order) {
    const auto read = [&](StorageId storage) {
      State& state = states[at(storage.index)];
      depends(op, state.writer);
      uses.push_back({.op = op, .next = state.first_read});
      state.first_read = static_cast<std::int32_t>(uses.size()) - 1;
    };
    for (const Tensor& tensor : graph.reads(op)) read(tensor.storage);
    for (const StorageId storage : graph.holds(op)) read(storage);
    for (const Tensor& tensor : graph.writes(op)) {
      State& state = states[at(tensor.storage.index)];
      depends(op, state.writer);
      for (std::int32_t use = state.first_read; use != kNone; use = uses[at(use)].next) depends(op, uses[at(use)].op);
      state = {.writer = op};
    }
  }
}

struct Fence {
  OpId last{};
  std::vector<OpId> since{};
};

// `op` keeps its place among the ops of a row; `is_fence`: they keep theirs to it.
void add_to_row(OpId op, bool is_fence, Fence& row, std::vector<Dependency>& dependencies) {
  if (row.last == op) return;  // two parts in one row
  if (row.last.valid()) dependencies.push_back({.from = row.last, .to = op, .kind = EdgeKind::kStartToStart});
  if (is_fence) {
    for (const OpId each : row.since) dependencies.push_back({.from = each, .to = op, .kind = EdgeKind::kStartToStart});
    row.last = op;
    row.since.clear();
  } else if (row.since.empty() || row.since.back() != op) {
    row.since.push_back(op);
  }
}

// Edges from earlier ops into a marker and from it into later ones are how a builder makes a whole stream wait: they keep their place.
void add_markers(const OpGraph& graph, std::span<const OpId> order, std::vector<Dependency>& dependencies) {
  std::vector<Fence> streams(graph.streams().size());
  for (const OpId op : order) {
    const bool marker = std::holds_alternative<Marker>(graph.work(op));
    for (const StreamId stream : graph.parts(op)) add_to_row(op, marker, streams[at(stream.index)], dependencies);
  }
}

void add_fixed(const OpGraph& graph, std::span<const OpId> order, const std::function<bool(OpId)>& moves,
               std::vector<Dependency>& dependencies) {
  std::vector<Fence> devices(at(graph.device_count()));
  for (const OpId op : order) {
    const bool asynchronous = is_asynchronous(graph, op);
    if (std::holds_alternative<Marker>(graph.work(op)) || (asynchronous && moves(op))) continue;
    for (const StreamId part : graph.parts(op)) {
      add_to_row(op, asynchronous, devices[at(graph.streams()[at(part.index)].device.index)], dependencies);
    }
  }
}

}  // namespace

IssueDependencies::IssueDependencies(const OpGraph& graph, const std::function<bool(OpId)>& moves) {
  order_ = ordered_by_edges(graph);
  std::vector<Dependency> all;
  for (std::int32_t op = 0; at(op) < graph.ops().size(); ++op) {
    for (const Edge& edge : graph.predecessors(OpId{op})) all.push_back({.from = edge.from, .to = OpId{op}, .kind = edge.kind});
    // A thread that waited for what it launches later would wait for ever.
    for (const OpId awaited : graph.issue_after(OpId{op})) all.push_back({.from = awaited, .to = OpId{op}, .kind = EdgeKind::kEndToStart});
  }
  add_order_of_uses(graph, order_, all);
  add_markers(graph, order_, all);
  if (moves) add_fixed(graph, order_, moves, all);
  before_begin_.assign(graph.ops().size() + 1, 0);
  after_begin_.assign(graph.ops().size() + 1, 0);
  for (const Dependency& each : all) {
    ++before_begin_[at(each.to.index) + 1];
    ++after_begin_[at(each.from.index) + 1];
  }
  std::partial_sum(before_begin_.begin(), before_begin_.end(), before_begin_.begin());
  std::partial_sum(after_begin_.begin(), after_begin_.end(), after_begin_.begin());
  before_.resize(all.size());
  after_.resize(all.size());
  std::vector<std::uint32_t> before_next = before_begin_, after_next = after_begin_;
  for (const Dependency& each : all) {
    before_[before_next[at(each.to.index)]++] = {.from = each.from, .kind = each.kind};
    after_[after_next[at(each.from.index)]++] = {.from = each.to, .kind = each.kind};
  }
}

std::vector<OpId> IssueDependencies::order_with_lazy(const std::function<bool(OpId)>& lazy) const {
  const std::vector<std::int32_t> rank = ranks(order_);
  return ordered(
      order_, rank, [this](OpId op) { return before(op); }, lazy);
}

}  // namespace stepsim
