// The fair rule for shared resources, in exact integers: who progresses how fast when several ops load the same resources.
// A pure function of numbers; knows no op and no time. ARCHITECTURE.md, "Resources", says the rule, why, and its known price.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace stepsim {

__extension__ typedef unsigned __int128 Uint128;

inline constexpr std::uint64_t kFullSpeed = std::uint64_t{1} << 48;  // x = 1

struct Share {  // one load of one op
  std::int32_t resource = 0;
  std::uint32_t fraction = 0;  // u in 2^-30
  std::uint16_t peers = 1, weight = 1;
};

struct Sharer {
  std::span<const Share> loads;  // each resource at most once
  std::uint32_t row = kNoRow;    // names the loads: sharers of one row have the same; none: they are looked at
  static constexpr std::uint32_t kNoRow = 0xffffffff;
};

// x_i of each sharer in units of 2^-48, at least 1. Independent of the order of the sharers and of sharers they share nothing with.
std::vector<std::uint64_t> progress_rates(std::span<const Sharer> sharers, std::int32_t resources);

// The same rule for many calls: keeps its tables, allocates nothing once they have grown; and remembers the answers to few sharers with
// rows, since the ops of a step meet in the same ways again and again.
//
// The level t is a multiple of 2^-48. An op with d = u / w rises as t / d; it uses peers * u * t / d of a resource, its slope there, which
// is kept in units of 2^-60 and rounded up. A resource with the capacity C left by the ops that have stopped is full at
// t = floor(C / sum of slopes), so the loads never exceed the capacity.
class RateFilling {
 public:
  explicit RateFilling(std::int32_t resources);
  // One rate a sharer, as progress_rates(); valid until the next call.
  std::span<const std::uint64_t> rates(std::span<const Sharer> sharers);

 private:
  struct Level {                // of one resource during a call
    std::uint64_t demand = 0;   // sum of peers * u, in 2^-30
    Uint128 left = 0;           // capacity less what stopped ops use, in 2^-78
    Uint128 slope = 0;          // of the rising ops, in 2^-60
    std::uint64_t full_at = 0;  // t in 2^-48
    std::int32_t rising = 0;    // ops
  };
  struct Rising {
    std::uint32_t sharer = 0;
    std::uint32_t fraction = 0, weight = 1;  // d = fraction / weight, the largest over contended resources
    std::uint64_t full_speed_at = 0;         // least t with x = 1
    std::uint32_t first_term = 0;            // of terms_
  };
  struct Term {  // one contended load of a rising op
    std::int32_t resource = 0;
    std::uint64_t use = 0;  // peers * u, in 2^-30
    Uint128 slope = 0;
  };

  static constexpr std::size_t kMostRemembered = 4;  // sharers
  struct Answer {
    std::array<std::uint32_t, kMostRemembered> rows{};  // Sharer::kNoRow behind the last
    std::array<std::uint64_t, kMostRemembered> rates{};
  };

  Answer* remembered(std::span<const Sharer> sharers);
  void fill(std::span<const Sharer> sharers);
  void add_demand(std::span<const Sharer> sharers);
  void add_rising(std::uint32_t sharer, std::span<const Share> loads);
  std::uint64_t next_level();
  void stop(const Rising& op, std::uint64_t rate);
  bool stop_at_full_speed(std::uint64_t level);
  void stop_at_full_resources(std::uint64_t level);
  std::span<const Term> terms(const Rising& op) const;

  std::vector<Level> levels_;
  std::vector<std::int32_t> touched_;
  std::vector<Rising> rising_;
  std::vector<Term> terms_;
  std::vector<std::uint64_t> rates_;
  std::vector<Answer> answers_;  // by a hash of the rows; empty before the first
};

}  // namespace stepsim
