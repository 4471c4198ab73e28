#include "hardware/collective_cost.h"

#include <algorithm>
#include <cmath>

#include "hardware/roofline_cost_model.h"
#include "sim/check.h"

namespace stepsim {

namespace {

double as_double(std::int64_t value) { return static_cast<double>(value); }

// Ranks of the group that share an NVLink domain, and the number of domains.
struct Span {
  std::int32_t local = 1, domains = 1;
};

Span span_of(const ClusterSpec& cluster, const Collective& work) {
  const std::int32_t fit = std::max(1, cluster.nvlink_domain / std::max(1, work.stride));
  const std::int32_t local = std::min(work.ranks, fit);
  return {local, (work.ranks - 1) / local + 1};
}

double wire_bytes(const Collective& work) {
  const double message = as_double(work.message.value), n = work.ranks;
  switch (work.kind) {
    case CollectiveKind::kAllReduce:
      return 2 * message * (n - 1) / n;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
      return message * (n - 1) / n;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kSendReceive:
      return message;
  }
  check_failed("collective kind", __FILE__, __LINE__);
}

const CollectiveFit& fit_of(const KernelFit& fit, CollectiveKind kind) {
  if (kind == CollectiveKind::kAllReduce) return fit.all_reduce;
  if (kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kSendReceive) return fit.all_to_all;
  return fit.gather;
}

// Bytes that one GPU's NIC carries. A ring enters and leaves each domain once, so the domain's NICs share its bytes; all-to-all and sends
// use the GPU's own.
double network_bytes(const Collective& work, const Span& span) {
  if (span.domains == 1) return 0;
  if (work.kind == CollectiveKind::kSendReceive) return wire_bytes(work);
  if (work.kind == CollectiveKind::kAllToAll) {
    return as_double(work.message.value) * (work.ranks - span.local) / work.ranks;
  }
  return wire_bytes(work) / span.local;
}

// Steps between domains that a message waits for: NCCL's trees double the domains that they reach, up and down for an all-reduce. A plain
// ring would take one step a domain; its latency is hidden behind its chunks for all but the smallest messages.
std::int32_t network_steps(const Collective& work, const Span& span) {
  if (span.domains == 1) return 0;
  if (work.kind == CollectiveKind::kSendReceive || work.kind == CollectiveKind::kAllToAll) return 1;
  std::int32_t levels = 0;
  for (std::int64_t reached = 1; reached < span.domains; reached *= 2) ++levels;
  return work.kind == CollectiveKind::kAllReduce ? 2 * levels : levels;
}

// Through the device's memory: a sender reads the message, a receiver writes it; who does both moves it twice.
double traffic_bytes(const Collective& work, TransferSide side) {
  const double once = as_double(memory_traffic(work).value);
  return work.kind == CollectiveKind::kSendReceive && side == TransferSide::kBoth ? 2 * once : once;
}

}  // namespace

DeviceCost collective_cost(const GpuSpec& gpu, const ClusterSpec& cluster, const Collective& work, TransferSide side) {
  STEPSIM_CHECK(work.ranks >= 1);
  STEPSIM_CHECK(work.stride >= 1);
  const bool send = work.kind == CollectiveKind::kSendReceive;
  STEPSIM_CHECK(send || side == TransferSide::kBoth);
  DeviceCost cost{.issue = gpu.fit.kernel_issue, .bound = Bound::kLink, .spins = true};
  if (work.ranks == 1) return cost;
  const Span span = span_of(cluster, work);
  const CollectiveFit& fit = fit_of(gpu.fit, work.kind);
  const bool nvlink = gpu.nvlink_per_direction.value > 0 && span.local > 1;
  const double link =
      gpu.nvlink_per_direction.value > 0 ? gpu.nvlink_per_direction.value : std::min(gpu.host_to_device, gpu.device_to_host).value;
  const double wire = wire_bytes(work), bus = fit.bus * link;
  const double latency =
      seconds(fit.fixed) + seconds(fit.per_rank) * (span.local - 1) + seconds(gpu.fit.network_hop) * network_steps(work, span);
  double inside = 2 * std::sqrt(seconds(fit.pipeline) * wire / bus);
  if (span.local > 1) inside += wire / (bus * (1 - fit.small_group / span.local));
  const double over_network = network_bytes(work, span);
  const double outside = over_network / (cluster.network_per_gpu.value * cluster.network_efficiency);
  const double alone = std::max(inside, outside);
  cost.fixed = op_duration(latency);
  cost.alone = op_duration(alone);
  cost.sm = send ? share(gpu.fit.send_channels, gpu.sms) : gpu.fit.collective_sms;
  cost.hbm = share(traffic_bytes(work, side), alone * gpu.hbm.value);
  const double in = side == TransferSide::kSends ? 0 : 1, out = side == TransferSide::kReceives ? 0 : 1;
  if (nvlink) {
    const double nvlink_share = share(wire, alone * gpu.nvlink_per_direction.value);
    cost.nvlink_in = in * nvlink_share;
    cost.nvlink_out = out * nvlink_share;
  } else if (span.local > 1) {
    cost.link_in = in * share(wire, alone * gpu.host_to_device.value);
    cost.link_out = out * share(wire, alone * gpu.device_to_host.value);
  }
  const double network_share = share(over_network, alone * cluster.network_per_gpu.value);
  cost.network_in = in * network_share;
  cost.network_out = out * network_share;
  return cost;
}

Duration collective_time(const GpuSpec& gpu, const ClusterSpec& cluster, const Collective& work) {
  const DeviceCost cost = collective_cost(gpu, cluster, work);
  return cost.fixed + cost.alone;
}

}  // namespace stepsim
