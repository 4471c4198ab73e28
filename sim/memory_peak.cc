// What the memory log amounts to: peaks and who holds memory then.
#include <algorithm>
#include <limits>

#include "sim/memory_ledger.h"

namespace stepsim {

namespace {

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

bool is_in(const OpGraph& graph, StorageId id, DeviceId device, MemorySpace space) {
  const Storage& storage = graph.storages()[at(id.index)];
  return storage.device == device && storage.space == space;
}

// Replays the log of one memory; a never-shrinking pool counts with the composition at its high-water mark.
class Contents {
 public:
  using WideSum = __int128;  // of sizes, each of which may be as large as an int64

  explicit Contents(const OpGraph& graph)
      : graph_(graph), buckets_(graph.bucket_count()), by_bucket_(buckets_), pools_(graph.pools().size()) {}

  void take(const MemoryEvent& event) {
    const Storage& storage = graph_.storages()[at(event.storage.index)];
    const std::size_t bucket = at(graph_.bucket(storage.role));
    if (storage.pool < 0 || !graph_.pools()[at(storage.pool)].never_shrinks) {
      by_bucket_[bucket] += event.bytes.value;
      total_ += event.bytes.value;
      return;
    }
    PoolContents& pool = pools_[at(storage.pool)];
    pool.live_by_bucket.resize(buckets_);
    pool.high_by_bucket.resize(buckets_);
    pool.live_by_bucket[bucket] += event.bytes.value;
    pool.live += event.bytes.value;
    if (pool.live <= pool.high_water) return;
    total_ += pool.live - pool.high_water;
    pool.high_water = pool.live;
    for (std::size_t i = 0; i < buckets_; ++i) by_bucket_[i] += pool.live_by_bucket[i] - pool.high_by_bucket[i];
    pool.high_by_bucket = pool.live_by_bucket;
  }

  WideSum total() const { return total_; }
  MemoryPeak as_peak(TimePoint time) const {
    MemoryPeak peak{.bytes = saturated(total_), .at = time};
    for (const WideSum size : by_bucket_) peak.by_bucket.push_back(saturated(size));
    return peak;
  }
  static Bytes saturated(WideSum size) {
    return Bytes(static_cast<std::int64_t>(std::min<WideSum>(size, std::numeric_limits<std::int64_t>::max())));
  }

 private:
  struct PoolContents {
    WideSum live = 0, high_water = 0;
    std::vector<WideSum> live_by_bucket{}, high_by_bucket{};
  };
  const OpGraph& graph_;
  std::size_t buckets_;
  WideSum total_ = 0;
  std::vector<WideSum> by_bucket_;
  std::vector<PoolContents> pools_;
};

// How many events of the log lead up to the peak, its event included; 0 where nothing is ever live.
std::size_t events_until_peak(const OpGraph& graph, const StepResult& result, DeviceId device, MemorySpace space) {
  Contents contents(graph);
  Contents::WideSum peak = 0;
  std::size_t until = 0;
  for (std::size_t i = 0; i < result.memory.size(); ++i) {
    if (!is_in(graph, result.memory[i].storage, device, space)) continue;
    contents.take(result.memory[i]);
    if (contents.total() <= peak) continue;
    peak = contents.total();
    until = i + 1;
  }
  return until;
}

}  // namespace

MemoryPeak memory_peak(const OpGraph& graph, const StepResult& result, DeviceId device, MemorySpace space) {
  const std::size_t until = events_until_peak(graph, result, device, space);
  Contents contents(graph);
  for (std::size_t i = 0; i < until; ++i) {
    if (is_in(graph, result.memory[i].storage, device, space)) contents.take(result.memory[i]);
  }
  return contents.as_peak(until > 0 ? result.memory[until - 1].at : TimePoint{});
}

Bytes peak_of_roles(const OpGraph& graph, const StepResult& result, DeviceId device, std::span<const LabelId> roles) {
  std::vector<bool> wanted(at(graph.label_count()), false);
  for (const LabelId role : roles) {
    if (role.valid()) wanted[at(role.index)] = true;
  }
  Contents::WideSum live = 0, peak = 0;
  for (const MemoryEvent& event : result.memory) {
    const LabelId role = graph.storages()[at(event.storage.index)].role;
    if (!role.valid() || !wanted[at(role.index)] || !is_in(graph, event.storage, device, MemorySpace::kDevice)) continue;
    live += event.bytes.value;
    peak = std::max(peak, live);
  }
  return Contents::saturated(peak);
}

std::vector<StorageId> holders_at_peak(const OpGraph& graph, const StepResult& result, DeviceId device, MemorySpace space) {
  const std::size_t until = events_until_peak(graph, result, device, space);
  std::vector<bool> live(graph.storages().size(), false);
  for (std::size_t i = 0; i < until; ++i) live[at(result.memory[i].storage.index)] = result.memory[i].bytes.value > 0;
  std::vector<StorageId> holders;
  for (std::int32_t storage = 0; at(storage) < live.size(); ++storage) {
    if (live[at(storage)] && is_in(graph, StorageId{storage}, device, space)) holders.push_back(StorageId{storage});
  }
  const auto larger = [&graph](StorageId a, StorageId b) {
    return graph.storages()[at(a.index)].size > graph.storages()[at(b.index)].size;
  };
  std::stable_sort(holders.begin(), holders.end(), larger);
  return holders;
}

}  // namespace stepsim
