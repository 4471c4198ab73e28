#include "hardware/backends/cpu/loss.h"

#include <cmath>

#include "hardware/backends/cpu/lanes.h"
#include "hardware/backends/cpu/vector_math.h"

namespace stepsim::cpu {

void run(const LossMaximumCall& call, const StorageAddresses& addresses) {
  const auto* const logits = addresses.of<float>(call.logits);
  auto* const maximum = addresses.of<float>(call.maximum);
  for (std::int64_t row = 0; row < call.rows; ++row) maximum[row] = lane_maximum(logits + row * call.columns, call.columns);
}

void run(const TargetMaskCall& call, const StorageAddresses& addresses) {
  const auto* const labels = addresses.of<std::int64_t>(call.labels);
  auto* const mask = addresses.of<std::uint8_t>(call.mask);
  auto* const target = addresses.of<std::int64_t>(call.target);
  for (std::int64_t row = 0; row < call.rows; ++row) {
    const std::int64_t place = labels[row] - call.share.first;
    const bool elsewhere = place < 0 || place >= call.share.rows;
    mask[row] = elsewhere ? 1 : 0;
    target[row] = elsewhere ? 0 : place;
  }
}

void run(const LossNumeratorCall& call, const StorageAddresses& addresses) {
  const auto* const maximum = addresses.of<float>(call.maximum);
  const auto* const mask = addresses.of<std::uint8_t>(call.mask);
  const auto* const target = addresses.of<std::int64_t>(call.target);
  for (std::int64_t row = 0; row < call.rows; ++row) {
    const float* const logits = addresses.of<float>(call.logits) + row * call.columns;
    float* const softmax = addresses.of<float>(call.softmax) + row * call.columns;  // may be the logits' own memory
    const float largest = maximum[row];
    addresses.of<float>(call.predicted)[row] = mask[row] != 0 ? 0.0F : logits[target[row]] - largest;
    for (std::int64_t i = 0; i < call.columns; ++i) softmax[i] = exp_of(logits[i] - largest);
    const double sum = lane_sum<double>(call.columns, [&](std::int64_t i) { return static_cast<double>(softmax[i]); });
    addresses.of<float>(call.denominator)[row] = static_cast<float>(sum);
  }
}

void run(const LossCall& call, const StorageAddresses& addresses) {
  const auto* const predicted = addresses.of<float>(call.predicted);
  const auto* const denominator = addresses.of<float>(call.denominator);
  for (std::int64_t row = 0; row < call.rows; ++row) {
    addresses.of<float>(call.loss)[row] = std::log(denominator[row]) - predicted[row];
    float* const softmax = addresses.of<float>(call.softmax) + row * call.columns;
    const float share = 1.0F / denominator[row];
    for (std::int64_t i = 0; i < call.columns; ++i) softmax[i] *= share;
  }
}

void run(const LossBackwardCall& call, const StorageAddresses& addresses) {
  const auto* const mask = addresses.of<std::uint8_t>(call.mask);
  const auto* const target = addresses.of<std::int64_t>(call.target);
  for (std::int64_t row = 0; row < call.rows; ++row) {
    const float* __restrict softmax = addresses.of<float>(call.softmax) + row * call.columns;
    float* __restrict gradient = addresses.of<float>(call.gradient) + row * call.columns;
    for (std::int64_t i = 0; i < call.columns; ++i) gradient[i] = call.scale * softmax[i];
    if (mask[row] == 0) gradient[target[row]] -= call.scale;
  }
}

}  // namespace stepsim::cpu
