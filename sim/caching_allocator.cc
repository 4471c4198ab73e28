#include "sim/caching_allocator.h"

#include <algorithm>

#include "sim/check.h"

namespace stepsim {

static std::int64_t whole_pages(std::int64_t size, std::int64_t page) { return (size + page - 1) / page * page; }

// Address space of an expandable segment without a limit: no more than that is ever asked for.
constexpr std::int64_t kLargestSpace = std::int64_t{1} << 56;

CachingAllocator::CachingAllocator(const AllocatorSettings& settings, std::optional<Bytes> limit) : settings_(settings), limit_(limit) {}

CachingAllocator::Pool& CachingAllocator::pool(bool small, std::int32_t stream) {
  STEPSIM_CHECK(stream >= 0);
  const std::size_t index = 2 * static_cast<std::size_t>(stream) + (small ? 0 : 1);
  if (pools_.size() <= index) pools_.resize(index + 1);
  return pools_[index];
}

std::size_t CachingAllocator::Keys::chunk_of(const Key& key) const {
  const auto chunk =
      std::partition_point(chunks_.begin(), chunks_.end(), [&key](const std::vector<Key>& each) { return each.back() < key; });
  return static_cast<std::size_t>(chunk - chunks_.begin());
}

CachingAllocator::Keys::Place CachingAllocator::Keys::lower_bound(const Key& key) const {
  const std::size_t chunk = chunk_of(key);
  if (chunk == chunks_.size()) return end();
  const std::vector<Key>& keys = chunks_[chunk];
  return {chunk, static_cast<std::size_t>(std::lower_bound(keys.begin(), keys.end(), key) - keys.begin())};
}

CachingAllocator::Keys::Place CachingAllocator::Keys::next(const Place& place) const {
  return place.index + 1 < chunks_[place.chunk].size() ? Place{place.chunk, place.index + 1} : Place{place.chunk + 1, 0};
}

CachingAllocator::Keys::Place CachingAllocator::Keys::place_of(const Key& key) const {
  const Place place = lower_bound(key);
  STEPSIM_CHECK(!(place == end()));
  STEPSIM_CHECK(at(place).block == key.block);
  return place;
}

void CachingAllocator::Keys::insert(const Key& key) {
  ++size_;
  if (chunks_.empty()) {
    chunks_.push_back({key});
    return;
  }
  const std::size_t chunk = std::min(chunk_of(key), chunks_.size() - 1);
  std::vector<Key>& keys = chunks_[chunk];
  keys.insert(std::lower_bound(keys.begin(), keys.end(), key), key);
  if (keys.size() <= kMost) return;
  const auto middle = keys.begin() + static_cast<std::ptrdiff_t>(keys.size() / 2);
  std::vector<Key> behind(middle, keys.end());
  keys.erase(middle, keys.end());
  chunks_.insert(chunks_.begin() + static_cast<std::ptrdiff_t>(chunk) + 1, std::move(behind));
}

void CachingAllocator::Keys::erase_at(const Place& place) {
  --size_;
  std::vector<Key>& keys = chunks_[place.chunk];
  keys.erase(keys.begin() + static_cast<std::ptrdiff_t>(place.index));
  if (keys.empty()) chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(place.chunk));
}

// Within its chunk only what lies between the two places moves.
void CachingAllocator::Keys::replace_at(const Place& place, const Key& by) {
  std::vector<Key>& keys = chunks_[place.chunk];
  const auto old = keys.begin() + static_cast<std::ptrdiff_t>(place.index);
  if (by < keys.front() || keys.back() < by) {
    erase_at(place);
    insert(by);
  } else if (by < *old) {
    const auto target = std::lower_bound(keys.begin(), old, by);
    std::move_backward(target, old, old + 1);
    *target = by;
  } else {
    const auto target = std::lower_bound(old + 1, keys.end(), by);
    std::move(old + 1, target, old);
    *(target - 1) = by;
  }
}

std::vector<CachingAllocator::Key> CachingAllocator::Keys::all() const {
  std::vector<Key> keys;
  for (const std::vector<Key>& chunk : chunks_) keys.insert(keys.end(), chunk.begin(), chunk.end());
  return keys;
}

CachingAllocator::Key CachingAllocator::key_of(const Block& block, std::int32_t index) {
  return {block.size, block.segment, block.offset, index};
}

