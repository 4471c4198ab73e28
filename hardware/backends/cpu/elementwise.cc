#include "hardware/backends/cpu/elementwise.h"

#include <cmath>

#include "hardware/backends/cpu/fp32_only.h"
#include "hardware/backends/cpu/vector_math.h"

namespace stepsim::cpu {

namespace {

constexpr float kRootHalf = 0.70710678118654752F;      // 1 / sqrt(2)
constexpr float kGaussDensity = 0.39894228040143268F;  // 1 / sqrt(2 pi)

struct Gelu {
  float value, slope;
};

[[gnu::always_inline]] inline Gelu gelu_of(float x) {
  const float scaled = x * kRootHalf, gauss = exp_of(-(scaled * scaled));  // e^(-x^2 / 2)
  const float tail = 0.5F * erf_complement_of(std::fabs(scaled), gauss),
              share = x < 0 ? tail : 1.0F - tail;  // of a normal distribution below x
  return {x * share, share + x * (kGaussDensity * gauss)};
}

[[gnu::always_inline]] inline float sigmoid_of(float x) {
  const float decay = exp_of(-std::fabs(x));
  return (x < 0 ? decay : 1.0F) / (1.0F + decay);
}

}  // namespace

void run(const AddCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  const float* __restrict input = addresses.of<float>(call.input);
  float* __restrict sum = addresses.of<float>(call.sum);
  for (std::int64_t i = 0; i < call.count; ++i) sum[i] += input[i];
}

void run(const ActivationCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  const float* __restrict input = addresses.of<float>(call.input);
  float* __restrict output = addresses.of<float>(call.output);
  if (call.kind == ActivationKind::kGelu) {
    for (std::int64_t i = 0; i < call.count; ++i) output[i] = gelu_of(input[i]).value;
  } else {
    for (std::int64_t i = 0; i < call.count; ++i) output[i] = input[i] * sigmoid_of(input[i]);
  }
}

void run(const ActivationBackwardCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  const float* __restrict input = addresses.of<float>(call.input);
  const float* __restrict gradient = addresses.of<float>(call.output_gradient);
  float* __restrict output = addresses.of<float>(call.input_gradient);
  if (call.kind == ActivationKind::kGelu) {
    for (std::int64_t i = 0; i < call.count; ++i) output[i] = gradient[i] * gelu_of(input[i]).slope;
  } else {
    for (std::int64_t i = 0; i < call.count; ++i) {
      const float share = sigmoid_of(input[i]);
      output[i] = gradient[i] * (share * (1.0F + input[i] * (1.0F - share)));
    }
  }
}

void run(const GateProductCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  const float* __restrict gate = addresses.of<float>(call.gate), * __restrict up = addresses.of<float>(call.up);
  float* __restrict output = addresses.of<float>(call.output);
  for (std::int64_t i = 0; i < call.count; ++i) output[i] = gate[i] * up[i];
}

void run(const GateProductBackwardCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  const float* __restrict gradient = addresses.of<float>(call.output_gradient);
  const float* __restrict gate = addresses.of<float>(call.gate), * __restrict up = addresses.of<float>(call.up);
  float* __restrict of_gate = addresses.of<float>(call.gate_gradient), * __restrict of_up = addresses.of<float>(call.up_gradient);
  for (std::int64_t i = 0; i < call.count; ++i) {
    of_gate[i] = gradient[i] * up[i];
    of_up[i] = gradient[i] * gate[i];
  }
}

}  // namespace stepsim::cpu
