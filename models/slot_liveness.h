// Which forward-made storages of a stage can be read at one point of a plan. A layer's output and the next layer's input are one storage.
// Storages that backward does not read live only within one unbroken run of forward ops.
#pragma once

#include <vector>

#include "models/slot_table.h"

namespace stepsim {

class SlotLiveness {
 public:
  SlotLiveness(const SlotTable&, std::int64_t layers);  // only the first layer's input is live; the table outlives this

  bool live(std::int32_t layer, SlotIndex root) const;
  void make(std::int32_t layer, SlotIndex root);
  void drop(std::int32_t layer, SlotIndex root);
  void end_run() { ++run_; }  // forward ops that follow belong to another run

  // Whether the root outlives a run: saved, or between two layers.
  bool lasting(SlotIndex root) const;

 private:
  std::size_t index(std::int32_t layer, SlotIndex root) const;

  const SlotTable& table_;
  std::size_t width_;  // places per layer
  std::int32_t run_ = 1;
  std::vector<std::int32_t> made_in_;  // 0: not there; a run, or kLasting
};

}  // namespace stepsim
