#include "hardware/backends/cpu/embedding.h"

#include <algorithm>

#include "hardware/backends/cpu/fp32_only.h"

namespace stepsim::cpu {

namespace {

bool holds(const TableShare& share, std::int64_t token) { return token >= share.first && token < share.first + share.rows; }

void add_row(const float* __restrict row, std::int64_t columns, float* __restrict sum) {
  for (std::int64_t i = 0; i < columns; ++i) sum[i] += row[i];
}

}  // namespace

void run(const EmbeddingCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  const auto* const tokens = addresses.of<std::int64_t>(call.tokens);
  const auto* const table = addresses.of<float>(call.table);
  auto* const output = addresses.of<float>(call.output);
  for (std::int64_t i = 0; i < call.count; ++i) {
    float* const row = output + i * call.hidden;
    if (!holds(call.share, tokens[i])) {
      std::fill(row, row + call.hidden, 0.0F);
      continue;
    }
    const float* const from = table + (tokens[i] - call.share.first) * call.hidden;
    std::copy(from, from + call.hidden, row);
  }
}

void run(const EmbeddingGradientCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  check_fp32(call.gradients);
  const auto* const tokens = addresses.of<std::int64_t>(call.tokens);
  const auto* const gradient = addresses.of<float>(call.gradient);
  auto* const table = addresses.of<float>(call.table_gradient);
  if (!call.accumulate) std::fill(table, table + call.share.rows * call.hidden, 0.0F);
  for (std::int64_t i = 0; i < call.count; ++i) {
    if (!holds(call.share, tokens[i])) continue;
    add_row(gradient + i * call.hidden, call.hidden, table + (tokens[i] - call.share.first) * call.hidden);
  }
}

void run(const PositionCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  const auto* const table = addresses.of<float>(call.table);
  const std::int64_t positions = call.sequence * call.hidden;
  for (std::int64_t batch = 0; batch < call.batch; ++batch) {
    const float* __restrict input = addresses.of<float>(call.input) + batch * positions;
    float* __restrict output = addresses.of<float>(call.output) + batch * positions;
    for (std::int64_t i = 0; i < positions; ++i) output[i] = input[i] + table[i];
  }
}

void run(const PositionGradientCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  check_fp32(call.gradients);
  auto* const table = addresses.of<float>(call.table_gradient);
  if (!call.accumulate) std::fill(table, table + call.table_rows * call.hidden, 0.0F);
  const std::int64_t positions = call.sequence * call.hidden;
  for (std::int64_t batch = 0; batch < call.batch; ++batch) {
    add_row(addresses.of<float>(call.gradient) + batch * positions, positions, table);
  }
}

}  // namespace stepsim::cpu
