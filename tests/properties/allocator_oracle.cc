#include "tests/properties/allocator_oracle.h"

#include <algorithm>
#include <tuple>

namespace stepsim {

static std::int64_t up(std::int64_t size, std::int64_t page) { return (size + page - 1) / page * page; }

// Free or unmapped neighbours become one.
void AllocatorOracle::tidy(Segment& segment) {
  std::vector<Block> merged;
  for (const Block& each : segment.blocks) {
    const bool open = each.state == State::kFree || each.state == State::kHole;
    if (open && !merged.empty() && merged.back().state == each.state) {
      merged.back().size += each.size;
    } else {
      merged.push_back(each);
    }
  }
  segment.blocks = merged;
}

std::int64_t AllocatorOracle::reserved() const {
  std::int64_t sum = 0;
  for (const Segment& segment : segments_) {
    for (const Block& each : segment.blocks) sum += each.state == State::kHole ? 0 : each.size;
  }
  return sum;
}

AllocatorUse AllocatorOracle::use() const {
  AllocatorUse sum;
  for (const Segment& segment : segments_) {
    ++sum.segments;
    std::int64_t offset = 0;
    for (const Block& each : segment.blocks) {
      if (each.state == State::kHeld) {
        sum.requested += Bytes(each.requested);
        sum.allocated += Bytes(each.size);
      }
      if (each.state == State::kHeld || each.state == State::kWaiting) sum.active += Bytes(each.size);
      if (each.state == State::kFree && !settings_.expandable_segments && segment.blocks.size() > 1) sum.unusable += Bytes(each.size);
      if (each.state == State::kFree && settings_.expandable_segments) {
        const std::int64_t page = segment_page(segment.small).value;
        const std::int64_t whole = std::max((offset + each.size) / page * page - up(offset, page), std::int64_t{0});
        sum.unusable += Bytes(each.size - whole);
      }
      offset += each.size;
    }
  }
  sum.reserved = Bytes(reserved());
  return sum;
}

// Best fit among all free blocks of the stream and size class.
std::optional<AllocatorOracle::Place> AllocatorOracle::cached(std::int64_t size, std::int32_t stream) {
  std::vector<std::pair<std::int64_t, Place>> candidates;
  for (std::size_t s = 0; s < segments_.size(); ++s) {
    const Segment& segment = segments_[s];
    if (segment.stream != stream || segment.small != is_small_block(Bytes(size))) continue;
    for (std::size_t b = 0; b < segment.blocks.size(); ++b) {
      const Block& each = segment.blocks[b];
      if (each.state == State::kFree && each.size >= size) candidates.push_back({each.size, {s, b}});
    }
  }
  if (candidates.empty()) return std::nullopt;
  std::stable_sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::size_t best = 0;
  if (settings_.expandable_segments) {
    const auto could_be = [&](std::size_t i) {
      const Place& place = candidates[i].second;
      const std::vector<Block>& blocks = segments_[place.segment].blocks;
      const bool hole = place.block + 1 < blocks.size() && blocks[place.block + 1].state == State::kHole;
      return candidates[i].first + (hole ? blocks[place.block + 1].size : 0);
    };
    while (best + 1 < candidates.size() && could_be(best + 1) < could_be(best)) ++best;
  }
  if (!may_serve(settings_, Bytes(candidates[best].first), Bytes(size))) return std::nullopt;
  return candidates[best].second;
}

std::optional<AllocatorOracle::Place> AllocatorOracle::made(std::int64_t size, std::int32_t stream) {
  if (settings_.expandable_segments) return grown(size, stream);
  const std::int64_t segment = segment_size(Bytes(size)).value;
  if (!has_room(segment)) return std::nullopt;
  segments_.push_back({.small = is_small_block(Bytes(size)), .stream = stream, .blocks = {{.size = segment}}});
  return Place{segments_.size() - 1, 0};
}

// Maps what lacks, hole by hole; what was mapped before the limit stays.
std::optional<AllocatorOracle::Place> AllocatorOracle::grown_at(std::size_t s, std::size_t first, std::int64_t size) {
  Segment& segment = segments_[s];
  const std::int64_t page = segment_page(segment.small).value;
  const auto offset_of = [&](std::size_t b) {
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < b; ++i) offset += segment.blocks[i].size;
    return offset;
  };
  const std::int64_t start = offset_of(first);
  for (;;) {
    std::size_t b = 0;
    while (offset_of(b) < start) ++b;
    if (segment.blocks[b].state == State::kFree && segment.blocks[b].size >= size) return Place{s, b};
    const std::int64_t have = segment.blocks[b].state == State::kFree ? segment.blocks[b].size : 0;
    const std::size_t hole = segment.blocks[b].state == State::kFree ? b + 1 : b;
    const std::int64_t mapped = up(std::min(size - have, segment.blocks[hole].size), page);
    if (!has_room(mapped)) return std::nullopt;
    const std::int64_t rest = segment.blocks[hole].size - mapped;
    segment.blocks[hole] = {.size = mapped};
    if (rest > 0)
      segment.blocks.insert(segment.blocks.begin() + static_cast<std::ptrdiff_t>(hole) + 1, {.size = rest, .state = State::kHole});
    tidy(segment);
  }
}

