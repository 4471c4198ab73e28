#include "sim/op_costs.h"

#include <algorithm>

#include "sim/check.h"

namespace stepsim {

std::int32_t OpCosts::looked_up(WorkId work, DeviceId device, TransferSide side) {
  const auto of_device = (static_cast<std::uint64_t>(device.index) << 2) | static_cast<std::uint64_t>(side);  // 31 and 2 bits
  const std::uint64_t key = (static_cast<std::uint64_t>(work.index) << 33) | of_device;
  const auto [found, is_new] = row_of_.try_emplace(key, -1);
  if (is_new) found->second = added(work, device, side);
  last_[at(work.index)] = {.device = device, .row = found->second, .side = side};
  return found->second;
}

std::int32_t OpCosts::added(WorkId work, DeviceId device, TransferSide side) {
  const Cost cost = model_.cost(graph_.work(work), device, side);
  STEPSIM_CHECK(cost.fixed.count() >= 0);
  STEPSIM_CHECK(cost.alone.count() >= 0);
  STEPSIM_CHECK(cost.issue.count() >= 0);
  Row row{.fixed = cost.fixed, .alone = cost.alone, .issue = cost.issue};
  row.first_load = static_cast<std::uint32_t>(shares_.size());
  const auto add = [&](const Load& load) {
    shares_.push_back({.resource = load.resource.index, .fraction = load.fraction_2e30, .peers = load.peers, .weight = load.weight});
  };
  for (const Load& load : cost.loads) {
    STEPSIM_CHECK(load.resource.valid());
    STEPSIM_CHECK(at(load.resource.index) < machine_.resources.size());
    STEPSIM_CHECK(load.fraction_2e30 <= kFullLoad);
    STEPSIM_CHECK(load.peers >= 1);
    STEPSIM_CHECK(load.weight >= 1);
    for (std::size_t other = row.first_load; other < shares_.size(); ++other) {
      STEPSIM_CHECK(shares_[other].resource != load.resource.index);
    }
    if (load.fraction_2e30 > 0) add(load);
  }
  row.first_waiting = static_cast<std::uint32_t>(shares_.size());
  row.loads = row.first_waiting - row.first_load;
  for (const Load& load : cost.loads) {
    if (load.while_waiting && load.fraction_2e30 > 0) add(load);
  }
  row.waiting = static_cast<std::uint32_t>(shares_.size()) - row.first_waiting;
  rows_.push_back(row);
  return static_cast<std::int32_t>(rows_.size()) - 1;
}

void OpCosts::add_to_union(Share load) {
  if (place_.size() <= at(load.resource)) place_.resize(at(load.resource) + 1, 0);
  std::size_t& place = place_[at(load.resource)];
  if (place == 0) {
    shares_.push_back(load);
    place = shares_.size();
    return;
  }
  Share& same = shares_[place - 1];
  same.fraction = std::max(same.fraction, load.fraction);
  same.peers = std::max(same.peers, load.peers);
  same.weight = std::max(same.weight, load.weight);
}

std::int32_t OpCosts::together(std::span<const std::int32_t> parts) {
  Row whole{.issue = row(parts[0]).issue, .first_load = static_cast<std::uint32_t>(shares_.size())};
  for (const std::int32_t index : parts) {
    const Row part = row(index);
    whole.fixed = std::max(whole.fixed, part.fixed);
    whole.alone = std::max(whole.alone, part.alone);
    for (std::size_t i = part.first_load; i < part.first_load + part.loads; ++i) add_to_union(shares_[i]);
  }
  for (std::size_t i = whole.first_load; i < shares_.size(); ++i) place_[at(shares_[i].resource)] = 0;
  whole.loads = static_cast<std::uint32_t>(shares_.size()) - whole.first_load;
  rows_.push_back(whole);
  return static_cast<std::int32_t>(rows_.size()) - 1;
}

}  // namespace stepsim
