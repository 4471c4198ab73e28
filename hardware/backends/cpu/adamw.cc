#include "hardware/backends/cpu/adamw.h"

#include <cmath>

#include "hardware/backends/cpu/fp32_only.h"

namespace stepsim::cpu {

void run(const AdamWCall& call, const StorageAddresses& addresses, const AdamWSettings& settings, std::int64_t step) {
  check_fp32(call.elements);
  check_fp32(call.gradients);
  STEPSIM_CHECK(!call.master.has_value());  // the weight is its own
  STEPSIM_CHECK(step >= 1);
  const float* __restrict gradient = addresses.of<float>(call.gradient);
  float* __restrict weight = addresses.of<float>(call.weight);
  float* __restrict first = addresses.of<float>(call.moments);
  float* __restrict second = first + call.count;
  const auto correction = [&](float beta) {
    return static_cast<float>(1 / (1 - std::pow(static_cast<double>(beta), static_cast<double>(step))));
  };
  const float of_first = correction(settings.beta1), of_second = correction(settings.beta2);
  const AdamWSettings set = settings;  // a copy, which no store of the loop can change
  for (std::int64_t i = 0; i < call.count; ++i) {
    const float each = gradient[i];
    first[i] = set.beta1 * first[i] + (1 - set.beta1) * each;
    second[i] = set.beta2 * second[i] + (1 - set.beta2) * (each * each);
    const float direction = first[i] * of_first / (std::sqrt(second[i] * of_second) + set.epsilon);
    weight[i] -= set.learning_rate * (direction + set.weight_decay * weight[i]);
  }
}

}  // namespace stepsim::cpu
