#include "hardware/backends/cpu/counted_arena.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "sim/check.h"

namespace stepsim::cpu {

namespace {

constexpr std::align_val_t kAlignment{64};
constexpr int kPoison = 0xFF;  // every fp32 of such bytes is NaN

// What a block of `size` bytes takes of the system: none is empty.
std::size_t room(Bytes size) { return static_cast<std::size_t>(std::max<std::int64_t>(size.value, 1)); }

}  // namespace

void CountedArena::Freed::operator()(std::byte* block) const { ::operator delete(block, kAlignment); }

std::byte* CountedArena::claim(Bytes size) {
  if (capacity_ && in_use_ + size > *capacity_) return nullptr;
  std::vector<Block>& blocks = free_[size.value];
  std::byte* block = nullptr;
  if (blocks.empty()) {
    block = static_cast<std::byte*>(::operator new(room(size), kAlignment));
    // Mapped now, not by the first kernel that writes it.
    std::memset(block, poison_ ? kPoison : 0, room(size));
  } else {
    block = blocks.back().release();
    blocks.pop_back();
  }
  in_use_ += size;
  peak_ = std::max(peak_, in_use_);
  return block;
}

void CountedArena::release(std::byte* block, Bytes size) {
  STEPSIM_CHECK(block != nullptr);
  STEPSIM_CHECK(size <= in_use_);
  if (poison_) std::memset(block, kPoison, room(size));
  in_use_ -= size;
  free_[size.value].emplace_back(block);
}

Bytes CountedArena::available() const {
  STEPSIM_CHECK(capacity_.has_value());
  return *capacity_ - in_use_;
}

}  // namespace stepsim::cpu
