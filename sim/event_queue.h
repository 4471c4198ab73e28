// Pending events of running ops, earliest first: a binary heap whose entries can be moved in time.
// At one time the order is by op id, although the loop takes all events of an instant before it does anything that depends on their order.
//
// Invariants:
//  1. A slot has at most one event; the heap is as small as the number of running ops.
//  2. place_[slot] is the position of the slot's event in heap_.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/units.h"

namespace stepsim {

class EventQueue {
 public:
  struct Event {
    TimePoint at{};
    OpId op{};
    std::uint32_t slot = 0;
  };

  bool empty() const { return heap_.empty(); }
  const Event& next() const { return heap_.front(); }

  void push(const Event& event) {  // the slot has none
    if (event.slot >= place_.size()) place_.resize(event.slot + std::size_t{1});
    heap_.push_back(event);
    rise(heap_.size() - 1, event);
  }
  void pop() {
    const Event last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) sink(0, last);
  }
  void move(std::uint32_t slot, TimePoint at);  // the slot has one

 private:
  static bool earlier(const Event& a, const Event& b) { return a.at != b.at ? a.at < b.at : a.op < b.op; }
  void put(std::size_t place, const Event& event) {
    heap_[place] = event;
    place_[event.slot] = static_cast<std::uint32_t>(place);
  }
  void rise(std::size_t place, const Event& event) {
    while (place > 0) {
      const std::size_t parent = (place - 1) / 2;
      if (!earlier(event, heap_[parent])) break;
      put(place, heap_[parent]);
      place = parent;
    }
    put(place, event);
  }
  void sink(std::size_t place, const Event& event);

  std::vector<Event> heap_;
  std::vector<std::uint32_t> place_;
};

}  // namespace stepsim
