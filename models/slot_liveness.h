// Which forward-made storages of a stage can be read at one point of a plan. A layer's output and the next layer's input are one storage.
// Storages that backward does not read live only within one unbroken run of forward ops.
#pragma once

#include <vector>

#include "models/layer_stack.h"

namespace stepsim {

class SlotLiveness {
 public:
  explicit SlotLiveness(const LayerStack&);  // only the first layer's input is live

  bool live(std::int32_t layer, SlotIndex root) const;
  void make(std::int32_t layer, SlotIndex root);
  void drop(std::int32_t layer, SlotIndex root);
  void end_run() { ++run_; }  // forward ops that follow belong to another run

  // Whether the root outlives a run: saved, shared, or between two layers.
  bool lasting(std::int32_t layer, SlotIndex root) const { return is_lasting(stack_.table(layer), root); }

 private:
  static bool is_lasting(const SlotTable&, SlotIndex root);
  std::size_t index(const SlotTable&, std::int32_t layer, SlotIndex root) const;

  LayerStack stack_;
  std::vector<std::size_t> begin_;  // of the layers' own places; the places between layers come first
  std::int32_t run_ = 1;
  std::vector<std::int32_t> made_in_;  // 0: not there; a run, or kLasting
};

}  // namespace stepsim
