// A caching allocator of one device's memory: segments of the driver, cut into blocks, reused on the stream that they were claimed on.
// Knows no graph and no time: claims and releases come in the order of the host.
//
// Invariants:
//  1. The blocks of a segment are linked in the order of their addresses and cover it; no two neighbours are both free and mapped, or both
//     unmapped.
//  2. A block is in exactly one state; free blocks are in the list of their pool and stream, unmapped ones in its list of holes.
//  3. use().requested <= allocated <= active <= reserved, but for what roundings make of a request.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/allocator_rules.h"

namespace stepsim {

// What an allocator holds at one instant.
struct AllocatorUse {
  Bytes requested{};          // by those who hold blocks
  Bytes allocated{};          // blocks that are held
  Bytes active{};             // and blocks let go that other streams still use
  Bytes reserved{};           // of the driver
  Bytes unusable{};           // free, in segments (or pages) of which a part is active: cached, and not to be given back
  std::int64_t segments = 0;  // of the driver; expandable ones count once each
  Bytes cached() const { return reserved - active; }
};

class CachingAllocator {
 public:
  // `limit`: of reserved bytes; none: the driver always has more.
  explicit CachingAllocator(const AllocatorSettings& settings, std::optional<Bytes> limit = {});

  // Stale once its block was released.
  struct Claim {
    std::int32_t block = -1;
    std::uint32_t serial = 0;
  };

  // None: no room within the limit, after cached segments were given back and everything let go was waited for. `stream` >= 0.
  std::optional<Claim> claim(Bytes request, std::int32_t stream);
  // The program has let go; other streams still use it. Once; not of a stale claim.
  void let_go(const Claim& claim);
  // Back to its pool. A stale claim: nothing happens (a retry had waited for it).
  void release(const Claim& claim);

  void set_limit(std::optional<Bytes> limit) { limit_ = limit; }
  const AllocatorUse& use() const { return use_; }
  // How often cached segments had to be given back before a claim could be served or refused: each waits for the device.
  std::int64_t retries() const { return retries_; }

  // Whether the invariants hold; looks at every block.
  bool is_consistent() const;

 private:
  enum class State : std::uint8_t { kUnused, kFree, kUnmapped, kHeld, kWaiting };
  struct Block {
    std::int64_t offset = 0, size = 0, requested = 0;
    std::int32_t segment = -1, previous = -1, next = -1;
    std::int32_t stream = 0;
    std::uint32_t serial = 0;
    std::uint32_t freed_at = 0;  // claims of its pool until it became free
    State state = State::kUnused;
    bool small = false, expandable = false;
  };
  struct Key {  // best fit: the smallest, then the lowest address; segments get ascending addresses
    std::int64_t size = 0;
    std::int32_t segment = 0;
    std::int64_t offset = 0;
    std::int32_t block = 0;
    friend bool operator<(const Key& a, const Key& b) {
      if (a.size != b.size) return a.size < b.size;
      return a.segment != b.segment ? a.segment < b.segment : a.offset < b.offset;
    }
  };
  // Sorted, in chunks: most pools have one, and moving a part of it costs less than the nodes of a tree; steps of 10^5 layers have many.
  class Keys {
   public:
    struct Place {
      std::size_t chunk = 0, index = 0;
      friend bool operator==(const Place&, const Place&) = default;
    };
    void insert(const Key& key);
    void erase(const Key& key) { erase_at(place_of(key)); }
    void erase_at(const Place& place);
    void replace_at(const Place& place, const Key& by);
    Place place_of(const Key& key) const;  // of one that is there
    Place lower_bound(const Key& key) const;
    Place next(const Place& place) const;
    Place end() const { return {chunks_.size(), 0}; }
    const Key& at(const Place& place) const { return chunks_[place.chunk][place.index]; }
    bool empty() const { return size_ == 0; }
    std::size_t size() const { return size_; }
    const Key& largest() const { return chunks_.back().back(); }
    std::vector<Key> all() const;

   private:
    static constexpr std::size_t kMost = 512;
    std::size_t chunk_of(const Key& key) const;  // the first whose last key is not before it

    std::vector<std::vector<Key>> chunks_;  // none is empty
    std::size_t size_ = 0;
  };
  struct Pool {  // of one stream and size class
    Keys free;
    Keys holes;  // unmapped, by address: size is 0
  };

  Pool& pool_of(const Block& block) { return pool(block.small, block.stream); }
  Pool& pool(bool small, std::int32_t stream);
  Block& at(std::int32_t index) { return blocks_[static_cast<std::size_t>(index)]; }
  const Block& at(std::int32_t index) const { return blocks_[static_cast<std::size_t>(index)]; }
  static Key key_of(const Block& block, std::int32_t index);
  static Key hole_of(const Block& block, std::int32_t index);

  std::int32_t cached_block(Bytes size, std::int32_t stream);
  std::int32_t new_segment(Bytes size, std::int32_t stream);
  std::int32_t grown_block(Bytes size, std::int32_t stream);
  std::int32_t growth_place(Bytes size, std::int32_t stream);
  std::int32_t map(std::int32_t hole, std::int64_t size);
  std::int32_t retried(Bytes size, std::int32_t stream);
  Claim hold(std::int32_t index, Bytes request);

  std::int32_t added_block(const Block& block);
  std::int32_t cut(std::int32_t index, std::int64_t size, State rest);
  std::int32_t split_off(std::int32_t index, std::int64_t size, State rest);
  void list(std::int32_t index);
  void unlist(std::int32_t index);
  void merge_with_neighbours(std::int32_t index);
  bool merges(std::int32_t index, std::int32_t neighbour) const;
  void absorb(std::int32_t index, std::int32_t neighbour);
  void join(std::int32_t index, std::int32_t neighbour);
  void return_to_pool(std::int32_t index);
  std::int64_t unusable_of(const Block& block) const;
  bool has_room(std::int64_t size) const;

  void give_back_cached();
  void give_back_pool(Pool& pool);
  void give_back_segment(std::int32_t index);
  void give_back_pages(std::int32_t index);
  bool give_back_oversize(Bytes size, std::int32_t stream);
  void collect_old();
  void finish_waiting();

  AllocatorSettings settings_;
  std::optional<Bytes> limit_;
  AllocatorUse use_;
  std::int64_t retries_ = 0;
  std::vector<Block> blocks_;
  std::vector<std::int32_t> unused_;   // slots of blocks_
  std::vector<Pool> pools_;            // by stream, small then large
  std::vector<std::int32_t> waiting_;  // let go, in order; may name blocks that are not any more
  std::int32_t segments_made_ = 0;
  std::uint32_t large_claims_ = 0;
};

}  // namespace stepsim
