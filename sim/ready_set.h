// What could start, or waits for a slot or for bytes: first come first served by (priority, time met, op id, part).
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "sim/units.h"

namespace stepsim {

struct Ready {
  TimePoint met{};  // when everything but slots and bytes was there
  std::int32_t priority = 0;
  OpId op{};
  std::int32_t candidate = 0;  // of RunPlan
  friend bool operator<(const Ready& a, const Ready& b) {
    if (a.priority != b.priority) return a.priority < b.priority;
    if (a.met != b.met) return a.met < b.met;
    return std::tie(a.op, a.candidate) < std::tie(b.op, b.candidate);
  }
};

class ReadySet {
 public:
  bool empty() const { return heap_.empty(); }
  const Ready& least() const { return heap_.front(); }
  void push(const Ready& ready) {
    heap_.push_back(ready);
    if (heap_.size() > 1) std::push_heap(heap_.begin(), heap_.end(), after);
  }
  Ready pop() {
    if (heap_.size() > 1) std::pop_heap(heap_.begin(), heap_.end(), after);
    const Ready ready = heap_.back();
    heap_.pop_back();
    return ready;
  }

 private:
  static bool after(const Ready& a, const Ready& b) { return b < a; }
  std::vector<Ready> heap_;
};

}  // namespace stepsim
