// Memory of one space, counted to the byte: what is claimed now, and the most so far. Blocks are kept by size for the next claim of that
// size, so that a step that is run again meets memory that the system has mapped already. Not for several threads: its user locks.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "sim/units.h"

namespace stepsim::cpu {

class CountedArena {
 public:
  // A pattern in memory that is not claimed, and in what is claimed anew.
  void set_poison(bool poison) { poison_ = poison; }
  void set_capacity(std::optional<Bytes> capacity) { capacity_ = capacity; }

  // Aligned to 64 bytes. Null if the claim would exceed the capacity; a claim of no bytes is not null.
  std::byte* claim(Bytes size);
  void release(std::byte* block, Bytes size);  // a block of claim(size)

  Bytes in_use() const { return in_use_; }
  Bytes peak() const { return peak_; }
  Bytes available() const;  // up to the capacity, which there must be
  void restart_peak() { peak_ = in_use_; }
  void trim() { free_.clear(); }  // gives unclaimed blocks back to the system

 private:
  struct Freed {
    void operator()(std::byte* block) const;
  };
  using Block = std::unique_ptr<std::byte, Freed>;
  std::map<std::int64_t, std::vector<Block>> free_;
  std::optional<Bytes> capacity_{};
  Bytes in_use_{}, peak_{};
  bool poison_ = false;
};

}  // namespace stepsim::cpu
