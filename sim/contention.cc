#include "sim/contention.h"

#include <algorithm>

#include "sim/saturating_sum.h"

namespace stepsim {

namespace {

constexpr std::uint64_t kCapacity = std::uint64_t{1} << 30;

std::uint64_t use(const Share& load) { return std::uint64_t{load.peers} * load.fraction; }

}  // namespace

Contention::Contention(std::int32_t resources) : resources_(at(resources)), filling_(resources) {}

void Contention::mark(std::int32_t resource) {
  ResourceState& state = resources_[at(resource)];
  if (state.dirty) return;
  state.dirty = true;
  dirty_.push_back(resource);
}

void Contention::add(std::uint32_t slot, const Member& member) {
  if (slot >= members_.size()) members_.resize(slot + std::size_t{1});
  members_[slot] = member;
  for (const Share& load : member.loads) {
    ResourceState& resource = resources_[at(load.resource)];
    resource.demand += use(load);
    resource.members.push_back(slot);
    if (resource.demand > kCapacity) mark(load.resource);
  }
}

void Contention::join(std::uint32_t slot, const Sharer& loads, TimePoint from, Duration alone) {
  const Uint128 work = Uint128{static_cast<std::uint64_t>(alone.count())} << 48;
  add(slot, {.remaining = work, .last = from, .loads = loads.loads, .row = loads.row});
}

void Contention::join_waiting(std::uint32_t slot, const Sharer& loads) {
  add(slot, {.loads = loads.loads, .row = loads.row, .endless = true});
}

void Contention::leave(std::uint32_t slot) {
  Member& member = members_[slot];
  for (const Share& load : member.loads) {
    ResourceState& resource = resources_[at(load.resource)];
    if (resource.demand > kCapacity) mark(load.resource);
    resource.demand -= use(load);
    const auto found = std::find(resource.members.begin(), resource.members.end(), slot);
    *found = resource.members.back();
    resource.members.pop_back();
  }
  member.loads = {};
}

std::optional<TimePoint> Contention::end_if_begins(std::uint32_t slot) {
  if (slot >= members_.size() || !members_[slot].begins_later) return std::nullopt;
  Member& member = members_[slot];
  member.begins_later = false;
  for (const Share& load : member.loads) {
    if (resources_[at(load.resource)].demand > kCapacity) mark(load.resource);
  }
  return end_of(member);
}

// Members of the resources that changed and of the overloaded resources connected with them.
void Contention::gather() {
  ++renewals_;
  gathered_.clear();
  for (std::size_t next = 0; next < dirty_.size(); ++next) {
    for (const std::uint32_t slot : resources_[at(dirty_[next])].members) {
      Member& member = members_[slot];
      if (member.gathered == renewals_) continue;
      member.gathered = renewals_;
      gathered_.push_back(slot);
      for (const Share& load : member.loads) {
        if (resources_[at(load.resource)].demand > kCapacity) mark(load.resource);
      }
    }
  }
  for (const std::int32_t resource : dirty_) resources_[at(resource)].dirty = false;
  dirty_.clear();
}

bool Contention::overloaded(const Member& member) const {
  return std::any_of(member.loads.begin(), member.loads.end(),
                     [&](const Share& load) { return resources_[at(load.resource)].demand > kCapacity; });
}

TimePoint Contention::end_of(const Member& member) {
  const Uint128 above = member.remaining + (member.rate - 1);
  const Uint128 time = member.rate == kFullSpeed ? above >> 48 : above / member.rate;
  const auto longest = static_cast<std::uint64_t>(Duration::max().count());
  const std::uint64_t bounded = time > longest ? longest : static_cast<std::uint64_t>(time);
  return saturating_sum(member.last, Duration(static_cast<std::int64_t>(bounded)));
}

void Contention::set_rate(std::uint32_t slot, std::uint64_t rate, TimePoint now, EventQueue& queue) {
  Member& member = members_[slot];
  if (member.endless || (member.rate == rate && !member.begins_later)) return;
  if (now > member.last) {
    const Uint128 done = Uint128{member.rate} * static_cast<std::uint64_t>((now - member.last).count());
    member.remaining = member.remaining > done ? member.remaining - done : 0;
    member.last = now;
  }
  member.rate = rate;
  member.begins_later = false;
  queue.move(slot, end_of(member));
}

void Contention::renew(TimePoint now, EventQueue& queue) {
  gather();
  active_.clear();
  sharers_.clear();
  for (const std::uint32_t slot : gathered_) {
    Member& member = members_[slot];
    if (member.endless || member.last <= now) {
      active_.push_back(slot);
      sharers_.push_back({member.loads, member.row});
    } else if (const bool later = overloaded(member); later != member.begins_later) {
      member.begins_later = later;
      queue.move(slot, later ? member.last : end_of(member));
    }
  }
  const std::span<const std::uint64_t> rates = filling_.rates(sharers_);
  for (std::size_t i = 0; i < active_.size(); ++i) set_rate(active_[i], rates[i], now, queue);
}

}  // namespace stepsim
