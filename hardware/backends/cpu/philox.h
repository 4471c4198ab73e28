// Philox4x32-10, a generator whose numbers are a function of key and counter (Salmon et al., Parallel random numbers: as easy as 1, 2, 3,
// SC'11).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "hardware/backends/kernel_calls.h"

namespace stepsim::cpu {

using PhiloxWords = std::array<std::uint32_t, 4>;

// Plain variables, always inlined: a loop over blocks becomes vector instructions, which it does not with arrays.
[[gnu::always_inline]] inline PhiloxWords philox(PhiloxWords counter, std::array<std::uint32_t, 2> key) {
  std::uint32_t a = counter[0], b = counter[1], c = counter[2], d = counter[3], key_a = key[0], key_b = key[1];
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = std::uint64_t{0xD2511F53U} * a, second = std::uint64_t{0xCD9E8D57U} * c;
    a = static_cast<std::uint32_t>(second >> 32) ^ b ^ key_a;
    b = static_cast<std::uint32_t>(second);
    c = static_cast<std::uint32_t>(first >> 32) ^ d ^ key_b;
    d = static_cast<std::uint32_t>(first);
    key_a += 0x9E3779B9U;
    key_b += 0xBB67AE85U;
  }
  return {a, b, c, d};
}

// The numbers of elements 4 block to 4 block + 3 of a draw.
[[gnu::always_inline]] inline PhiloxWords drawn_words(const Draw& draw, std::int64_t block) {
  const auto place = static_cast<std::uint64_t>(block);
  return philox({static_cast<std::uint32_t>(place), static_cast<std::uint32_t>(place >> 32), static_cast<std::uint32_t>(draw.offset),
                 static_cast<std::uint32_t>(draw.offset >> 32)},
                {static_cast<std::uint32_t>(draw.seed), static_cast<std::uint32_t>(draw.seed >> 32)});
}

// The least word >> 8 that is kept: words >> 8 are whole, so that u >= probability where they reach it.
inline std::uint32_t kept_from(float probability) {
  const float scaled = probability * 0x1p24F;  // exact
  const auto whole = static_cast<std::uint32_t>(scaled);
  return static_cast<float>(whole) < scaled ? whole + 1 : whole;
}

// mask[i] = 1 where element i is kept, for all of `count`.
inline void fill_mask(const Draw& draw, std::int64_t count, std::uint8_t* mask) {
  const std::uint32_t least = kept_from(draw.probability);
  const Draw of = draw;  // a copy, which no store of the loop can change
  static_assert(std::endian::native == std::endian::little);
  std::array<std::uint32_t, 16> kept;  // of as many blocks, four bytes of the mask each
  const std::int64_t drawn = 4 * static_cast<std::int64_t>(kept.size());
  for (std::int64_t first = 0; first < count; first += drawn) {
    for (std::size_t block = 0; block < kept.size(); ++block) {
      const PhiloxWords words = drawn_words(of, first / 4 + static_cast<std::int64_t>(block));
      kept[block] = ((words[0] >> 8) >= least ? 1U : 0U) | ((words[1] >> 8) >= least ? 0x100U : 0U) |
                    ((words[2] >> 8) >= least ? 0x10000U : 0U) | ((words[3] >> 8) >= least ? 0x1000000U : 0U);
    }
    std::memcpy(mask + first, kept.data(), static_cast<std::size_t>(std::min(drawn, count - first)));
  }
}

// What kept elements are scaled by; all are dropped at probability 1.
inline float kept_scale(float probability) { return probability < 1 ? 1 / (1 - probability) : 0; }

// The value where it is kept, else 0, chosen by its bits: g++ makes branches, not vector instructions, of a condition.
inline float kept_value(float value, std::uint8_t kept) {
  const std::uint32_t bits = kept != 0 ? 0xFFFFFFFFU : 0U;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & bits);
}

}  // namespace stepsim::cpu
