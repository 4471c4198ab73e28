// A caching allocator that looks at every block of every segment each time: lists in vectors, no indexes, nothing kept up to date.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/allocator_rules.h"
#include "sim/caching_allocator.h"

namespace stepsim {

class AllocatorOracle {
 public:
  AllocatorOracle(const AllocatorSettings& settings, std::optional<Bytes> limit) : settings_(settings), limit_(limit) {}

  bool claim(std::int32_t key, Bytes request, std::int32_t stream);
  void let_go(std::int32_t key);
  void release(std::int32_t key);  // nothing if no block has the key
  AllocatorUse use() const;
  std::int64_t retries() const { return retries_; }

 private:
  enum class State { kFree, kHole, kHeld, kWaiting };
  struct Block {
    std::int64_t size = 0, requested = 0;
    State state = State::kFree;
    std::int32_t key = -1;
  };
  struct Segment {
    bool small = false;
    std::int32_t stream = 0;
    std::vector<Block> blocks{};
    bool never_mapped = false;
  };
  struct Place {
    std::size_t segment = 0, block = 0;
  };
  Block& block(const Place& place) { return segments_[place.segment].blocks[place.block]; }
  std::optional<Place> cached(std::int64_t size, std::int32_t stream);
  std::optional<Place> made(std::int64_t size, std::int32_t stream);
  std::optional<Place> grown(std::int64_t size, std::int32_t stream);
  std::optional<Place> grown_at(std::size_t segment, std::size_t first, std::int64_t size);
  void give_back();
  bool give_back_oversize(std::int64_t size, std::int32_t stream);
  Block* find(std::int32_t key);
  std::int64_t reserved() const;
  bool has_room(std::int64_t size) const { return !limit_ || reserved() + size <= limit_->value; }
  static void tidy(Segment& segment);

  AllocatorSettings settings_;
  std::optional<Bytes> limit_;
  std::vector<Segment> segments_;
  std::int64_t retries_ = 0;
};

}  // namespace stepsim
