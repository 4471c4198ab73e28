// What the memory log amounts to: peaks and who holds memory then.
#include <algorithm>
#include <limits>

#include "sim/memory_ledger.h"
#include "sim/prefetch.h"

namespace stepsim {

namespace {

using WideSum = __int128;  // of sizes, each of which may be as large as an int64

Bytes saturated(WideSum size) {
  return Bytes(static_cast<std::int64_t>(std::min<WideSum>(size, std::numeric_limits<std::int64_t>::max())));
}

// Replays the log of one memory; a never-shrinking pool counts with the composition at its high-water mark.
//
// The composition at the peak is written down when a release ends it: what comes until then is part of the peak, or changes nothing.
class Contents {
 public:
  explicit Contents(std::size_t buckets) : by_bucket_(buckets) {}

  // The event is number `index` of the log, its storage is of the bucket.
  void take(const MemoryEvent& event, std::size_t bucket, std::size_t index) {
    if (event.bytes.value < 0) leave_peak();
    by_bucket_[bucket] += event.bytes.value;
    total_ += event.bytes.value;
    compare(event, index);
  }
  void take_in_pool(const MemoryEvent& event, std::size_t bucket, std::size_t index, std::int32_t which) {
    if (pools_.size() <= at(which)) pools_.resize(at(which) + 1);
    PoolContents& pool = pools_[at(which)];
    pool.live_by_bucket.resize(by_bucket_.size());
    pool.high_by_bucket.resize(by_bucket_.size());
    pool.live_by_bucket[bucket] += event.bytes.value;
    pool.live += event.bytes.value;
    if (pool.live <= pool.high_water) return;
    total_ += pool.live - pool.high_water;
    pool.high_water = pool.live;
    for (std::size_t i = 0; i < by_bucket_.size(); ++i) by_bucket_[i] += pool.live_by_bucket[i] - pool.high_by_bucket[i];
    pool.high_by_bucket = pool.live_by_bucket;
    compare(event, index);
  }

  MemoryPeak peak() {
    leave_peak();
    if (peak_.by_bucket.empty()) peak_.by_bucket.resize(by_bucket_.size());
    return peak_;
  }
  // How many events of the log lead up to the peak, its event included; 0 where nothing is ever live.
  std::size_t events_until_peak() const { return until_peak_; }

 private:
  struct PoolContents {
    WideSum live = 0, high_water = 0;
    std::vector<WideSum> live_by_bucket{}, high_by_bucket{};
  };
  void compare(const MemoryEvent& event, std::size_t index) {
    if (total_ <= largest_) return;
    largest_ = total_;
    at_peak_ = true;
    peak_.at = event.at;
    until_peak_ = index + 1;
  }
  void leave_peak() {
    if (!at_peak_) return;
    at_peak_ = false;
    peak_.bytes = saturated(total_);
    peak_.by_bucket.clear();
    for (const WideSum size : by_bucket_) peak_.by_bucket.push_back(saturated(size));
  }