CachingAllocator::Key CachingAllocator::hole_of(const Block& block, std::int32_t index) { return {0, block.segment, block.offset, index}; }

std::optional<CachingAllocator::Claim> CachingAllocator::claim(Bytes request, std::int32_t stream) {
  const Bytes size = block_size(request);
  std::int32_t index = cached_block(size, stream);
  if (index >= 0) return hold(index, request);
  if (settings_.collection_threshold > 0 && limit_) collect_old();
  index = new_segment(size, stream);
  if (index < 0) index = retried(size, stream);
  if (index < 0) return std::nullopt;
  if (splits(settings_, Bytes(at(index).size), size)) split_off(index, size.value, State::kFree);
  return hold(index, request);
}

std::int32_t CachingAllocator::retried(Bytes size, std::int32_t stream) {
  if (settings_.max_split_size && give_back_oversize(size, stream)) {
    const std::int32_t index = new_segment(size, stream);
    if (index >= 0) return index;
  }
  ++retries_;
  give_back_cached();
  return new_segment(size, stream);
}

// The smallest block of the stream that is large enough, out of its list and cut to the size; -1: none. Of expandable segments the one that
// could grow least: its free end counts with the hole behind it.
std::int32_t CachingAllocator::cached_block(Bytes size, std::int32_t stream) {
  const bool small = is_small_block(size);
  if (!small) ++large_claims_;
  Keys& free = pool(small, stream).free;
  Keys::Place best = free.lower_bound(Key{.size = size.value});
  if (best == free.end()) return -1;
  if (settings_.expandable_segments) {
    const auto could_be = [this](std::int32_t index) {
      const std::int32_t next = at(index).next;
      return at(index).size + (next >= 0 && at(next).state == State::kUnmapped ? at(next).size : 0);
    };
    for (Keys::Place next = free.next(best); !(next == free.end()); next = free.next(next)) {
      if (could_be(free.at(next).block) >= could_be(free.at(best).block)) break;
      best = next;
    }
  }
  const std::int32_t index = free.at(best).block;
  if (!may_serve(settings_, Bytes(at(index).size), size)) return -1;
  use_.unusable -= Bytes(unusable_of(at(index)));
  if (!splits(settings_, Bytes(at(index).size), size)) {
    free.erase_at(best);
    return index;
  }
  const std::int32_t rest = cut(index, size.value, State::kFree);
  at(rest).freed_at = large_claims_;
  use_.unusable += Bytes(unusable_of(at(rest)));
  free.replace_at(best, key_of(at(rest), rest));
  return index;
}

bool CachingAllocator::has_room(std::int64_t size) const { return !limit_ || size <= limit_->value - use_.reserved.value; }

// A free block of the driver, in no list.
std::int32_t CachingAllocator::new_segment(Bytes size, std::int32_t stream) {
  if (settings_.expandable_segments) return grown_block(size, stream);
  const std::int64_t asked = segment_size(size).value;
  if (!has_room(asked)) return -1;
  use_.reserved += Bytes(asked);
  ++use_.segments;
  return added_block({.size = asked, .segment = segments_made_++, .stream = stream, .state = State::kFree, .small = is_small_block(size)});
}

// An expandable segment's free block of the size at least, in no list, after holes behind it were mapped.
std::int32_t CachingAllocator::grown_block(Bytes size, std::int32_t stream) {
  if (limit_ && size > *limit_) return -1;
  std::int32_t index = growth_place(size, stream);
  if (at(index).state == State::kUnmapped) index = map(index, std::min(at(index).size, size.value));
  while (index >= 0 && at(index).size < size.value) {
    const std::int32_t hole = at(index).next;
    index = map(hole, std::min(size.value - at(index).size, at(hole).size));
  }
  if (index >= 0) unlist(index);
  return index;
}

