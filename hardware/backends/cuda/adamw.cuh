// The optimizer's update of one parameter tensor: all of its state in one pass.
#pragma once

#include <cmath>

#include "hardware/backends/cuda/map.cuh"
#include "hardware/backends/cuda/pack.cuh"
#include "hardware/backends/kernel_calls.h"

namespace stepsim::cuda {

template <class T, class Gradient>
struct AdamW {
  static constexpr int kWidth = kPackWidth<T, Gradient, float>;
  const Gradient* gradient;
  T* weight;
  float *first, *second, *master;  // master may be null: the weight itself is updated
  AdamWSettings settings;
  float first_correction, second_correction;  // 1 - beta^step
  bool packs_fit() const {
    return aligned_for<kWidth>(gradient) && aligned_for<kWidth>(weight) && aligned_for<kWidth>(first, second, master);
  }
  template <int width>
  __device__ void apply(std::int64_t at) const {
    const Values<width> g = load<width>(gradient + at);
    Values<width> m = load<width>(first + at), v = load<width>(second + at);
    Values<width> w = master != nullptr ? load<width>(master + at) : load<width>(weight + at);
    for (int i = 0; i < width; ++i) {
      m[i] = settings.beta1 * m[i] + (1 - settings.beta1) * g[i];
      v[i] = settings.beta2 * v[i] + (1 - settings.beta2) * g[i] * g[i];
      const float step = (m[i] / first_correction) / (sqrtf(v[i] / second_correction) + settings.epsilon);
      w[i] -= settings.learning_rate * (settings.weight_decay * w[i] + step);
    }
    store(first + at, m);
    store(second + at, v);
    if (master != nullptr) store(master + at, w);
    store(weight + at, w);
  }
};

// `step` counts from 1.
inline void run(const AdamWCall& call, const StorageAddresses& addresses, const AdamWSettings& settings, std::int64_t step, Stream stream) {
  STEPSIM_CHECK(step >= 1);
  const auto correction = [&](float beta) { return static_cast<float>(1 - std::pow(double{beta}, static_cast<double>(step))); };
  auto* const first = addresses.of<float>(call.moments);
  with_type(call.elements, [&]<class T>(T) {
    with_type(call.gradients, [&]<class Gradient>(Gradient) {
      const AdamW<T, Gradient> op{.gradient = addresses.of<Gradient>(call.gradient),
                                  .weight = addresses.of<T>(call.weight),
                                  .first = first,
                                  .second = first + call.count,
                                  .master = call.master ? addresses.of<float>(*call.master) : nullptr,
                                  .settings = settings,
                                  .first_correction = correction(settings.beta1),
                                  .second_correction = correction(settings.beta2)};
      for_elements(op, call.count, stream);
    });
  });
}

}  // namespace stepsim::cuda
