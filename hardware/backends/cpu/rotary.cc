#include "hardware/backends/cpu/rotary.h"

#include <algorithm>
#include <cmath>

#include "hardware/backends/cpu/fp32_only.h"

namespace stepsim::cpu {

namespace {

// A pair (u, v) of a head is turned by the angle, or back.
void turn(const float* __restrict from, const float* cosines, const float* sines, std::int64_t pairs, float direction,
          float* __restrict to) {
  for (std::int64_t i = 0; i < pairs; ++i) {
    const float u = from[i], v = from[pairs + i], sine = direction * sines[i];
    to[i] = u * cosines[i] - v * sine;
    to[pairs + i] = v * cosines[i] + u * sine;
  }
}

}  // namespace

RotaryTable::RotaryTable(std::int64_t sequence, std::int64_t head_dim, double base) : pairs_(head_dim / 2) {
  STEPSIM_CHECK(head_dim % 2 == 0);
  for (std::int64_t position = 0; position < sequence; ++position) {
    for (std::int64_t pair = 0; pair < pairs_; ++pair) {
      const double angle = static_cast<double>(position) * std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(head_dim));
      cosines_.push_back(static_cast<float>(std::cos(angle)));
      sines_.push_back(static_cast<float>(std::sin(angle)));
    }
  }
}

void run(const RotaryCall& call, const StorageAddresses& addresses, const RotaryTable& table) {
  check_fp32(call.elements);
  const HeadShape& shape = call.shape;
  const std::int64_t dim = shape.head_dim, row = (shape.heads + 2 * shape.kv_heads) * dim;
  for (std::int64_t token = 0; token < shape.batch * shape.sequence; ++token) {
    const float* const joint = addresses.of<float>(call.joint) + token * row;
    const float *const cosines = table.cosines(token % shape.sequence), *const sines = table.sines(token % shape.sequence);
    float* const query = addresses.of<float>(call.query) + token * shape.heads * dim;
    float* const key = addresses.of<float>(call.key) + token * shape.kv_heads * dim;
    for (std::int64_t head = 0; head < shape.heads; ++head) turn(joint + head * dim, cosines, sines, dim / 2, 1, query + head * dim);
    const float* const keys = joint + shape.heads * dim;
    for (std::int64_t head = 0; head < shape.kv_heads; ++head) turn(keys + head * dim, cosines, sines, dim / 2, 1, key + head * dim);
    const float* const values = keys + shape.kv_heads * dim;
    std::copy(values, values + shape.kv_heads * dim, addresses.of<float>(call.value) + token * shape.kv_heads * dim);
  }
}

void run(const RotaryBackwardCall& call, const StorageAddresses& addresses, const RotaryTable& table) {
  check_fp32(call.elements);
  const HeadShape& shape = call.shape;
  const std::int64_t dim = shape.head_dim, row = (shape.heads + 2 * shape.kv_heads) * dim;
  for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
    for (std::int64_t token = 0; token < shape.sequence; ++token) {
      float* const joint = addresses.of<float>(call.joint) + (batch * shape.sequence + token) * row;
      // Of a head-major tensor of `heads` heads.
      const auto place = [&](std::int64_t heads, std::int64_t head) { return ((batch * heads + head) * shape.sequence + token) * dim; };
      const float *const cosines = table.cosines(token), *const sines = table.sines(token);
      for (std::int64_t head = 0; head < shape.heads; ++head) {
        turn(addresses.of<float>(call.query) + place(shape.heads, head), cosines, sines, dim / 2, -1, joint + head * dim);
      }
      float* const keys = joint + shape.heads * dim;
      for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
        turn(addresses.of<float>(call.key) + place(shape.kv_heads, head), cosines, sines, dim / 2, -1, keys + head * dim);
        const float* const value = addresses.of<float>(call.value) + place(shape.kv_heads, head);
        std::copy(value, value + dim, keys + (shape.kv_heads + head) * dim);
      }
    }
  }
}

}  // namespace stepsim::cpu
