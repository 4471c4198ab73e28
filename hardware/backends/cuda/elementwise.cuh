// Sums of tensors and changes of their type, element by element.
#pragma once

#include "hardware/backends/cuda/map.cuh"
#include "hardware/backends/cuda/pack.cuh"
#include "hardware/backends/kernel_calls.h"

namespace stepsim::cuda {

template <class T>
struct AddElements {
  static constexpr int kWidth = kPackWidth<T>;
  const T* input;
  T* sum;
  bool packs_fit() const { return aligned_for<kWidth>(input, sum); }
  template <int width>
  __device__ void apply(std::int64_t first) const {
    store_gradient(sum + first, load<width>(input + first), true);
  }
};

template <class From, class To>
struct ConvertElements {
  static constexpr int kWidth = kPackWidth<From, To>;
  const From* input;
  To* output;
  bool packs_fit() const { return aligned_for<kWidth>(input, output); }
  template <int width>
  __device__ void apply(std::int64_t first) const {
    store(output + first, load<width>(input + first));
  }
};

inline void run(const AddCall& call, const StorageAddresses& addresses, Stream stream) {
  with_type(call.elements, [&]<class T>(T) {
    for_elements(AddElements<T>{addresses.of<T>(call.input), addresses.of<T>(call.sum)}, call.count, stream);
  });
}

inline void run(const WidenCall& call, const StorageAddresses& addresses, Stream stream) {
  with_type(call.elements, [&]<class T>(T) {
    for_elements(ConvertElements<T, float>{addresses.of<T>(call.input), addresses.of<float>(call.output)}, call.count, stream);
  });
}

inline void run(const NarrowCall& call, const StorageAddresses& addresses, Stream stream) {
  with_type(call.elements, [&]<class T>(T) {
    for_elements(ConvertElements<float, T>{addresses.of<float>(call.input), addresses.of<T>(call.output)}, call.count, stream);
  });
}

}  // namespace stepsim::cuda