  WideSum total_ = 0, largest_ = 0;
  bool at_peak_ = false;  // what is live now is the largest so far
  std::vector<WideSum> by_bucket_;
  std::vector<PoolContents> pools_;  // by pool
  MemoryPeak peak_;
  std::size_t until_peak_ = 0;
};

// Calls `use` with each event of the log, its storage and its index.
template <class Use>
void for_each_event(const OpGraph& graph, const std::vector<MemoryEvent>& log, const Use& use) {
  constexpr std::size_t kAhead = 16;  // events; measured
  const std::span<const Storage> storages = graph.storages();
  for (std::size_t i = 0; i < log.size(); ++i) {
    if (i + kAhead < log.size()) prefetch(&storages[at(log[i + kAhead].storage.index)]);
    use(log[i], storages[at(log[i].storage.index)], i);
  }
}

// Of every device: its memory, and its storages in host memory.
struct AllContents {
  std::vector<Contents> device, host;
};

AllContents all_contents(const OpGraph& graph, const StepResult& result) {
  const Contents nothing(graph.bucket_count());
  AllContents all{std::vector(at(graph.device_count()), nothing), std::vector(at(graph.device_count()), nothing)};
  std::vector<std::size_t> bucket_of_label;
  for (std::int32_t label = 0; label < graph.label_count(); ++label) bucket_of_label.push_back(at(graph.bucket(LabelId{label})));
  for_each_event(graph, result.memory, [&](const MemoryEvent& event, const Storage& storage, std::size_t i) {
    const std::size_t bucket = storage.role.valid() ? bucket_of_label[at(storage.role.index)] : 0;
    Contents& contents = (storage.space == MemorySpace::kDevice ? all.device : all.host)[at(storage.device.index)];
    if (storage.pool >= 0 && graph.pools()[at(storage.pool)].never_shrinks) {
      contents.take_in_pool(event, bucket, i, storage.pool);
    } else {
      contents.take(event, bucket, i);
    }
  });
  return all;
}

}  // namespace

MemoryPeaks memory_peaks(const OpGraph& graph, const StepResult& result) {
  AllContents all = all_contents(graph, result);
  MemoryPeaks peaks;
  for (Contents& contents : all.device) peaks.device.push_back(contents.peak());
  for (Contents& contents : all.host) peaks.host.push_back(contents.peak());
  return peaks;
}

MemoryPeak memory_peak(const OpGraph& graph, const StepResult& result, DeviceId device, MemorySpace space) {
  AllContents all = all_contents(graph, result);
  return (space == MemorySpace::kDevice ? all.device : all.host)[at(device.index)].peak();
}

std::vector<Bytes> peaks_of_roles(const OpGraph& graph, const StepResult& result, std::span<const LabelId> roles) {
  std::vector<bool> wanted(at(graph.label_count()), false);
  for (const LabelId role : roles) {
    if (role.valid()) wanted[at(role.index)] = true;
  }
  std::vector<WideSum> live(at(graph.device_count()), 0), peaks = live;
  for_each_event(graph, result.memory, [&](const MemoryEvent& event, const Storage& storage, std::size_t) {
    if (!storage.role.valid() || !wanted[at(storage.role.index)] || storage.space != MemorySpace::kDevice) return;
    const std::size_t device = at(storage.device.index);
    live[device] += event.bytes.value;
    peaks[device] = std::max(peaks[device], live[device]);
  });
  std::vector<Bytes> sizes;
  for (const WideSum peak : peaks) sizes.push_back(saturated(peak));
  return sizes;
}

Bytes peak_of_roles(const OpGraph& graph, const StepResult& result, DeviceId device, std::span<const LabelId> roles) {
  return peaks_of_roles(graph, result, roles)[at(device.index)];
}

std::vector<StorageId> holders_at_peak(const OpGraph& graph, const StepResult& result, DeviceId device, MemorySpace space) {
  const AllContents all = all_contents(graph, result);
  const std::size_t until = (space == MemorySpace::kDevice ? all.device : all.host)[at(device.index)].events_until_peak();
  std::vector<bool> live(graph.storages().size(), false);
  for (std::size_t i = 0; i < until; ++i) live[at(result.memory[i].storage.index)] = result.memory[i].bytes.value > 0;
  std::vector<StorageId> holders;
  for (std::int32_t id = 0; at(id) < live.size(); ++id) {
    const Storage& storage = graph.storages()[at(id)];
    if (live[at(id)] && storage.device == device && storage.space == space) holders.push_back(StorageId{id});
  }
  const auto larger = [&graph](StorageId a, StorageId b) {
    return graph.storages()[at(a.index)].size > graph.storages()[at(b.index)].size;
  };
  std::stable_sort(holders.begin(), holders.end(), larger);
  return holders;
}

}  // namespace stepsim
