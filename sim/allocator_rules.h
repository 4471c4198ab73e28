// The arithmetic of a caching allocator of device memory: what a request becomes and which blocks are cut. Knows no state.
// Source: pytorch c10/cuda/CUDACachingAllocator.cpp (get_allocation_size, should_split, garbage_collect_cached_blocks).
#pragma once

#include <algorithm>
#include <optional>

#include "sim/check.h"
#include "sim/units.h"

namespace stepsim {

struct AllocatorSettings {
  bool expandable_segments = false;       // a segment for each stream and pool that grows and shrinks by pages
  std::optional<Bytes> max_split_size{};  // free blocks of this size and above serve only requests of that class, whole; none: no limit
  double collection_threshold = 0;        // fraction of the limit above which old cached segments are given back before new ones; 0: never
  friend bool operator==(const AllocatorSettings&, const AllocatorSettings&) = default;
};

// All in bytes. A request above kLargestRequest is served as one of that size.
inline constexpr std::int64_t kBlockGranularity = 512;
inline constexpr std::int64_t kLargestSmallBlock = std::int64_t{1} << 20;
inline constexpr std::int64_t kSmallSegment = std::int64_t{2} << 20;
inline constexpr std::int64_t kLargeSegment = std::int64_t{20} << 20;
inline constexpr std::int64_t kLeastOwnSegment = std::int64_t{10} << 20;
inline constexpr std::int64_t kSegmentGranularity = std::int64_t{2} << 20;
inline constexpr std::int64_t kLargestRequest = std::int64_t{1} << 50;

// Rounded up to whole granules, one at least.
inline Bytes block_size(Bytes request) {
  STEPSIM_CHECK(request.value >= 0);
  const std::int64_t granules = (std::min(request.value, kLargestRequest) + kBlockGranularity - 1) / kBlockGranularity;
  return Bytes(std::max(granules, std::int64_t{1}) * kBlockGranularity);
}

// Of a block size.
inline bool is_small_block(Bytes block) { return block.value <= kLargestSmallBlock; }
// What is asked of the driver for it where no segment has room; without expandable segments.
Bytes segment_size(Bytes block);
// By how much an expandable segment grows or shrinks.
Bytes segment_page(bool small);

// Whether the rest of a free block is cut off when it serves `block` (not larger than it).
inline bool splits(const AllocatorSettings& settings, Bytes free_block, Bytes block) {
  STEPSIM_CHECK(free_block >= block);
  const std::int64_t rest = free_block.value - block.value;
  if (is_small_block(block) || settings.expandable_segments) return rest >= kBlockGranularity;
  const bool may_be_cut = !settings.max_split_size || block < *settings.max_split_size;
  return may_be_cut && rest > kLargestSmallBlock;
}

// Whether a free block may serve `block` at all, by size (not smaller than it).
bool may_serve(const AllocatorSettings&, Bytes free_block, Bytes block);

}  // namespace stepsim
