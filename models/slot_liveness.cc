#include "models/slot_liveness.h"

#include <limits>

namespace stepsim {

namespace {
constexpr std::int32_t kLasting = std::numeric_limits<std::int32_t>::max();
}

SlotLiveness::SlotLiveness(const LayerStack& stack) : stack_(stack), begin_(stack.slot_begins()) {
  const std::size_t between = static_cast<std::size_t>(stack.layers()) + 1;
  for (std::size_t& begin : begin_) begin += between;
  made_in_.assign(begin_.back(), 0);
  if (stack.layers() > 0 && stack.table(0).input != kNoSlot) made_in_.front() = kLasting;
}

// Place i is the input of layer i, which is the output of layer i - 1.
std::size_t SlotLiveness::index(const SlotTable& table, std::int32_t layer, SlotIndex root) const {
  const auto number = static_cast<std::size_t>(layer);
  if (root == table.input) return number;
  if (root == table.output) return number + 1;
  return begin_[number] + static_cast<std::size_t>(root);
}

bool SlotLiveness::is_lasting(const SlotTable& table, SlotIndex root) {
  const auto place = static_cast<std::size_t>(root);
  return root == table.input || root == table.output || table.saved[place] || table.shared[place];
}

bool SlotLiveness::live(std::int32_t layer, SlotIndex root) const {
  const std::int32_t made = made_in_[index(stack_.table(layer), layer, root)];
  return made == kLasting || made == run_;
}

void SlotLiveness::make(std::int32_t layer, SlotIndex root) {
  const SlotTable& table = stack_.table(layer);
  made_in_[index(table, layer, root)] = is_lasting(table, root) ? kLasting : run_;
}

void SlotLiveness::drop(std::int32_t layer, SlotIndex root) { made_in_[index(stack_.table(layer), layer, root)] = 0; }

}  // namespace stepsim
