#include "hardware/backends/cpu/norm.h"

#include <cmath>

#include "hardware/backends/cpu/column_sums.h"
#include "hardware/backends/cpu/fp32_only.h"
#include "hardware/backends/cpu/lanes.h"

namespace stepsim::cpu {

namespace {

struct RowStatistics {
  float mean = 0, scale = 0;  // scale: reciprocal standard deviation, or root mean square
};

RowStatistics statistics_of(const float* input, std::int64_t columns, bool centred, float epsilon) {
  const auto count = static_cast<double>(columns);
  const double mean = centred ? lane_sum<double>(columns, [&](std::int64_t i) { return static_cast<double>(input[i]); }) / count : 0.0;
  const double squares = lane_sum<double>(columns, [&](std::int64_t i) {
    const double apart = static_cast<double>(input[i]) - mean;
    return apart * apart;
  });
  return {static_cast<float>(mean), static_cast<float>(1 / std::sqrt(squares / count + static_cast<double>(epsilon)))};
}

RowStatistics saved_statistics(const float* statistics, std::int64_t rows, std::int64_t row, bool centred) {
  return centred ? RowStatistics{statistics[row], statistics[rows + row]} : RowStatistics{0, statistics[row]};
}

}  // namespace

void run(const NormCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  const auto* const gain = addresses.of<float>(call.gain);
  const auto* const bias = call.bias ? addresses.of<float>(*call.bias) : nullptr;
  auto* const statistics = addresses.of<float>(call.statistics);
  for (std::int64_t row = 0; row < call.rows; ++row) {
    const float* __restrict input = addresses.of<float>(call.input) + row * call.columns;
    float* __restrict output = addresses.of<float>(call.output) + row * call.columns;
    const RowStatistics of_row = statistics_of(input, call.columns, call.centred, call.epsilon);
    if (call.centred) statistics[row] = of_row.mean;
    statistics[call.centred ? call.rows + row : row] = of_row.scale;
    for (std::int64_t i = 0; i < call.columns; ++i) output[i] = (input[i] - of_row.mean) * of_row.scale * gain[i];
    if (bias == nullptr) continue;
    for (std::int64_t i = 0; i < call.columns; ++i) output[i] += bias[i];
  }
}

// With y = (x - m) r and d = gradient * gain: r (d - mean(d) - y mean(d y)); without the second term where the mean is not taken off.
void run(const NormBackwardCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  const auto* const gain = addresses.of<float>(call.gain);
  const auto* const statistics = addresses.of<float>(call.statistics);
  const auto count = static_cast<double>(call.columns);
  for (std::int64_t row = 0; row < call.rows; ++row) {
    const float* __restrict input = addresses.of<float>(call.input) + row * call.columns;
    const float* __restrict gradient = addresses.of<float>(call.output_gradient) + row * call.columns;
    float* __restrict output = addresses.of<float>(call.input_gradient) + row * call.columns;
    const RowStatistics saved = saved_statistics(statistics, call.rows, row, call.centred);
    const double sum =
        call.centred ? lane_sum<double>(call.columns, [&](std::int64_t i) { return static_cast<double>(gradient[i] * gain[i]); }) : 0.0;
    const double weighted = lane_sum<double>(call.columns, [&](std::int64_t i) {
      return static_cast<double>(gradient[i] * gain[i]) * static_cast<double>((input[i] - saved.mean) * saved.scale);
    });
    const auto mean = static_cast<float>(sum / count), along = static_cast<float>(weighted / count);
    for (std::int64_t i = 0; i < call.columns; ++i) {
      const float y = (input[i] - saved.mean) * saved.scale;
      output[i] = saved.scale * (gradient[i] * gain[i] - mean - y * along);
    }
  }
}

void run(const NormWeightGradientCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  check_fp32(call.gradients);
  const auto* const statistics = addresses.of<float>(call.statistics);
  ColumnSums gains(call.columns), biases(call.bias_gradient ? call.columns : 0);
  for (std::int64_t row = 0; row < call.rows; ++row) {
    const float* __restrict input = addresses.of<float>(call.input) + row * call.columns;
    const float* __restrict gradient = addresses.of<float>(call.output_gradient) + row * call.columns;
    const RowStatistics saved = saved_statistics(statistics, call.rows, row, call.centred);
    const float mean = saved.mean, scale = saved.scale;
    gains.add_row([=](std::int64_t i) { return gradient[i] * ((input[i] - mean) * scale); });
    biases.add_row([=](std::int64_t i) { return gradient[i]; });
  }
  gains.write(addresses.of<float>(call.gain_gradient), call.accumulate);
  if (call.bias_gradient) biases.write(addresses.of<float>(*call.bias_gradient), call.accumulate);
}

}  // namespace stepsim::cpu