// The lowest run of free and unmapped blocks that is long enough and has a hole; where there is none, a new segment, all of it a hole.
std::int32_t CachingAllocator::growth_place(Bytes size, std::int32_t stream) {
  const bool small = is_small_block(size);
  const auto usable = [this](std::int32_t index) {
    return index >= 0 && (at(index).state == State::kFree || at(index).state == State::kUnmapped);
  };
  for (const Key& hole : pool(small, stream).holes.all()) {
    const std::int32_t before = at(hole.block).previous;
    const std::int32_t first = usable(before) ? before : hole.block;
    std::int64_t room = 0;
    for (std::int32_t each = first; room < size.value && usable(each); each = at(each).next) room += at(each).size;
    if (room >= size.value) return first;
  }
  // 1 1/8 of the device's memory: room for pages that were unmapped in front (reserveVirtualMemory).
  const std::int64_t most = limit_ ? std::min(limit_->value, kLargestSpace / 2) : kLargestSpace / 2;
  const std::int64_t space = whole_pages(most + most / 8 + 1, segment_page(small).value);
  const std::int32_t index = added_block(
      {.size = space, .segment = segments_made_++, .stream = stream, .state = State::kUnmapped, .small = small, .expandable = true});
  ++use_.segments;
  list(index);
  return index;
}

// The first pages of a hole, `size` at least, become a free block, merged with its neighbours and listed. -1: no room.
std::int32_t CachingAllocator::map(std::int32_t hole, std::int64_t size) {
  STEPSIM_CHECK(at(hole).state == State::kUnmapped);
  const std::int64_t mapped = whole_pages(size, segment_page(at(hole).small).value);
  if (!has_room(mapped)) return -1;
  unlist(hole);
  at(hole).state = State::kFree;
  if (mapped < at(hole).size) split_off(hole, mapped, State::kUnmapped);
  use_.reserved += Bytes(mapped);
  merge_with_neighbours(hole);
  list(hole);
  return hole;
}

// A block that is in no list.
CachingAllocator::Claim CachingAllocator::hold(std::int32_t index, Bytes request) {
  Block& block = at(index);
  block.state = State::kHeld;
  block.requested = std::min(request.value, kLargestRequest);
  use_.requested += Bytes(block.requested);
  use_.allocated += Bytes(block.size);
  use_.active += Bytes(block.size);
  return {index, block.serial};
}

void CachingAllocator::let_go(const Claim& claim) {
  Block& block = at(claim.block);
  STEPSIM_CHECK(block.serial == claim.serial);
  STEPSIM_CHECK(block.state == State::kHeld);
  block.state = State::kWaiting;
  use_.requested -= Bytes(block.requested);
  use_.allocated -= Bytes(block.size);
  waiting_.push_back(claim.block);
}

void CachingAllocator::release(const Claim& claim) {
  if (at(claim.block).serial != claim.serial) return;
  if (at(claim.block).state == State::kHeld) {
    use_.requested -= Bytes(at(claim.block).requested);
    use_.allocated -= Bytes(at(claim.block).size);
  }
  return_to_pool(claim.block);
}

void CachingAllocator::return_to_pool(std::int32_t index) {
  Block& block = at(index);
  STEPSIM_CHECK(block.state == State::kHeld || block.state == State::kWaiting);
  use_.active -= Bytes(block.size);
  block.state = State::kFree;
  ++block.serial;
  const std::int32_t before = block.previous, behind = block.next;
  if (merges(index, before) && merges(index, behind)) absorb(index, behind);
  const std::int32_t other = merges(index, before) ? before : merges(index, behind) ? behind : -1;
  if (other < 0) return list(index);
  // Its place in the list is the merged block's, but for what lies between the two sizes.
  Keys& free = pool_of(block).free;
  const Keys::Place place = free.place_of(key_of(at(other), other));
  use_.unusable -= Bytes(unusable_of(at(other)));
  join(index, other);
  block.freed_at = large_claims_;
  use_.unusable += Bytes(unusable_of(block));
  free.replace_at(place, key_of(block, index));
}

std::int32_t CachingAllocator::added_block(const Block& block) {
  if (unused_.empty()) {
    blocks_.push_back(block);
    return static_cast<std::int32_t>(blocks_.size()) - 1;
  }
  const std::int32_t index = unused_.back();
  unused_.pop_back();
  const std::uint32_t serial = at(index).serial;
  at(index) = block;
  at(index).serial = serial;  // claims of what was here stay stale
  return index;
}

