// Biases and residual additions of the CPU against double precision.
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "hardware/backends/cpu/bias.h"
#include "hardware/backends/cpu/dropout.h"
#include "hardware/backends/cpu/residual.h"
#include "tests/backends/cpu_kernels_operands.h"

namespace stepsim::cpu {
namespace {

// A few roundings of 6e-8, of terms that are as large as the root mean square.
constexpr double kResidualTolerance = 1e-6;
constexpr Draw kResidualDraw{.probability = 0.25F, .seed = 9, .offset = 4};  // 0.25: exact in fp32

struct RowSizes {
  std::int64_t rows = 0, columns = 0;
};
const std::vector<RowSizes> kRowSizes = {{1, 1}, {1, 5}, {3, 1}, {4, 16}, {40, 37}, {65, 130}};

// The sum over rows on top of what is there, or of nothing.
std::vector<double> row_sum(const std::vector<double>& values, std::vector<double> before, bool accumulate) {
  const std::size_t columns = before.size();
  if (!accumulate) before.assign(columns, 0.0);
  for (std::size_t i = 0; i < values.size(); ++i) before[i % columns] += values[i];
  return before;
}

TEST(CpuKernelBias, IsAddedToRows) {
  for (const auto& [rows, columns] : kRowSizes) {
    CpuOperands operands;
    const BiasCall call{operands.random(rows * columns), operands.random(columns), operands.blank(rows * columns), rows, columns};
    run(call, operands.addresses());
    const std::vector<float> input = operands.values<float>(call.input), bias = operands.values<float>(call.bias);
    const std::vector<float> output = operands.values<float>(call.output);
    for (std::size_t i = 0; i < output.size(); ++i) ASSERT_EQ(output[i], input[i] + bias[i % bias.size()]);
  }
}

TEST(CpuKernelBias, GradientIsTheSumOfRows) {
  for (const auto& [rows, columns] : kRowSizes) {
    for (const bool accumulate : {false, true}) {
      CpuOperands operands;
      BiasGradientCall call{operands.random(rows * columns), {}, rows, columns, accumulate};
      call.bias_gradient = accumulate ? operands.random(columns) : operands.blank(columns);
      const std::vector<double> wanted = row_sum(operands.doubles(call.gradient), operands.doubles(call.bias_gradient), accumulate);
      run(call, operands.addresses());
      expect_close(operands.doubles(call.bias_gradient), wanted, kResidualTolerance);
    }
  }
}

// Running fp32 sums of 2^17 terms of one sign would be off by some 1e-4.
TEST(CpuKernelBias, GradientOfManyRows) {
  const std::int64_t rows = 1 << 17, columns = 3;
  CpuOperands operands;
  const BiasGradientCall call{operands.random(rows * columns, 0.1F, 1), operands.blank(columns), rows, columns};
  run(call, operands.addresses());
  expect_close(operands.doubles(call.bias_gradient), row_sum(operands.doubles(call.gradient), {0, 0, 0}, true), 3e-7);
}

TEST(CpuKernelResidual, Forward) {
  for (const auto& [rows, columns] : kRowSizes) {
    for (int variant = 0; variant < 4; ++variant) {
      const bool with_bias = (variant & 1) != 0, with_mask = (variant & 2) != 0;
      SCOPED_TRACE(testing::Message() << rows << " x " << columns << ", variant " << variant);
      CpuOperands operands;
      const std::int64_t count = rows * columns;
      ResidualCall call{.branch = operands.random(count), .residual = operands.random(count), .output = operands.blank(count)};
      call.rows = rows, call.columns = columns, call.draw = kResidualDraw;
      if (with_bias) call.bias = operands.random(columns);
      if (with_mask) call.mask = operands.blank_bytes(count);
      run(call, operands.addresses());
      // The mask is the one of a dropout with the same draw.
      const DropoutCall dropout{call.branch, operands.blank(count), operands.blank_bytes(count), count, kResidualDraw};
      run(dropout, operands.addresses());
      const std::vector<std::uint8_t> mask = operands.values<std::uint8_t>(dropout.mask);
      if (with_mask) {
        EXPECT_EQ(operands.values<std::uint8_t>(*call.mask), mask);
      }
      std::vector<double> wanted = operands.doubles(call.branch);
      const std::vector<double> residual = operands.doubles(call.residual);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        if (with_bias) wanted[i] += operands.doubles(*call.bias)[i % static_cast<std::size_t>(columns)];
        if (with_mask) wanted[i] = mask[i] != 0 ? wanted[i] / 0.75 : 0.0;
        wanted[i] += residual[i];
      }
      expect_close(operands.doubles(call.output), wanted, kResidualTolerance);
    }
  }
}

TEST(CpuKernelResidual, Backward) {
  for (const auto& [rows, columns] : kRowSizes) {
    for (int variant = 0; variant < 16; ++variant) {
      const bool with_mask = (variant & 1) != 0, with_bias = (variant & 2) != 0, with_branch = (variant & 4) != 0;
      SCOPED_TRACE(testing::Message() << rows << " x " << columns << ", variant " << variant);
      CpuOperands operands;
      const std::int64_t count = rows * columns;
      ResidualBackwardCall call{.gradient = operands.random(count)};
      call.rows = rows, call.columns = columns, call.accumulate = (variant & 8) != 0;
      std::vector<double> wanted = operands.doubles(call.gradient);
      if (with_mask) {
        std::vector<std::uint8_t> mask(wanted.size());
        for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 5 < 3 ? 1 : 0;
        call.mask = operands.bytes(mask), call.probability = 0.25F;
        for (std::size_t i = 0; i < mask.size(); ++i) wanted[i] = mask[i] != 0 ? wanted[i] / 0.75 : 0.0;
      }
      if (with_branch) call.branch_gradient = operands.blank(count);
      std::vector<double> sums;
      if (with_bias) {
        call.bias_gradient = call.accumulate ? operands.random(columns) : operands.blank(columns);
        sums = row_sum(wanted, operands.doubles(*call.bias_gradient), call.accumulate);
      }
      run(call, operands.addresses());
      if (with_branch) expect_close(operands.doubles(*call.branch_gradient), wanted, kResidualTolerance);
      if (with_bias) expect_close(operands.doubles(*call.bias_gradient), sums, kResidualTolerance);
    }
  }
}

TEST(CpuKernelResidual, SameBitsAtAnyAddress) {
  for (const auto& [rows, columns] : {RowSizes{3, 1}, RowSizes{70, 37}}) {
    const std::int64_t count = rows * columns;
    expect_same_bits_at_any_address([&, n_rows = rows, n_columns = columns](CpuOperands& operands) {
      const Tensor input = operands.random(count), other = operands.random(count), bias = operands.random(n_columns);
      const Tensor plain = operands.blank(count), dropped = operands.blank(count), mask = operands.blank_bytes(count);
      const Tensor sums = operands.random(n_columns), kept = operands.random(n_columns), branch = operands.blank(count);
      run(BiasCall{input, bias, plain, n_rows, n_columns}, operands.addresses());
      run(BiasGradientCall{input, sums, n_rows, n_columns, true}, operands.addresses());
      run(ResidualCall{input, other, dropped, bias, mask, n_rows, n_columns, kResidualDraw}, operands.addresses());
      run(ResidualBackwardCall{input, mask, kept, branch, n_rows, n_columns, 0.25F, true}, operands.addresses());
      return operands.contents({plain, sums, dropped, mask, kept, branch});
    });
  }
}

TEST(CpuKernelResidual, OtherTypesAreRefused) {
  const StorageAddresses none;
  EXPECT_THROW(run(BiasCall{.elements = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(run(BiasGradientCall{.elements = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(run(BiasGradientCall{.gradients = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(run(ResidualCall{.elements = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(run(ResidualBackwardCall{.elements = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(run(ResidualBackwardCall{.gradients = DType::kBf16}, none), std::logic_error);
}

}  // namespace
}  // namespace stepsim::cpu
