#include "models/slot_liveness.h"

#include <limits>

namespace stepsim {

namespace {
constexpr std::int32_t kLasting = std::numeric_limits<std::int32_t>::max();
}

SlotLiveness::SlotLiveness(const SlotTable& table, std::int64_t layers)
    : table_(table), width_(table.root.size() + 1), made_in_((static_cast<std::size_t>(layers) + 1) * (table.root.size() + 1), 0) {
  if (table.input != kNoSlot) made_in_[index(0, table.input)] = kLasting;
}

// Place `width - 1` of layer i is its input, which is the output of layer i - 1.
std::size_t SlotLiveness::index(std::int32_t layer, SlotIndex root) const {
  const std::size_t row = static_cast<std::size_t>(layer);
  if (root == table_.input) return row * width_ + width_ - 1;
  if (root == table_.output) return (row + 1) * width_ + width_ - 1;
  return row * width_ + static_cast<std::size_t>(root);
}

bool SlotLiveness::lasting(SlotIndex root) const {
  return root == table_.input || root == table_.output || table_.saved[static_cast<std::size_t>(root)];
}

bool SlotLiveness::live(std::int32_t layer, SlotIndex root) const {
  const std::int32_t made = made_in_[index(layer, root)];
  return made == kLasting || made == run_;
}

void SlotLiveness::make(std::int32_t layer, SlotIndex root) { made_in_[index(layer, root)] = lasting(root) ? kLasting : run_; }

void SlotLiveness::drop(std::int32_t layer, SlotIndex root) { made_in_[index(layer, root)] = 0; }

}  // namespace stepsim
