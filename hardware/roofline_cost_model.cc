#include "hardware/roofline_cost_model.h"

#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "hardware/work_cost.h"
#include "hardware/work_memo.h"
#include "sim/check.h"

namespace stepsim {

struct DeviceResources {
  ResourceId sm, hbm, link_in, link_out, link_both;  // invalid: the machine has none
  ResourceId nvlink_in, nvlink_out, network_in, network_out;
  ResourceId root_in, root_out, root_both, host_memory;  // of its host
};

namespace {

ResourceId* slot_of(DeviceResources& device, const std::string& kind) {
  if (kind == "sm") return &device.sm;
  if (kind == "hbm") return &device.hbm;
  if (kind == "link in") return &device.link_in;
  if (kind == "link out") return &device.link_out;
  if (kind == "link both") return &device.link_both;
  if (kind == "nvlink in") return &device.nvlink_in;
  if (kind == "nvlink out") return &device.nvlink_out;
  if (kind == "network in") return &device.network_in;
  if (kind == "network out") return &device.network_out;
  if (kind == "root port in") return &device.root_in;
  if (kind == "root port out") return &device.root_out;
  if (kind == "root port both") return &device.root_both;
  if (kind == "host memory") return &device.host_memory;
  return nullptr;
}

std::vector<DeviceResources> resources_by_device(const Machine& machine) {
  std::vector<DeviceResources> devices(machine.host_of_device.size()), hosts(machine.host_capacity.size());
  std::map<std::string, std::size_t> hosts_seen;  // by kind: resources of hosts are in their order
  for (std::size_t i = 0; i < machine.resources.size(); ++i) {
    const Resource& resource = machine.resources[i];
    const bool shared = !resource.device.valid();
    const std::size_t owner = shared ? hosts_seen[resource.kind]++ : static_cast<std::size_t>(resource.device.index);
    std::vector<DeviceResources>& owners = shared ? hosts : devices;
    ResourceId* slot = owner < owners.size() ? slot_of(owners[owner], resource.kind) : nullptr;  // others are not of make_machine
    if (slot != nullptr) *slot = ResourceId{static_cast<std::int32_t>(i)};
  }
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const DeviceResources& host = hosts.at(static_cast<std::size_t>(machine.host_of_device[i]));
    devices[i].root_in = host.root_in;
    devices[i].root_out = host.root_out;
    devices[i].root_both = host.root_both;
    devices[i].host_memory = host.host_memory;
  }
  return devices;
}

}  // namespace

struct RooflineCostModel::Tables {
  GpuSpec gpu;
  ClusterSpec cluster;
  std::vector<DeviceResources> devices;

  WorkMemo<DeviceCost> of_kind;  // on any device: all are of one kind
  WorkMemo<Cost> of_device;
  std::deque<std::vector<Load>> load_lists;  // of the costs; what was added keeps its place
  std::mutex inserting;

  const DeviceCost& device_cost(const OpWork& work, TransferSide side);
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
  add(device.nvlink_in, cost.nvlink_in);
  add(device.nvlink_out, cost.nvlink_out);
  add(device.network_in, cost.network_in);
  add(device.network_out, cost.network_out);
  // What both directions share. All have the copy's weight: a level of fairness counts in units of 1 / weight.
  const auto add_shared = [&](ResourceId resource, double fraction, std::uint16_t weight, std::int32_t peers) {
    STEPSIM_CHECK(peers >= 1);
    STEPSIM_CHECK(peers <= 65535);
    if (Load* load = add(resource, fraction)) {
      load->peers = static_cast<std::uint16_t>(peers);
      load->weight = weight;
    }
  };
  add_shared(device.link_both, cost.link_both, cost.link_weight, 1);
  add_shared(device.root_in, cost.root_in, cost.root_weight, cluster.root_port.gpus);
  add_shared(device.root_out, cost.root_out, cost.root_weight, cluster.root_port.gpus);
  add_shared(device.root_both, cost.root_both, cost.root_weight, cluster.root_port.gpus);
  add_shared(device.host_memory, cost.host_memory, cost.link_weight, cluster.gpus_per_host_memory);
  return loads;
}

RooflineCostModel::RooflineCostModel(const GpuSpec& gpu, const ClusterSpec& cluster, const Machine& machine)
    : tables_(std::make_unique<Tables>()) {
  tables_->gpu = gpu;
  tables_->cluster = cluster;
  tables_->devices = resources_by_device(machine);
}

RooflineCostModel::~RooflineCostModel() = default;

// Dear where a product tries all tiles, so it is not asked again for each device.
const DeviceCost& RooflineCostModel::Tables::device_cost(const OpWork& work, TransferSide side) {
  const DeviceCost* const known = of_kind.find(work, DeviceId{}, side);
  return known != nullptr ? *known : of_kind.insert(work, DeviceId{}, side, work_cost(gpu, cluster, work, side));
}

Cost RooflineCostModel::cost(const OpWork& work, DeviceId device, TransferSide side) const {
  const Cost* const known = tables_->of_device.find(work, device, side);
  return known != nullptr ? *known : first_cost(work, device, side);
}

Cost RooflineCostModel::first_cost(const OpWork& work, DeviceId device, TransferSide side) const {
  STEPSIM_CHECK(device.valid());
  STEPSIM_CHECK(static_cast<std::size_t>(device.index) < tables_->devices.size());
  const std::lock_guard lock(tables_->inserting);
  const Cost* const known = tables_->of_device.find(work, device, side);  // another thread may have been faster
  if (known != nullptr) return *known;
  const DeviceCost& cost = tables_->device_cost(work, side);
  tables_->load_lists.push_back(tables_->loads(cost, tables_->devices[static_cast<std::size_t>(device.index)]));
  const Cost added{.fixed = cost.fixed, .alone = cost.alone, .issue = cost.issue, .loads = tables_->load_lists.back()};
  return tables_->of_device.insert(work, device, side, added);
}

KernelExplanation RooflineCostModel::explained(const OpWork& work) const {
  return kernel_explanation(tables_->gpu, tables_->cluster, work);
}

}  // namespace stepsim
