#include "sim/allocator_rules.h"

namespace stepsim {

static std::int64_t rounded_up(std::int64_t size, std::int64_t granule) { return (size + granule - 1) / granule * granule; }

Bytes segment_size(Bytes block) {
  if (is_small_block(block)) return Bytes(kSmallSegment);
  return Bytes(block.value < kLeastOwnSegment ? kLargeSegment : rounded_up(block.value, kSegmentGranularity));
}

Bytes segment_page(bool small) { return Bytes(small ? kSmallSegment : kLargeSegment); }

bool may_serve(const AllocatorSettings& settings, Bytes free_block, Bytes block) {
  if (!settings.max_split_size) return true;
  const Bytes limit = *settings.max_split_size;
  if (block < limit) return free_block < limit;
  return free_block.value < block.value + kLargeSegment;  // max_non_split_rounding_size, 20 MiB by default
}

}  // namespace stepsim
