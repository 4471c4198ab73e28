#include "hardware/backends/cpu/bias.h"

#include "hardware/backends/cpu/column_sums.h"
#include "hardware/backends/cpu/fp32_only.h"

namespace stepsim::cpu {

void run(const BiasCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  const float* __restrict bias = addresses.of<float>(call.bias);
  for (std::int64_t row = 0; row < call.rows; ++row) {
    const float* __restrict input = addresses.of<float>(call.input) + row * call.columns;
    float* __restrict output = addresses.of<float>(call.output) + row * call.columns;
    for (std::int64_t i = 0; i < call.columns; ++i) output[i] = input[i] + bias[i];
  }
}

void run(const BiasGradientCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  check_fp32(call.gradients);
  ColumnSums sums(call.columns);
  for (std::int64_t row = 0; row < call.rows; ++row) {
    const float* __restrict gradient = addresses.of<float>(call.gradient) + row * call.columns;
    sums.add_row([=](std::int64_t i) { return gradient[i]; });
  }
  sums.write(addresses.of<float>(call.bias_gradient), call.accumulate);
}

}  // namespace stepsim::cpu
