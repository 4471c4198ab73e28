// Running ops that load shared resources, and when each ends. Nothing happens unless the loads of some resource add up to more than it has;
// then the ops connected through such resources get new rates. Knows slots, loads and time; no op.
//
// Invariants:
//  1. demand of a resource is the sum of peers * u over its members, those included whose loads begin later. While it is at most the
//     capacity, no member can be slowed by it and each keeps the one event that it started with.
//  2. remaining, last and rate of a sharer are the work left at `last`, in 2^-48 ps, and the rate since then. An interval that is split
//     changes nothing: the products are exact.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sim/event_queue.h"
#include "sim/sharing.h"
#include "sim/units.h"

namespace stepsim {

class Contention {
 public:
  explicit Contention(std::int32_t resources);

  // The slot loads from `from` on, with work that takes `alone` at full speed. Its event in the queue is at from + alone.
  void join(std::uint32_t slot, const Sharer& loads, TimePoint from, Duration alone);
  // The slot loads from now on until it leaves, and has no event.
  void join_waiting(std::uint32_t slot, const Sharer& loads);
  void leave(std::uint32_t slot);

  // If the event that came for the slot is the beginning of its loads: its end at full speed, where its next event is to be put before the
  // rates are renewed. None: the slot has ended.
  std::optional<TimePoint> end_if_begins(std::uint32_t slot);
  // New rates for what changed in this instant; moves events.
  void renew_rates(TimePoint now, EventQueue& queue) {
    if (!dirty_.empty()) renew(now, queue);
  }

 private:
  struct Member {
    Uint128 remaining = 0;
    TimePoint last{};
    std::uint64_t rate = kFullSpeed;
    std::span<const Share> loads{};
    std::uint32_t row = Sharer::kNoRow;  // of the loads
    bool endless = false;
    bool begins_later = false;   // its event is the beginning of its loads
    std::uint64_t gathered = 0;  // renewal in which it was last seen
  };
  struct ResourceState {
    std::uint64_t demand = 0;
    std::vector<std::uint32_t> members;
    bool dirty = false;
  };
  void add(std::uint32_t slot, const Member&);
  void mark(std::int32_t resource);
  void renew(TimePoint now, EventQueue&);
  void gather();
  static TimePoint end_of(const Member&);
  bool overloaded(const Member&) const;
  void set_rate(std::uint32_t slot, std::uint64_t rate, TimePoint now, EventQueue&);

  std::vector<Member> members_;  // by slot
  std::vector<ResourceState> resources_;
  std::vector<std::int32_t> dirty_;
  std::vector<std::uint32_t> gathered_;
  std::vector<std::uint32_t> active_;
  std::vector<Sharer> sharers_;
  std::uint64_t renewals_ = 0;
  RateFilling filling_;
};

}  // namespace stepsim
