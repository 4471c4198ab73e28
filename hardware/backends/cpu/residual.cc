#include "hardware/backends/cpu/residual.h"

#include "hardware/backends/cpu/column_sums.h"
#include "hardware/backends/cpu/fp32_only.h"
#include "hardware/backends/cpu/philox.h"

namespace stepsim::cpu {

namespace {

struct ResidualRow {
  const float *branch, *residual, *bias;  // bias, mask: null if there is none
  const std::uint8_t* mask;
  float scale;
};

void add_residual(const ResidualRow& row, std::int64_t columns, float* __restrict output) {
  if (row.mask == nullptr && row.bias == nullptr) {
    for (std::int64_t i = 0; i < columns; ++i) output[i] = row.residual[i] + row.branch[i];
  } else if (row.mask == nullptr) {
    for (std::int64_t i = 0; i < columns; ++i) output[i] = row.residual[i] + (row.branch[i] + row.bias[i]);
  } else if (row.bias == nullptr) {
    for (std::int64_t i = 0; i < columns; ++i) output[i] = row.residual[i] + kept_value(row.branch[i] * row.scale, row.mask[i]);
  } else {
    for (std::int64_t i = 0; i < columns; ++i) {
      output[i] = row.residual[i] + kept_value((row.branch[i] + row.bias[i]) * row.scale, row.mask[i]);
    }
  }
}

// kept(gradient, i): what of element i of the gradient is the branch's.
template <class Kept>
void add_branch_gradient(const ResidualBackwardCall& call, const StorageAddresses& addresses, const Kept& kept) {
  ColumnSums sums(call.bias_gradient ? call.columns : 0);
  for (std::int64_t row = 0; row < call.rows; ++row) {
    const std::int64_t first = row * call.columns;
    const float* __restrict gradient = addresses.of<float>(call.gradient) + first;
    if (call.branch_gradient) {
      float* __restrict branch = addresses.of<float>(*call.branch_gradient) + first;
      for (std::int64_t i = 0; i < call.columns; ++i) branch[i] = kept(gradient[i], first + i);
    }
    sums.add_row([=](std::int64_t i) { return kept(gradient[i], first + i); });
  }
  if (call.bias_gradient) sums.write(addresses.of<float>(*call.bias_gradient), call.accumulate);
}

}  // namespace

void run(const ResidualCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  std::uint8_t* const mask = call.mask ? addresses.of<std::uint8_t>(*call.mask) : nullptr;
  if (mask != nullptr) fill_mask(call.draw, call.rows * call.columns, mask);
  for (std::int64_t row = 0; row < call.rows; ++row) {
    const std::int64_t first = row * call.columns;
    const ResidualRow of_row{.branch = addresses.of<float>(call.branch) + first,
                             .residual = addresses.of<float>(call.residual) + first,
                             .bias = call.bias ? addresses.of<float>(*call.bias) : nullptr,
                             .mask = mask == nullptr ? nullptr : mask + first,
                             .scale = kept_scale(call.draw.probability)};
    add_residual(of_row, call.columns, addresses.of<float>(call.output) + first);
  }
}

void run(const ResidualBackwardCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  check_fp32(call.gradients);
  const float scale = kept_scale(call.probability);
  if (call.mask) {
    const auto* const mask = addresses.of<std::uint8_t>(*call.mask);
    add_branch_gradient(call, addresses, [=](float gradient, std::int64_t i) { return kept_value(gradient * scale, mask[i]); });
  } else {
    add_branch_gradient(call, addresses, [](float gradient, std::int64_t) { return gradient; });
  }
}

}  // namespace stepsim::cpu
