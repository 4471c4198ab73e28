// What is known of a work on a device and side: found without a lock or an allocation, by open addressing over entries that never move.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "hardware/work_hash.h"
#include "sim/op_work.h"

namespace stepsim {

// Any number of threads may find() while one inserts; who inserts holds a lock of the caller's.
template <class Value>
class WorkMemo {
 public:
  WorkMemo() { grow(kFirstSlots); }

  // Null where nothing is known.
  const Value* find(const OpWork& work, DeviceId device, TransferSide side) const {
    const std::uint64_t hash = work_hash(work, device, side);
    const Table& table = *table_.load(std::memory_order_acquire);
    for (std::size_t i = hash & table.mask;; i = (i + 1) & table.mask) {
      const Entry* const entry = table.slots[i].entry.load(std::memory_order_acquire);
      if (entry == nullptr) return nullptr;
      const bool same_place = table.slots[i].hash == hash && entry->device == device && entry->side == side;
      if (same_place && same_work(entry->work, work)) return &entry->value;
    }
  }

  // Of what is not known yet; valid as long as the memo.
  const Value& insert(const OpWork& work, DeviceId device, TransferSide side, Value value) {
    if (2 * (entries_.size() + 1) > table_.load(std::memory_order_relaxed)->slots.size()) grow(4 * (entries_.size() + 1));
    entries_.push_back({work, device, side, std::move(value)});
    put(*tables_.back(), entries_.back());
    return entries_.back().value;
  }

  std::size_t size() const { return entries_.size(); }

 private:
  static constexpr std::size_t kFirstSlots = 64;

  struct alignas(64) Entry {  // begins with a cache line
    OpWork work;
    DeviceId device;
    TransferSide side;
    Value value;
  };
  struct Slot {
    std::uint64_t hash = 0;  // of an entry: written before it
    std::atomic<const Entry*> entry{nullptr};
  };
  struct Table {
    explicit Table(std::size_t size) : slots(size), mask(size - 1) {}
    std::vector<Slot> slots;
    std::size_t mask;
  };

  void put(Table& table, const Entry& entry) {
    const std::uint64_t hash = work_hash(entry.work, entry.device, entry.side);
    std::size_t i = hash & table.mask;
    while (table.slots[i].entry.load(std::memory_order_relaxed) != nullptr) i = (i + 1) & table.mask;
    table.slots[i].hash = hash;
    table.slots[i].entry.store(&entry, std::memory_order_release);
  }

  // Older tables stay for those who are reading them: as much memory again at most.
  void grow(std::size_t least) {
    auto larger = std::make_unique<Table>(std::bit_ceil(least));
    for (const Entry& entry : entries_) put(*larger, entry);
    table_.store(larger.get(), std::memory_order_release);
    tables_.push_back(std::move(larger));
  }

  std::deque<Entry> entries_;
  std::vector<std::unique_ptr<Table>> tables_;
  std::atomic<const Table*> table_{nullptr};
};

}  // namespace stepsim
