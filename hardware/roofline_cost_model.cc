#include "hardware/roofline_cost_model.h"

#include <map>
#include <mutex>
#include <utility>

#include "hardware/collective_cost.h"
#include "hardware/kernel_cost.h"
#include "sim/check.h"

namespace stepsim {

namespace {

struct DeviceResources {
  ResourceId sm, hbm, link_in, link_out, link_both, nvlink, network, host_memory;  // invalid: the machine has none
};

ResourceId* slot_of(DeviceResources& device, const std::string& kind) {
  if (kind == "sm") return &device.sm;
  if (kind == "hbm") return &device.hbm;
  if (kind == "link in") return &device.link_in;
  if (kind == "link out") return &device.link_out;
  if (kind == "link both") return &device.link_both;
  if (kind == "nvlink") return &device.nvlink;
  if (kind == "network") return &device.network;
  return nullptr;
}

std::vector<DeviceResources> resources_by_device(const Machine& machine) {
  std::vector<DeviceResources> devices(machine.host_of_device.size());
  std::vector<ResourceId> host_memories;  // in the order of the hosts
  for (std::size_t i = 0; i < machine.resources.size(); ++i) {
    const Resource& resource = machine.resources[i];
    const ResourceId id{static_cast<std::int32_t>(i)};
    if (!resource.device.valid()) {
      if (resource.kind == "host memory") host_memories.push_back(id);
      continue;
    }
    if (ResourceId* slot = slot_of(devices.at(static_cast<std::size_t>(resource.device.index)), resource.kind)) *slot = id;
  }
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const auto host = static_cast<std::size_t>(machine.host_of_device[i]);
    if (host < host_memories.size()) devices[i].host_memory = host_memories[host];
  }
  return devices;
}

DeviceCost device_cost(const GpuSpec& gpu, const ClusterSpec& cluster, const OpWork& work) {
  if (const auto* gemm = std::get_if<Gemm>(&work)) return gemm_cost(gpu, *gemm);
  if (const auto* attention = std::get_if<Attention>(&work)) return attention_cost(gpu, *attention);
  if (const auto* kernel = std::get_if<MemoryBound>(&work)) return memory_bound_cost(gpu, *kernel);
  if (const auto* collective = std::get_if<Collective>(&work)) return collective_cost(gpu, cluster, *collective);
  if (const auto* copy = std::get_if<Copy>(&work)) return copy_cost(gpu, cluster, *copy);
  STEPSIM_CHECK(std::holds_alternative<Marker>(work));  // given costs belong to GivenCostModel
  return {};
}

}  // namespace

struct RooflineCostModel::Tables {
  GpuSpec gpu;
  ClusterSpec cluster;
  std::vector<DeviceResources> devices;

  // Loads must outlive the call, so each (work, device) is kept; the map never moves its values.
  struct Entry {
    DeviceCost cost;
    std::vector<Load> loads;
  };
  std::mutex mutex;
  std::map<std::pair<OpWork, DeviceId>, Entry> entries;

  std::vector<Load> loads(const DeviceCost& cost, const DeviceResources& device) const;
};

std::vector<Load> RooflineCostModel::Tables::loads(const DeviceCost& cost, const DeviceResources& device) const {
  std::vector<Load> loads;
  const auto add = [&](ResourceId resource, double fraction) -> Load* {
    if (!resource.valid() || !(fraction > 0)) return nullptr;
    loads.push_back({.resource = resource, .fraction_2e30 = load_fraction(fraction)});
    return &loads.back();
  };
  if (Load* sm = add(device.sm, cost.sm)) sm->while_waiting = cost.spins;
  add(device.hbm, cost.hbm);
  add(device.link_in, cost.link_in);
  add(device.link_out, cost.link_out);
  // Where a link is slower with both directions busy, both draw on their sum, in the measured proportion (engine.md 2).
  const double in = gpu.both_host_to_device.value, out = gpu.both_device_to_host.value, both = in + out;
  if (both > 0 && (cost.link_in > 0) != (cost.link_out > 0)) {
    const bool inwards = cost.link_in > 0;
    const double rate = inwards ? cost.link_in * gpu.host_to_device.value : cost.link_out * gpu.device_to_host.value;
    if (Load* link = add(device.link_both, share(rate, both))) {
      link->weight = static_cast<std::uint16_t>(1 + 1000 * ((inwards ? in : out) / both));
    }
  }
  add(device.nvlink, cost.nvlink);
  add(device.network, cost.network);
  if (Load* host = add(device.host_memory, cost.host_memory)) {
    STEPSIM_CHECK(cluster.gpus_per_host_memory <= 65535);
    host->peers = static_cast<std::uint16_t>(cluster.gpus_per_host_memory);
  }
  return loads;
}

RooflineCostModel::RooflineCostModel(const GpuSpec& gpu, const ClusterSpec& cluster, const Machine& machine)
    : tables_(std::make_unique<Tables>()) {
  tables_->gpu = gpu;
  tables_->cluster = cluster;
  tables_->devices = resources_by_device(machine);
}

RooflineCostModel::~RooflineCostModel() = default;

Cost RooflineCostModel::cost(const OpWork& work, DeviceId device) const {
  const std::lock_guard lock(tables_->mutex);
  STEPSIM_CHECK(device.valid());
  STEPSIM_CHECK(static_cast<std::size_t>(device.index) < tables_->devices.size());
  const auto key = std::pair(work, device);
  auto found = tables_->entries.find(key);
  if (found == tables_->entries.end()) {
    Tables::Entry entry{.cost = device_cost(tables_->gpu, tables_->cluster, work), .loads = {}};
    entry.loads = tables_->loads(entry.cost, tables_->devices[static_cast<std::size_t>(device.index)]);
    found = tables_->entries.emplace(key, std::move(entry)).first;
  }
  const Tables::Entry& entry = found->second;
  return {.fixed = entry.cost.fixed, .alone = entry.cost.alone, .issue = entry.cost.issue, .loads = entry.loads};
}

std::string RooflineCostModel::bound_by(const OpWork& work) const {
  const DeviceCost cost = device_cost(tables_->gpu, tables_->cluster, work);
  if (cost.fixed >= cost.alone) return "latency";
  switch (cost.bound) {
    case Bound::kLatency:
      return "latency";
    case Bound::kCompute:
      return "compute";
    case Bound::kMemory:
      return "memory";
    case Bound::kLink:
      return "link";
  }
  check_failed("bound", __FILE__, __LINE__);
}

}  // namespace stepsim
