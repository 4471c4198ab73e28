// The fair rule for shared resources, in exact integers: who progresses how fast when several ops load the same resources.
// A pure function of numbers; knows no op and no time. ARCHITECTURE.md, "Resources", says the rule, why, and its known price.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace stepsim {

inline constexpr std::uint64_t kFullSpeed = std::uint64_t{1} << 48;  // x = 1

struct Share {                  // one load of one op
  std::int32_t resource = 0;
  std::uint32_t fraction = 0;   // u in 2^-30
  std::uint16_t peers = 1, weight = 1;
};

struct Sharer {
  std::span<const Share> loads;  // each resource at most once
};

// x_i of each sharer in units of 2^-48, at least 1. Independent of the order of the sharers and of sharers they share nothing with.
std::vector<std::uint64_t> progress_rates(std::span<const Sharer> sharers, std::int32_t resources);

}  // namespace stepsim
