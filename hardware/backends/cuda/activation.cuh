// Activation functions of an MLP and the product of a gated one.
#pragma once

#include <cmath>

#include "hardware/backends/cuda/map.cuh"
#include "hardware/backends/cuda/pack.cuh"
#include "hardware/backends/kernel_calls.h"

namespace stepsim::cuda {

__device__ inline float activation(ActivationKind kind, float x) {
  if (kind == ActivationKind::kSilu) return x / (1 + expf(-x));
  return 0.5F * x * (1 + erff(x * 0.70710678F));  // sqrt(1/2)
}

__device__ inline float activation_slope(ActivationKind kind, float x) {
  if (kind == ActivationKind::kSilu) {
    const float sigmoid = 1 / (1 + expf(-x));
    return sigmoid * (1 + x * (1 - sigmoid));
  }
  const float density = 0.39894228F * expf(-0.5F * x * x);  // of the normal distribution: 1 / sqrt(2 pi)
  return 0.5F * (1 + erff(x * 0.70710678F)) + x * density;
}

template <class T>
struct Activation {
  static constexpr int kWidth = kPackWidth<T>;
  const T* input;
  T* output;
  ActivationKind kind;
  bool packs_fit() const { return aligned_for<kWidth>(input, output); }
  template <int width>
  __device__ void apply(std::int64_t first) const {
    Values<width> values = load<width>(input + first);
    for (int i = 0; i < width; ++i) values[i] = activation(kind, values[i]);
    store(output + first, values);
  }
};

template <class T>
struct ActivationBackward {
  static constexpr int kWidth = kPackWidth<T>;
  const T *input, *output_gradient;
  T* input_gradient;
  ActivationKind kind;
  bool packs_fit() const { return aligned_for<kWidth>(input, output_gradient, input_gradient); }
  template <int width>
  __device__ void apply(std::int64_t first) const {
    const Values<width> x = load<width>(input + first);
    Values<width> gradient = load<width>(output_gradient + first);
    for (int i = 0; i < width; ++i) gradient[i] *= activation_slope(kind, x[i]);
    store(input_gradient + first, gradient);
  }
};

template <class T>
struct GateProduct {
  static constexpr int kWidth = kPackWidth<T>;
  const T *gate, *up;
  T* output;
  bool packs_fit() const { return aligned_for<kWidth>(gate, up, output); }
  template <int width>
  __device__ void apply(std::int64_t first) const {
    const Values<width> factor = load<width>(gate + first);
    Values<width> values = load<width>(up + first);
    for (int i = 0; i < width; ++i) values[i] *= factor[i];
    store(output + first, values);
  }
};

template <class T>
struct GateProductBackward {
  static constexpr int kWidth = kPackWidth<T>;
  const T *output_gradient, *gate, *up;
  T *gate_gradient, *up_gradient;
  bool packs_fit() const { return aligned_for<kWidth>(output_gradient, gate, up, gate_gradient, up_gradient); }
  template <int width>
  __device__ void apply(std::int64_t first) const {
    const Values<width> gradient = load<width>(output_gradient + first);
    Values<width> of_up = load<width>(gate + first), of_gate = load<width>(up + first);
    for (int i = 0; i < width; ++i) {
      of_gate[i] *= gradient[i];
      of_up[i] *= gradient[i];
    }
    store(gate_gradient + first, of_gate);
    store(up_gradient + first, of_up);
  }
};

inline void run(const ActivationCall& call, const StorageAddresses& addresses, Stream stream) {
  with_type(call.elements, [&]<class T>(T) {
    for_elements(Activation<T>{addresses.of<T>(call.input), addresses.of<T>(call.output), call.kind}, call.count, stream);
  });
}

inline void run(const ActivationBackwardCall& call, const StorageAddresses& addresses, Stream stream) {
  with_type(call.elements, [&]<class T>(T) {
    const ActivationBackward<T> op{.input = addresses.of<T>(call.input),
                                   .output_gradient = addresses.of<T>(call.output_gradient),
                                   .input_gradient = addresses.of<T>(call.input_gradient),
                                   .kind = call.kind};
    for_elements(op, call.count, stream);
  });
}

inline void run(const GateProductCall& call, const StorageAddresses& addresses, Stream stream) {
  with_type(call.elements, [&]<class T>(T) {
    for_elements(GateProduct<T>{addresses.of<T>(call.gate), addresses.of<T>(call.up), addresses.of<T>(call.output)}, call.count, stream);
  });
}

inline void run(const GateProductBackwardCall& call, const StorageAddresses& addresses, Stream stream) {
  with_type(call.elements, [&]<class T>(T) {
    const GateProductBackward<T> op{.output_gradient = addresses.of<T>(call.output_gradient),
                                    .gate = addresses.of<T>(call.gate),
                                    .up = addresses.of<T>(call.up),
                                    .gate_gradient = addresses.of<T>(call.gate_gradient),
                                    .up_gradient = addresses.of<T>(call.up_gradient)};
    for_elements(op, call.count, stream);
  });
}

}  // namespace stepsim::cuda