// The block keeps its first `size` bytes; the rest is a block of its own behind it, in no list.
std::int32_t CachingAllocator::cut(std::int32_t index, std::int64_t size, State rest) {
  Block behind = at(index);
  behind.offset += size;
  behind.size -= size;
  behind.previous = index;
  behind.state = rest;
  behind.serial = 0;
  const std::int32_t added = added_block(behind);
  if (behind.next >= 0) at(behind.next).previous = added;
  at(index).next = added;
  at(index).size = size;
  return added;
}

// The same, the rest listed.
std::int32_t CachingAllocator::split_off(std::int32_t index, std::int64_t size, State rest) {
  const std::int32_t added = cut(index, size, rest);
  list(added);
  return added;
}

void CachingAllocator::list(std::int32_t index) {
  Block& block = at(index);
  if (block.state == State::kUnmapped) {
    pool_of(block).holes.insert(hole_of(block, index));
    return;
  }
  STEPSIM_CHECK(block.state == State::kFree);
  block.freed_at = large_claims_;
  pool_of(block).free.insert(key_of(block, index));
  use_.unusable += Bytes(unusable_of(block));
}

void CachingAllocator::unlist(std::int32_t index) {
  const Block& block = at(index);
  if (block.state == State::kUnmapped) {
    pool_of(block).holes.erase(hole_of(block, index));
    return;
  }
  pool_of(block).free.erase(key_of(block, index));
  use_.unusable -= Bytes(unusable_of(block));
}

// Of a free block: what the driver cannot have back while its neighbours are held.
std::int64_t CachingAllocator::unusable_of(const Block& block) const {
  if (!block.expandable) return block.previous >= 0 || block.next >= 0 ? block.size : 0;
  const std::int64_t page = segment_page(block.small).value;
  const std::int64_t begin = whole_pages(block.offset, page), end = (block.offset + block.size) / page * page;
  return block.size - std::max(end - begin, std::int64_t{0});
}

bool CachingAllocator::merges(std::int32_t index, std::int32_t neighbour) const {
  return neighbour >= 0 && at(neighbour).state == at(index).state;
}

// Of a free or unmapped block that is in no list.
void CachingAllocator::merge_with_neighbours(std::int32_t index) {
  if (merges(index, at(index).previous)) absorb(index, at(index).previous);
  if (merges(index, at(index).next)) absorb(index, at(index).next);
}

void CachingAllocator::absorb(std::int32_t index, std::int32_t neighbour) {
  unlist(neighbour);
  join(index, neighbour);
}

// Of blocks that are in no list, or about to leave it.
void CachingAllocator::join(std::int32_t index, std::int32_t neighbour) {
  Block& block = at(index);
  Block& other = at(neighbour);
  block.size += other.size;
  if (block.previous == neighbour) {
    block.offset = other.offset;
    block.previous = other.previous;
    if (other.previous >= 0) at(other.previous).next = index;
  } else {
    block.next = other.next;
    if (other.next >= 0) at(other.next).previous = index;
  }
  other.state = State::kUnused;
  ++other.serial;
  unused_.push_back(neighbour);
}

bool CachingAllocator::is_consistent() const {
  AllocatorUse sum;
  std::size_t listed = 0, list_entries = 0;
  for (const Block& block : blocks_) {
    if (block.state == State::kUnused) continue;
    const auto index = static_cast<std::int32_t>(&block - blocks_.data());
    const bool held = block.state == State::kHeld, free = block.state == State::kFree, hole = block.state == State::kUnmapped;
    if (block.size <= 0) return false;
    if (held) sum.allocated += Bytes(block.size);
    if (held) sum.requested += Bytes(block.requested);
    if (held || block.state == State::kWaiting) sum.active += Bytes(block.size);
    if (!hole) sum.reserved += Bytes(block.size);
    if (free) sum.unusable += Bytes(unusable_of(block));
    listed += free || hole ? 1 : 0;
    if (block.next < 0) continue;
    const Block& next = at(block.next);
    if (next.previous != index || next.offset != block.offset + block.size) return false;
    if ((free || hole) && next.state == block.state) return false;
  }
  for (const Pool& pool : pools_) list_entries += pool.free.size() + pool.holes.size();
  const bool sums = sum.allocated == use_.allocated && sum.requested == use_.requested && sum.active == use_.active;
  return sums && sum.reserved == use_.reserved && sum.unusable == use_.unusable && listed == list_entries;
}

}  // namespace stepsim
