#include "sim/pool_gate.h"

#include <algorithm>

#include "sim/saturating_sum.h"

namespace stepsim {

PoolGate::PoolGate(const OpGraph& graph) : graph_(graph) {
  const auto gated = [&](StorageId id) {
    const std::int32_t pool = graph.storages()[at(id.index)].pool;
    return pool >= 0 && graph.pools()[at(pool)].gated;
  };
  if (graph.pools().empty()) return;
  bool any = false;
  for (std::size_t i = 0; i < graph.storages().size() && !any; ++i) any = gated(StorageId{static_cast<std::int32_t>(i)});
  if (!any) return;
  for (const Pool& pool : graph.pools()) pools_.push_back({.left = pool.capacity.value, .waiting = {}});
  storages_.resize(graph.storages().size());
  has_ended_.assign(graph.ops().size(), false);
  use_begin_.push_back(0);
  for (std::size_t i = 0; i < graph.ops().size(); ++i) {
    const OpId op{static_cast<std::int32_t>(i)};
    const auto add = [&](StorageId id, bool writes) {
      if (!gated(id)) return;
      uses_.push_back({.storage = id, .pool = graph.storages()[at(id.index)].pool, .writes = writes});
      ++storages_[at(id.index)].uses;
    };
    for (const Tensor& tensor : graph.writes(op)) add(tensor.storage, true);
    for (const Tensor& tensor : graph.reads(op)) add(tensor.storage, false);
    for (const StorageId id : graph.holds(op)) add(id, false);
    use_begin_.push_back(static_cast<std::uint32_t>(uses_.size()));
  }
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    const Storage& storage = graph.storages()[i];
    if (!storage.live_at_start || !gated(StorageId{static_cast<std::int32_t>(i)})) continue;
    storages_[i].claimed = true;
    PoolState& pool = pools_[at(storage.pool)];
    pool.left = -saturating_sum(storage.size.value, -pool.left);
  }
}

// Bytes of the pool that the op would claim if it started now.
std::int64_t PoolGate::wanted(OpId op, std::int32_t pool) const {
  std::int64_t bytes = 0;
  const std::span<const Use> all = uses(op);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i].writes || all[i].pool != pool || storages_[at(all[i].storage.index)].claimed) continue;
    const bool again = std::any_of(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(i),
                                   [&](const Use& other) { return other.writes && other.storage == all[i].storage; });
    if (!again) bytes = saturating_sum(bytes, graph_.storages()[at(all[i].storage.index)].size.value);
  }
  return bytes;
}

std::optional<std::int32_t> PoolGate::stopped_by(const Ready& ready) const {
  for (const Use& use : uses(ready.op)) {
    if (!use.writes || storages_[at(use.storage.index)].claimed) continue;
    const PoolState& pool = pools_[at(use.pool)];
    if (!pool.waiting.empty() && pool.waiting.least() < ready) return use.pool;
    if (wanted(ready.op, use.pool) > pool.left) return use.pool;
  }
  return std::nullopt;
}

void PoolGate::claim(OpId op) {
  for (const Use& use : uses(op)) {
    StorageState& storage = storages_[at(use.storage.index)];
    if (!use.writes || storage.claimed) continue;
    storage.claimed = true;
    pools_[at(use.pool)].left -= graph_.storages()[at(use.storage.index)].size.value;
  }
}

void PoolGate::ended(OpId op) {
  has_ended_[index(op)] = true;
  for (const Use& use : uses(op)) {
    StorageState& state = storages_[at(use.storage.index)];
    const Storage& storage = graph_.storages()[at(use.storage.index)];
    if (--state.uses > 0 || !state.claimed || storage.live_at_end) continue;
    state.claimed = false;
    pools_[at(use.pool)].left += storage.size.value;
  }
}

std::optional<Ready> PoolGate::next(OpId op) {
  for (const Use& use : uses(op)) {
    PoolState& pool = pools_[at(use.pool)];
    if (!pool.waiting.empty() && wanted(pool.waiting.least().op, use.pool) <= pool.left) return pool.waiting.pop();
  }
  return std::nullopt;
}

std::vector<OpId> PoolGate::holders(OpId op) const {
  std::vector<bool> wants(pools_.size(), false);
  std::vector<OpId> found;
  for (const Use& use : uses(op)) {
    if (!use.writes || storages_[at(use.storage.index)].claimed || wants[at(use.pool)]) continue;
    wants[at(use.pool)] = true;
    const ReadySet& waiting = pools_[at(use.pool)].waiting;
    if (!waiting.empty() && waiting.least().op != op) found.push_back(waiting.least().op);
  }
  for (std::size_t i = 0; i + 1 < use_begin_.size(); ++i) {
    const OpId other{static_cast<std::int32_t>(i)};
    if (other == op || has_ended_[i]) continue;
    const std::span<const Use> all = uses(other);
    const bool holds = std::any_of(all.begin(), all.end(),
                                   [&](const Use& use) { return wants[at(use.pool)] && storages_[at(use.storage.index)].claimed; });
    if (holds) found.push_back(other);
  }
  return found;
}

}  // namespace stepsim
