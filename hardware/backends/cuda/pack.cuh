// Neighbouring elements that a thread loads and stores at once, as fp32 values: 16 bytes where the addresses allow, else one element.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hardware/backends/cuda/bf16.h"
#include "sim/op_work.h"

namespace stepsim::cuda {

constexpr std::size_t kLoadBytes = 16;  // the widest load of a thread (CUDA C++ Programming Guide, "Device Memory Accesses")

// Elements of a pack where operands of these types are used together: 16 bytes of the smallest. Larger ones take several loads.
template <class... T>
inline constexpr int kPackWidth = static_cast<int>(kLoadBytes / std::min({sizeof(T)...}));

template <class T, int width>
struct alignas(width * sizeof(T) < kLoadBytes ? width * sizeof(T) : kLoadBytes) Pack {
  T elements[width];
};

template <int width>
struct Values {
  float of[width];
  __device__ float& operator[](int i) { return of[i]; }
  __device__ float operator[](int i) const { return of[i]; }
};

template <int width, class T>
__device__ Values<width> load(const T* from) {
  const auto pack = *reinterpret_cast<const Pack<T, width>*>(from);
  Values<width> values;
  for (int i = 0; i < width; ++i) values[i] = widened(pack.elements[i]);
  return values;
}

// In some loops nvcc 13.0 makes a store of each element of an assigned pack; __stwb is one of 16 bytes.
template <int width, class T>
__device__ void store_pack(T* to, const Pack<T, width>& pack) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(pack) % kLoadBytes == 0) {
    uint4 words[sizeof(pack) / kLoadBytes];
    std::memcpy(words, &pack, sizeof(pack));
    for (std::size_t i = 0; i < sizeof(pack) / kLoadBytes; ++i) __stwb(reinterpret_cast<uint4*>(to) + i, words[i]);
  } else {
    *reinterpret_cast<Pack<T, width>*>(to) = pack;
  }
#else
  *reinterpret_cast<Pack<T, width>*>(to) = pack;
#endif
}

template <int width, class T>
__device__ void store(T* to, const Values<width>& values) {
  Pack<T, width> pack;
  for (int i = 0; i < width; ++i) pack.elements[i] = rounded<T>(values[i]);
  store_pack(to, pack);
}

template <int width, class T>
__device__ void copy(T* to, const T* from) {
  *reinterpret_cast<Pack<T, width>*>(to) = *reinterpret_cast<const Pack<T, width>*>(from);
}

template <int width>
__device__ Values<width> zeros() {
  Values<width> values;
  for (int i = 0; i < width; ++i) values[i] = 0;
  return values;
}

// Stores values, or adds them to what is there.
template <int width, class T>
__device__ void store_gradient(T* to, Values<width> values, bool accumulate) {
  if (accumulate) {
    const Values<width> before = load<width>(to);
    for (int i = 0; i < width; ++i) values[i] += before[i];
  }
  store(to, values);
}

// Whether packs of `width` may be loaded from all of the addresses; null: not used.
template <int width, class... T>
bool aligned_for(const T*... address) {
  return ((reinterpret_cast<std::uintptr_t>(address) % alignof(Pack<T, width>) == 0) && ...);
}

// Calls run(T{}) with the type of elements that the dtype names. STEPSIM_CHECK: fp32 or bf16.
template <class Run>
void with_type(DType type, const Run& run) {
  STEPSIM_CHECK(type == DType::kFp32 || type == DType::kBf16);
  if (type == DType::kFp32) {
    run(float{});
  } else {
    run(Bf16{});
  }
}

}  // namespace stepsim::cuda
