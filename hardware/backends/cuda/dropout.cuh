// Dropout and the random numbers of it: Philox4x32-10 (Salmon et al., SC'11), numbered by element, so that no state is kept and any thread
// can draw any element's.
#pragma once

#include <cstdint>

#include "hardware/backends/cuda/map.cuh"
#include "hardware/backends/cuda/pack.cuh"
#include "hardware/backends/kernel_calls.h"

namespace stepsim::cuda {

struct PhiloxWords {
  std::uint32_t of[4];
};

// Constants: Random123, philox.h (PHILOX_M4x32, PHILOX_W32).
__device__ inline PhiloxWords philox(PhiloxWords counter, std::uint32_t key_low, std::uint32_t key_high) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * counter.of[0], product1 = std::uint64_t{0xCD9E8D57U} * counter.of[2];
    const auto low0 = static_cast<std::uint32_t>(product0), high0 = static_cast<std::uint32_t>(product0 >> 32);
    const auto low1 = static_cast<std::uint32_t>(product1), high1 = static_cast<std::uint32_t>(product1 >> 32);
    counter = PhiloxWords{{high1 ^ counter.of[1] ^ key_low, low1, high0 ^ counter.of[3] ^ key_high, low0}};
    key_low += 0x9E3779B9U;
    key_high += 0xBB67AE85U;
  }
  return counter;
}

// The four words of elements 4 * group to 4 * group + 3 of a draw.
__device__ inline PhiloxWords drawn_words(const Draw& draw, std::uint64_t group) {
  const PhiloxWords counter{{static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(group >> 32),
                             static_cast<std::uint32_t>(draw.offset), static_cast<std::uint32_t>(draw.offset >> 32)}};
  return philox(counter, static_cast<std::uint32_t>(draw.seed), static_cast<std::uint32_t>(draw.seed >> 32));
}

// 1 for each element from `first` on that is kept, else 0. width: 1, or a multiple of 4 that divides `first`.
template <int width>
__device__ Values<width> kept(const Draw& draw, std::int64_t first) {
  Values<width> result;
  const auto group = static_cast<std::uint64_t>(first) / 4;
  const auto is_kept = [&](std::uint32_t word) {
    return static_cast<float>(word >> 8) * 0x1p-24F >= draw.probability ? 1.0F : 0.0F;  // 24 bits: exact in fp32
  };
  if constexpr (width == 1) {
    result[0] = is_kept(drawn_words(draw, group).of[first % 4]);
  } else {
    static_assert(width % 4 == 0);
    for (int i = 0; i < width / 4; ++i) {
      const PhiloxWords words = drawn_words(draw, group + static_cast<std::uint64_t>(i));
      for (int j = 0; j < 4; ++j) result[4 * i + j] = is_kept(words.of[j]);
    }
  }
  return result;
}

// Masks: a byte an element.
template <int width>
__device__ void store_mask(std::uint8_t* to, const Values<width>& kept) {
  Pack<std::uint8_t, width> pack;
  for (int i = 0; i < width; ++i) pack.elements[i] = kept[i] != 0 ? 1 : 0;
  *reinterpret_cast<Pack<std::uint8_t, width>*>(to) = pack;
}
template <int width>
__device__ Values<width> load_mask(const std::uint8_t* from) {
  const auto pack = *reinterpret_cast<const Pack<std::uint8_t, width>*>(from);
  Values<width> kept;
  for (int i = 0; i < width; ++i) kept[i] = pack.elements[i] != 0 ? 1.0F : 0.0F;
  return kept;
}

// What is kept is scaled by this; all dropped (probability 1): nothing is left to scale.
inline float kept_scale(float probability) { return probability < 1 ? 1 / (1 - probability) : 0; }

template <class T>
struct Dropout {
  static constexpr int kWidth = kPackWidth<T>;
  const T* input;
  T* output;
  std::uint8_t* mask;
  Draw draw;
  float scale;
  bool packs_fit() const { return aligned_for<kWidth>(input, output) && aligned_for<kWidth>(mask); }
  template <int width>
  __device__ void apply(std::int64_t first) const {
    Values<width> values = load<width>(input + first);
    const Values<width> keep = kept<width>(draw, first);
    for (int i = 0; i < width; ++i) values[i] *= keep[i] * scale;
    store(output + first, values);
    store_mask(mask + first, keep);
  }
};

template <class T>
struct DropoutBackward {
  static constexpr int kWidth = kPackWidth<T>;
  const T* gradient;
  const std::uint8_t* mask;
  T* output;
  float scale;
  bool packs_fit() const { return aligned_for<kWidth>(gradient, output) && aligned_for<kWidth>(mask); }
  template <int width>
  __device__ void apply(std::int64_t first) const {
    Values<width> values = load<width>(gradient + first);
    const Values<width> keep = load_mask<width>(mask + first);
    for (int i = 0; i < width; ++i) values[i] *= keep[i] * scale;
    store(output + first, values);
  }
};

inline void run(const DropoutCall& call, const StorageAddresses& addresses, Stream stream) {
  with_type(call.elements, [&]<class T>(T) {
    const Dropout<T> op{.input = addresses.of<T>(call.input),
                        .output = addresses.of<T>(call.output),
                        .mask = addresses.of<std::uint8_t>(call.mask),
                        .draw = call.draw,
                        .scale = kept_scale(call.draw.probability)};
    for_elements(op, call.count, stream);
  });
}

inline void run(const DropoutBackwardCall& call, const StorageAddresses& addresses, Stream stream) {
  with_type(call.elements, [&]<class T>(T) {
    const DropoutBackward<T> op{.gradient = addresses.of<T>(call.gradient),
                                .mask = addresses.of<std::uint8_t>(call.mask),
                                .output = addresses.of<T>(call.output),
                                .scale = kept_scale(call.probability)};
    for_elements(op, call.count, stream);
  });
}

}  // namespace stepsim::cuda
