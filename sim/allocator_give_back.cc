// How a caching allocator gives memory back to the driver.
#include <algorithm>

#include "sim/caching_allocator.h"
#include "sim/check.h"

namespace stepsim {

// Everything that was let go, once the device is idle.
void CachingAllocator::finish_waiting() {
  for (const std::int32_t index : waiting_) {
    if (at(index).state == State::kWaiting) return_to_pool(index);
  }
  waiting_.clear();
}

// Whole segments, and whole pages of expandable ones. Large blocks first.
void CachingAllocator::give_back_cached() {
  finish_waiting();
  for (const std::size_t first : {std::size_t{1}, std::size_t{0}}) {
    for (std::size_t i = first; i < pools_.size(); i += 2) give_back_pool(pools_[i]);
  }
}

void CachingAllocator::give_back_pool(Pool& pool) {
  const std::vector<Key> free = pool.free.all();
  for (const Key& key : free) {
    const Block& block = at(key.block);
    if (block.expandable) {
      give_back_pages(key.block);
    } else if (block.previous < 0 && block.next < 0) {
      give_back_segment(key.block);
    }
  }
}

// Of a free block that is all of its segment.
void CachingAllocator::give_back_segment(std::int32_t index) {
  unlist(index);
  Block& block = at(index);
  use_.reserved -= Bytes(block.size);
  --use_.segments;
  block.state = State::kUnused;
  ++block.serial;
  unused_.push_back(index);
}

// Of a free block in an expandable segment: the pages that lie in it become a hole. A segment that is one hole is given back.
void CachingAllocator::give_back_pages(std::int32_t index) {
  const std::int64_t page = segment_page(at(index).small).value;
  const std::int64_t begin = (at(index).offset + page - 1) / page * page, end = (at(index).offset + at(index).size) / page * page;
  if (begin >= end) return;
  unlist(index);
  std::int32_t hole = index;
  if (begin > at(index).offset) {
    hole = split_off(index, begin - at(index).offset, State::kFree);
    list(index);
    unlist(hole);
  }
  if (end < at(hole).offset + at(hole).size) split_off(hole, end - at(hole).offset, State::kFree);
  at(hole).state = State::kUnmapped;
  use_.reserved -= Bytes(end - begin);
  merge_with_neighbours(hole);
  Block& block = at(hole);
  if (block.previous >= 0 || block.next >= 0) {
    list(hole);
    return;
  }
  block.state = State::kUnused;
  ++block.serial;
  --use_.segments;
  unused_.push_back(hole);
}

// Free blocks that are kept whole: one that is large enough, or the largest ones until they are, of the stream.
bool CachingAllocator::give_back_oversize(Bytes size, std::int32_t stream) {
  const std::int64_t limit = settings_.max_split_size->value;
  const std::int64_t wanted = std::max(size.value, limit);
  const Keys& free = pool(is_small_block(size), stream).free;
  const Keys::Place enough = free.lower_bound(Key{.size = wanted});
  // In expandable segments nothing is kept whole.
  if (settings_.expandable_segments) return false;
  if (!(enough == free.end())) {
    const std::int32_t index = free.at(enough).block;
    const Block& block = at(index);
    if (block.previous >= 0 || block.next >= 0) return false;
    give_back_segment(index);
    return true;
  }
  std::int64_t given = 0;
  while (given < wanted && !free.empty() && free.largest().size >= limit) {
    const Key largest = free.largest();
    const Block& block = at(largest.block);
    if (block.previous >= 0 || block.next >= 0) break;
    given += largest.size;
    give_back_segment(largest.block);
  }
  return given >= wanted;
}

// Cached segments of the large pools that waited longest, until the reserved bytes are at the threshold.
void CachingAllocator::collect_old() {
  const auto threshold = static_cast<std::int64_t>(settings_.collection_threshold * static_cast<double>(limit_->value));
  std::int64_t target = use_.reserved.value - threshold;
  if (target <= 0) return;
  std::vector<std::int32_t> whole;
  double age = 0;
  for (std::size_t i = 1; i < pools_.size(); i += 2) {
    for (const Key& key : pools_[i].free.all()) {
      const Block& block = at(key.block);
      if (block.previous >= 0 || block.next >= 0 || block.expandable) continue;
      whole.push_back(key.block);
      age += large_claims_ - block.freed_at;
    }
  }
  for (bool any = true; any && target > 0 && !whole.empty();) {
    any = false;
    const double least = age / static_cast<double>(whole.size());
    std::vector<std::int32_t> younger;
    for (const std::int32_t index : whole) {
      const std::uint32_t waited = large_claims_ - at(index).freed_at;
      if (target <= 0 || waited < least) {
        younger.push_back(index);
        continue;
      }
      any = true;
      target -= at(index).size;
      age -= waited;
      give_back_segment(index);
    }
    whole = std::move(younger);
  }
}

}  // namespace stepsim
