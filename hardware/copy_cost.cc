#include <algorithm>
#include <cmath>
#include <cstdint>

#include "hardware/kernel_cost.h"

namespace stepsim {

namespace {

// A link or root port that is slower with both directions busy: both draw on the sum of what they then have, in that proportion
// (engine.md 2). `weight`: what the direction has then, in MB/s, or in larger units where that is above 65,535.
struct BothDirections {
  double load = 0;
  std::uint16_t weight = 1;
};

BothDirections both_directions(bool in, double rate, BytesPerSecond both_in, BytesPerSecond both_out) {
  const double both = both_in.value + both_out.value;
  if (!(both > 0)) return {};
  constexpr double kMost = 65535;
  const double unit = std::max(1e6, std::max(both_in, both_out).value / kMost);
  return {share(rate, both), static_cast<std::uint16_t>(std::max(1.0, std::nearbyint((in ? both_in : both_out).value / unit)))};
}

double or_else(BytesPerSecond rate, BytesPerSecond otherwise) { return rate.value > 0 ? rate.value : otherwise.value; }

// Alone on a link of `rate`, pinned: a large copy is slower beyond a size, where the machine says so.
double link_seconds(const GpuSpec& gpu, bool in, double bytes, double rate) {
  const LargeCopy& large = gpu.large_copy;
  const double beyond = static_cast<double>(large.beyond.value);
  if (beyond <= 0 || bytes <= beyond) return bytes / rate;
  return beyond / rate + (bytes - beyond) / (in ? large.host_to_device : large.device_to_host).value;
}

DeviceCost host_copy_cost(const GpuSpec& gpu, const ClusterSpec& cluster, const Copy& work, DeviceCost cost) {
  const double bytes = static_cast<double>(work.bytes.value);
  const bool in = work.direction == CopyDirection::kHostToDevice;
  const double link = (in ? gpu.host_to_device : gpu.device_to_host).value;
  const double pinned = work.pinned ? 1 : gpu.fit.pageable;
  const double whole = link_seconds(gpu, in, bytes, link);
  cost.alone = op_duration(whole / pinned);
  cost.bound = Bound::kHostLink;
  if (work.allocates && work.pinned) cost.issue += gpu.fit.pinned_allocation;
  if (work.bytes.value <= 0) return cost;
  const double speed = bytes / link / whole * pinned;  // of the link's own
  const double rate = link * speed;
  (in ? cost.link_in : cost.link_out) = speed;
  const BothDirections both = both_directions(in, rate, gpu.both_host_to_device, gpu.both_device_to_host);
  cost.link_both = both.load;
  cost.link_weight = both.weight;
  cost.hbm = share(rate, gpu.hbm.value);
  const BytesPerSecond memory = in ? cluster.host_memory_read : cluster.host_memory_write;
  cost.host_memory = share(rate, or_else(memory, cluster.host_memory_bandwidth));
  const RootPort& port = cluster.root_port;  // no such resource where a GPU has its link for itself
  (in ? cost.root_in : cost.root_out) = share(rate, (in ? port.host_to_device : port.device_to_host).value);
  const BothDirections root = both_directions(in, rate, port.both_host_to_device, port.both_device_to_host);
  cost.root_both = root.load;
  cost.root_weight = root.weight;
  return cost;
}

}  // namespace

DeviceCost copy_cost(const GpuSpec& gpu, const ClusterSpec& cluster, const Copy& work) {
  DeviceCost cost{.fixed = gpu.fit.copy_fixed, .issue = gpu.fit.copy_issue};
  if (work.direction != CopyDirection::kDeviceToDevice) return host_copy_cost(gpu, cluster, work, cost);
  constexpr double kCopyFraction = 0.9;  // 4.3 of 4.8 TB/s on an H200, read and written: hardware.json d2d_copy_gbps
  cost.alone = op_duration(2 * static_cast<double>(work.bytes.value) / (kCopyFraction * gpu.hbm.value));
  cost.bound = Bound::kMemory;
  cost.hbm = work.bytes.value > 0 ? kCopyFraction : 0;
  return cost;
}

}  // namespace stepsim