std::optional<AllocatorOracle::Place> AllocatorOracle::grown(std::int64_t size, std::int32_t stream) {
  if (limit_ && size > limit_->value) return std::nullopt;
  const bool small = is_small_block(Bytes(size));
  for (std::size_t s = 0; s < segments_.size(); ++s) {
    const Segment& segment = segments_[s];
    if (segment.stream != stream || segment.small != small) continue;
    for (std::size_t b = 0; b < segment.blocks.size(); ++b) {
      if (segment.blocks[b].state != State::kHole) continue;
      const std::size_t first = b > 0 && segment.blocks[b - 1].state == State::kFree ? b - 1 : b;
      std::int64_t room = 0;
      for (std::size_t i = first; i < segment.blocks.size(); ++i) {
        if (segment.blocks[i].state != State::kFree && segment.blocks[i].state != State::kHole) break;
        room += segment.blocks[i].size;
      }
      if (room >= size) return grown_at(s, first, size);
    }
  }
  const std::int64_t most = limit_ ? limit_->value : std::int64_t{1} << 55;
  const std::int64_t space = up(most + most / 8 + 1, segment_page(small).value);
  segments_.push_back({.small = small, .stream = stream, .blocks = {{.size = space, .state = State::kHole}}});
  return grown_at(segments_.size() - 1, 0, size);
}

void AllocatorOracle::give_back() {
  const auto only = [](const Segment& segment, State state) { return segment.blocks.size() == 1 && segment.blocks[0].state == state; };
  for (Segment& segment : segments_) {
    segment.never_mapped = only(segment, State::kHole);  // address space alone, which is kept
    for (Block& each : segment.blocks) {
      if (each.state == State::kWaiting) each = {.size = each.size};
    }
    tidy(segment);
    if (!settings_.expandable_segments) continue;
    const std::int64_t page = segment_page(segment.small).value;
    std::vector<Block> blocks;
    std::int64_t offset = 0;
    for (const Block& each : segment.blocks) {
      const std::int64_t begin = up(offset, page), end = (offset + each.size) / page * page;
      if (each.state == State::kFree && begin < end) {
        if (begin > offset) blocks.push_back({.size = begin - offset});
        blocks.push_back({.size = end - begin, .state = State::kHole});
        if (end < offset + each.size) blocks.push_back({.size = offset + each.size - end});
      } else {
        blocks.push_back(each);
      }
      offset += each.size;
    }
    segment.blocks = blocks;
    tidy(segment);
  }
  std::erase_if(segments_, [&](const Segment& segment) {
    return only(segment, State::kFree) || (only(segment, State::kHole) && !segment.never_mapped);
  });
}

bool AllocatorOracle::give_back_oversize(std::int64_t size, std::int32_t stream) {
  const std::int64_t limit = settings_.max_split_size->value, wanted = std::max(size, limit);
  const bool small = is_small_block(Bytes(size));
  std::vector<std::tuple<std::int64_t, std::size_t, bool>> free;  // size, segment, whole
  for (std::size_t s = 0; s < segments_.size(); ++s) {
    if (segments_[s].stream != stream || segments_[s].small != small) continue;
    for (const Block& each : segments_[s].blocks) {
      if (each.state == State::kFree) free.emplace_back(each.size, s, segments_[s].blocks.size() == 1);
    }
  }
  std::sort(free.begin(), free.end());
  std::vector<std::size_t> given;
  bool enough = false;
  const auto fits = std::find_if(free.begin(), free.end(), [&](const auto& each) { return std::get<0>(each) >= wanted; });
  if (fits != free.end()) {
    enough = std::get<2>(*fits);
    if (enough) given.push_back(std::get<1>(*fits));
  } else {
    std::int64_t sum = 0;
    for (auto each = free.rbegin(); each != free.rend() && sum < wanted && std::get<0>(*each) >= limit && std::get<2>(*each); ++each) {
      sum += std::get<0>(*each);
      given.push_back(std::get<1>(*each));
    }
    enough = sum >= wanted;
  }
  std::sort(given.rbegin(), given.rend());
  for (const std::size_t s : given) segments_.erase(segments_.begin() + static_cast<std::ptrdiff_t>(s));
  return enough;
}

bool AllocatorOracle::claim(std::int32_t key, Bytes request, std::int32_t stream) {
  const std::int64_t size = block_size(request).value;
  std::optional<Place> place = cached(size, stream);
  if (!place) place = made(size, stream);
  if (!place && settings_.max_split_size && !settings_.expandable_segments && give_back_oversize(size, stream)) place = made(size, stream);
  if (!place) {
    ++retries_;
    give_back();
    place = made(size, stream);
  }
  if (!place) return false;
  const std::int64_t whole = block(*place).size;
  const bool cut = splits(settings_, Bytes(whole), Bytes(size));
  block(*place) = {.size = cut ? size : whole, .requested = request.value, .state = State::kHeld, .key = key};
  std::vector<Block>& blocks = segments_[place->segment].blocks;
  if (cut) blocks.insert(blocks.begin() + static_cast<std::ptrdiff_t>(place->block) + 1, {.size = whole - size});
  return true;
}

AllocatorOracle::Block* AllocatorOracle::find(std::int32_t key) {
  for (Segment& segment : segments_) {
    for (Block& each : segment.blocks) {
      if (each.key == key) return &each;
    }
  }
  return nullptr;
}

void AllocatorOracle::let_go(std::int32_t key) {
  if (Block* const found = find(key)) found->state = State::kWaiting;
}

void AllocatorOracle::release(std::int32_t key) {
  Block* const found = find(key);
  if (found == nullptr) return;
  *found = {.size = found->size};
  for (Segment& segment : segments_) tidy(segment);
}

}  // namespace stepsim
