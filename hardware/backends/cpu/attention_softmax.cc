#include "hardware/backends/cpu/attention_softmax.h"

#include <algorithm>

#include "hardware/backends/cpu/fp32_only.h"
#include "hardware/backends/cpu/lanes.h"
#include "hardware/backends/cpu/vector_math.h"

namespace stepsim::cpu {

namespace {

// Keys that the query of this row sees: the first ones.
std::int64_t seen_keys(bool causal, std::int64_t row, std::int64_t queries, std::int64_t keys) {
  return causal ? std::min(row % queries + 1, keys) : keys;
}

}  // namespace

void run(const AttentionSoftmaxCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  STEPSIM_CHECK(call.scale > 0);  // the largest score stays the largest
  for (std::int64_t row = 0; row < call.matrices * call.queries; ++row) {
    const float* __restrict scores = addresses.of<float>(call.scores) + row * call.keys;
    float* __restrict output = addresses.of<float>(call.output) + row * call.keys;
    const std::int64_t seen = seen_keys(call.causal, row, call.queries, call.keys);
    const float largest = lane_maximum(scores, seen);
    for (std::int64_t i = 0; i < seen; ++i) output[i] = exp_of((scores[i] - largest) * call.scale);
    const float share = 1.0F / lane_sum<float>(seen, [&](std::int64_t i) { return output[i]; });
    for (std::int64_t i = 0; i < seen; ++i) output[i] *= share;
    std::fill(output + seen, output + call.keys, 0.0F);
  }
}

void run(const AttentionSoftmaxBackwardCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  for (std::int64_t row = 0; row < call.matrices * call.queries; ++row) {
    const float* __restrict softmax = addresses.of<float>(call.softmax) + row * call.keys;
    const float* __restrict gradient = addresses.of<float>(call.gradient) + row * call.keys;
    float* __restrict output = addresses.of<float>(call.scores_gradient) + row * call.keys;
    const std::int64_t seen = seen_keys(call.causal, row, call.queries, call.keys);
    const float mean = lane_sum<float>(seen, [&](std::int64_t i) { return softmax[i] * gradient[i]; });
    for (std::int64_t i = 0; i < seen; ++i) output[i] = call.scale * (softmax[i] * (gradient[i] - mean));
    std::fill(output + seen, output + call.keys, 0.0F);
  }
}

}  // namespace stepsim::cpu
