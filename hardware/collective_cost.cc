#include "hardware/collective_cost.h"

#include <algorithm>
#include <cmath>

#include "hardware/roofline_cost_model.h"
#include "sim/check.h"

namespace stepsim {

namespace {

// Ranks of the group that share an NVLink domain, the number of domains, and the ranks in the one that has fewest.
struct Span {
  std::int32_t local = 1, domains = 1, fewest = 1;
};

std::int32_t members_within(std::int32_t gpus, const Collective& work) { return std::max(1, gpus / work.stride); }

Span span_of(const ClusterSpec& cluster, const Collective& work) {
  const std::int32_t fit = members_within(cluster.nvlink_domain, work);
  if (work.ranks <= fit) return {work.ranks, 1, work.ranks};
  const std::int32_t local = cluster.segment > 0 ? members_within(cluster.segment, work) : fit;
  const std::int32_t domains = (work.ranks - 1) / local + 1;
  return {local, domains, work.ranks - local * (domains - 1)};
}

double wire_bytes(const Collective& work) {
  const double message = as_double(work.message.value), n = work.ranks;
  switch (work.kind) {
    case CollectiveKind::kAllReduce:
      return 2 * message * (n - 1) / n;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kDispatch:
    case CollectiveKind::kCombine:
      return message * (n - 1) / n;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kSendReceive:
      return message;
  }
  check_failed("collective kind", __FILE__, __LINE__);
}

// Every rank sends something else to every other.
bool exchanges(CollectiveKind kind) {
  return kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kDispatch || kind == CollectiveKind::kCombine;
}

const CollectiveFit& fit_of(const KernelFit& fit, CollectiveKind kind) {
  if (kind == CollectiveKind::kAllReduce) return fit.all_reduce;
  const bool gathers = kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kBroadcast;
  return gathers ? fit.gather : fit.all_to_all;
}

// None: NCCL moves the bytes.
const ExpertExchange* expert_exchange(const KernelFit& fit, const Collective& work) {
  if (work.kind != CollectiveKind::kDispatch && work.kind != CollectiveKind::kCombine) return nullptr;
  for (const ExpertExchange& exchange : fit.expert_exchanges) {
    if (work.library != CollectiveLibrary::kNccl && exchange.library == work.library) return &exchange;
  }
  return nullptr;
}

// Between the rank counts of the table linear, outside them the nearest counts.
BytesPerSecond exchange_rate(const ExpertExchange& exchange, const Collective& work) {
  const auto rate = [&](const ExpertRate& row) { return work.kind == CollectiveKind::kDispatch ? row.dispatch : row.combine; };
  STEPSIM_CHECK(!exchange.rates.empty());
  const ExpertRate* below = nullptr;
  for (const ExpertRate& row : exchange.rates) {
    if (row.ranks >= work.ranks) {
      if (below == nullptr || row.ranks == work.ranks) return rate(row);
      const double part = as_double(work.ranks - below->ranks) / (row.ranks - below->ranks);
      return BytesPerSecond(rate(*below).value + part * (rate(row).value - rate(*below).value));
    }
    below = &row;
  }
  return rate(*below);
}

// Of the copies of tokens in the message, those that cross the network: one for each domain that a token goes to, whose ranks hand it on
// by NVLink (DeepEP csrc/kernels/internode.cu: RDMA ranks, then NVL peers; HybridEP likewise).
double network_copies(const Collective& work, const Span& span) {
  if (work.routing.experts == 0) return 1;
  return parts_reached(work.routing, span.domains) / parts_reached(work.routing, work.ranks);
}

// Bytes that one GPU's NIC carries, where it carries most. A ring enters and leaves each domain once, so the NICs of its members there
// share its bytes, and the domain with fewest is the slowest; all-to-all and sends use the GPU's own.
double network_bytes(const Collective& work, const Span& span) {
  if (span.domains == 1) return 0;
  if (work.kind == CollectiveKind::kSendReceive) return wire_bytes(work);
  if (exchanges(work.kind)) {
    return network_copies(work, span) * as_double(work.message.value) * (work.ranks - span.fewest) / work.ranks;
  }
  return wire_bytes(work) / span.fewest;
}

// Steps between domains that a message waits for: NCCL's trees double the domains that they reach, up and down for an all-reduce. A plain
// ring would take one step a domain; its latency is hidden behind its chunks for all but the smallest messages. A broadcast has no tree
// (NVIDIA/nccl src/graph/tuning.cc: all but all-reduces are rings, a broadcast of as many steps as ranks), and all of it passes every rank.
std::int32_t network_steps(const Collective& work, const Span& span) {
  if (span.domains == 1) return 0;
  if (work.kind == CollectiveKind::kBroadcast) return span.domains - 1;
  if (work.kind == CollectiveKind::kSendReceive || exchanges(work.kind)) return 1;
  std::int32_t levels = 0;
  for (std::int64_t reached = 1; reached < span.domains; reached *= 2) ++levels;
  return work.kind == CollectiveKind::kAllReduce ? 2 * levels : levels;
}

// Through the device's memory: a sender reads the message, a receiver writes it; who does both moves it twice.
double traffic_bytes(const Collective& work, TransferSide side) {
  const double once = as_double(memory_traffic(work).value);
  return work.kind == CollectiveKind::kSendReceive && side == TransferSide::kBoth ? 2 * once : once;
}

// Within an NVLink domain: latency, and the rest of the time.
struct Inside {
  double latency_s = 0, rest_s = 0;
};

// Steps within domains that a message waits for: of a broadcast, in each of them.
std::int32_t inner_steps(const Span& span, bool broadcast) { return (span.local - 1) * (broadcast ? span.domains : 1); }

// NCCL's protocol of bandwidth. What small groups lose was measured where each rank sends (n-1)/n of the message, whose growth outweighs
// it; a broadcast, which sends all of it, takes the rate of many ranks.
Inside streamed(const CollectiveFit& fit, const Span& span, double wire, double link, bool broadcast) {
  const double bus = fit.bus * link;
  double rest = 2 * std::sqrt(seconds(fit.pipeline) * wire / bus);
  if (span.local > 1) rest += wire / (broadcast ? bus : bus * (1 - fit.small_group / span.local));
  return {seconds(fit.fixed) + seconds(fit.per_rank) * inner_steps(span, broadcast), rest};
}

// NCCL's protocol of little latency.
Inside quick(const CollectiveFit& fit, const Span& span, double wire, double link, bool broadcast) {
  return {seconds(fit.quick_fixed) + seconds(fit.quick_per_rank) * inner_steps(span, broadcast), wire / (fit.quick_bus * link)};
}

// The one that ends first, where `outside_s` on the network is a bound for either.
Inside nccl(const CollectiveFit& fit, const Span& span, double wire, double link, double outside_s, bool broadcast) {
  const Inside slow = streamed(fit, span, wire, link, broadcast);
  if (!(fit.quick_bus > 0)) return slow;
  const Inside fast = quick(fit, span, wire, link, broadcast);
  const auto total = [&](const Inside& inside) { return inside.latency_s + std::max(inside.rest_s, outside_s); };
  return total(fast) < total(slow) ? fast : slow;
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
  const bool nvlink = gpu.nvlink_per_direction.value > 0 && span.local > 1;
  const double link =
      gpu.nvlink_per_direction.value > 0 ? gpu.nvlink_per_direction.value : std::min(gpu.host_to_device, gpu.device_to_host).value;
  const double wire = wire_bytes(work), over_network = network_bytes(work, span);
  const double outside = over_network / (cluster.network_per_gpu.value * cluster.network_efficiency);
  const ExpertExchange* const exchange = expert_exchange(gpu.fit, work);
  const Inside inside = exchange != nullptr
                            ? Inside{seconds(exchange->fixed), as_double(work.message.value) / exchange_rate(*exchange, work).value}
                            : nccl(fit_of(gpu.fit, work.kind), span, wire, link, outside, work.kind == CollectiveKind::kBroadcast);
  const double alone = std::max(inside.rest_s, outside);
  cost.fixed = op_duration(inside.latency_s + seconds(gpu.fit.network_hop) * network_steps(work, span));
  cost.alone = op_duration(alone);
  if (outside > inside.rest_s) cost.bound = Bound::kNetwork;
  cost.sm = send ? share(gpu.fit.send_channels, gpu.sms) : gpu.fit.collective_sms;
  if (exchange != nullptr) cost.sm = share(exchange->sms, gpu.sms);
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
