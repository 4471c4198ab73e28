#include "hardware/backends/cpu/heads.h"

#include <algorithm>

#include "hardware/backends/cpu/fp32_only.h"

namespace stepsim::cpu {

namespace {

// Where head `head` of a token begins in a row of `row` elements.
struct TokenRows {
  float* first = nullptr;
  std::int64_t row = 0;
};

// Head-major [batch, heads, sequence, head_dim] into columns of token-major rows.
void spread_heads(const float* input, const HeadShape& shape, std::int64_t heads, const TokenRows& rows) {
  for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t token = 0; token < shape.sequence; ++token) {
        const float* const from = input + ((batch * heads + head) * shape.sequence + token) * shape.head_dim;
        std::copy(from, from + shape.head_dim, rows.first + (batch * shape.sequence + token) * rows.row + head * shape.head_dim);
      }
    }
  }
}

void repeat(const float* input, const HeadShape& shape, float* output) {
  const std::int64_t group = shape.heads / shape.kv_heads;
  for (std::int64_t token = 0; token < shape.batch * shape.sequence; ++token) {
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      const float* const from = input + (token * shape.kv_heads + head / group) * shape.head_dim;
      std::copy(from, from + shape.head_dim, output + (token * shape.heads + head) * shape.head_dim);
    }
  }
}

void sum_groups(const float* input, const HeadShape& shape, float* output) {
  const std::int64_t group = shape.heads / shape.kv_heads, plane = shape.sequence * shape.head_dim;
  for (std::int64_t head = 0; head < shape.batch * shape.kv_heads; ++head) {
    float* __restrict sum = output + head * plane;
    std::copy(input + head * group * plane, input + (head * group + 1) * plane, sum);
    for (std::int64_t other = 1; other < group; ++other) {
      const float* __restrict each = input + (head * group + other) * plane;
      for (std::int64_t i = 0; i < plane; ++i) sum[i] += each[i];
    }
  }
}

}  // namespace

void run(const HeadsToTokensCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  spread_heads(addresses.of<float>(call.input), call.shape, call.shape.heads,
               {addresses.of<float>(call.output), call.shape.heads * call.shape.head_dim});
}

void run(const JoinHeadsCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  const HeadShape& shape = call.shape;
  const std::int64_t row = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  float* const joint = addresses.of<float>(call.joint);
  float* const keys = joint + shape.heads * shape.head_dim;
  spread_heads(addresses.of<float>(call.query), shape, shape.heads, {joint, row});
  spread_heads(addresses.of<float>(call.key), shape, shape.kv_heads, {keys, row});
  spread_heads(addresses.of<float>(call.value), shape, shape.kv_heads, {keys + shape.kv_heads * shape.head_dim, row});
}

void run(const RepeatHeadsCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  repeat(addresses.of<float>(call.key), call.shape, addresses.of<float>(call.repeated_key));
  repeat(addresses.of<float>(call.value), call.shape, addresses.of<float>(call.repeated_value));
}

void run(const RepeatHeadsBackwardCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  sum_groups(addresses.of<float>(call.key), call.shape, addresses.of<float>(call.summed_key));
  sum_groups(addresses.of<float>(call.value), call.shape, addresses.of<float>(call.summed_value));
}

}  // namespace stepsim::cpu
