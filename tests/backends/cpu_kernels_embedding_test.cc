// Rows of tables of the CPU's kernels against sums in double precision.
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "hardware/backends/cpu/embedding.h"
#include "tests/backends/cpu_kernels_operands.h"

namespace stepsim::cpu {
namespace {

// A table gradient is a sum of as many terms as a token occurs: a few roundings of 6e-8.
constexpr double kEmbeddingTolerance = 1e-6;

const std::vector<std::int64_t> kEmbeddingTokens = {3, 0, 7, 3, 9, 4, 4, 4, 1000000, -1};

TEST(CpuKernelEmbedding, RowsOfAShareAndZerosOutside) {
  for (const std::int64_t hidden : {1, 3, 16, 37}) {
    CpuOperands operands;
    const EmbeddingCall call{
        operands.integers(kEmbeddingTokens), operands.random(5 * hidden), operands.blank(10 * hidden), 10, hidden, {.first = 3, .rows = 5}};
    run(call, operands.addresses());
    const std::vector<float> table = operands.values<float>(call.table), output = operands.values<float>(call.output);
    for (std::size_t i = 0; i < output.size(); ++i) {
      const std::int64_t row = kEmbeddingTokens[i / static_cast<std::size_t>(hidden)] - 3;
      const auto column = static_cast<std::int64_t>(i) % hidden;
      EXPECT_EQ(output[i], row < 0 || row >= 5 ? 0.0F : table[static_cast<std::size_t>(row * hidden + column)]);
    }
  }
}

TEST(CpuKernelEmbedding, TwoSharesGiveTheWholeTable) {
  CpuOperands operands;
  const std::int64_t hidden = 13;
  const Tensor tokens = operands.integers({0, 5, 9, 4}), table = operands.random(10 * hidden);
  const Bytes half{5 * hidden * 4};
  const Tensor lower{table.storage, table.offset, half}, upper{table.storage, table.offset + half, half};
  const EmbeddingCall whole{tokens, table, operands.blank(4 * hidden), 4, hidden, {0, 10}};
  const EmbeddingCall first{tokens, lower, operands.blank(4 * hidden), 4, hidden, {0, 5}};
  const EmbeddingCall second{tokens, upper, operands.blank(4 * hidden), 4, hidden, {5, 5}};
  for (const EmbeddingCall& call : {whole, first, second}) run(call, operands.addresses());
  std::vector<double> sum = operands.doubles(first.output);
  const std::vector<double> other = operands.doubles(second.output);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
  EXPECT_EQ(sum, operands.doubles(whole.output));
}

TEST(CpuKernelEmbedding, GradientAddsUpOccurrences) {
  for (const bool accumulate : {false, true}) {
    for (const std::int64_t hidden : {1, 3, 16, 37}) {
      CpuOperands operands;
      EmbeddingGradientCall call{
          operands.integers(kEmbeddingTokens), operands.random(10 * hidden), {}, 10, hidden, {.first = 3, .rows = 5}, accumulate};
      call.table_gradient = accumulate ? operands.random(5 * hidden) : operands.blank(5 * hidden);
      std::vector<double> wanted = operands.doubles(call.table_gradient);
      if (!accumulate) wanted.assign(wanted.size(), 0.0);
      const std::vector<double> gradient = operands.doubles(call.gradient);
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        const std::int64_t row = kEmbeddingTokens[i / static_cast<std::size_t>(hidden)] - 3;
        if (row < 0 || row >= 5) continue;
        wanted[static_cast<std::size_t>(row * hidden + static_cast<std::int64_t>(i) % hidden)] += gradient[i];
      }
      run(call, operands.addresses());
      expect_close(operands.doubles(call.table_gradient), wanted, kEmbeddingTolerance);
    }
  }
}

TEST(CpuKernelEmbedding, PositionsAreAdded) {
  for (const std::int64_t hidden : {1, 5, 24}) {
    CpuOperands operands;
    const PositionCall call{operands.random(3 * 7 * hidden), operands.random(9 * hidden), operands.blank(3 * 7 * hidden), 3, 7, hidden};
    run(call, operands.addresses());
    const std::vector<float> input = operands.values<float>(call.input), table = operands.values<float>(call.table);
    const std::vector<float> output = operands.values<float>(call.output);
    for (std::size_t i = 0; i < output.size(); ++i) EXPECT_EQ(output[i], input[i] + table[i % static_cast<std::size_t>(7 * hidden)]);
  }
}

TEST(CpuKernelEmbedding, PositionGradientSumsTheBatchAndClearsRowsBehind) {
  for (const bool accumulate : {false, true}) {
    for (const std::int64_t hidden : {1, 5, 24}) {
      CpuOperands operands;
      PositionGradientCall call{operands.random(3 * 7 * hidden), {}, 3, 7, hidden, 9, accumulate};
      call.table_gradient = accumulate ? operands.random(9 * hidden) : operands.blank(9 * hidden);
      std::vector<double> wanted = operands.doubles(call.table_gradient);
      if (!accumulate) wanted.assign(wanted.size(), 0.0);
      const std::vector<double> gradient = operands.doubles(call.gradient);
      for (std::size_t i = 0; i < gradient.size(); ++i) wanted[i % static_cast<std::size_t>(7 * hidden)] += gradient[i];
      run(call, operands.addresses());
      expect_close(operands.doubles(call.table_gradient), wanted, kEmbeddingTolerance);
    }
  }
}

TEST(CpuKernelEmbedding, SameBitsAtAnyAddress) {
  const std::int64_t hidden = 37;
  expect_same_bits_at_any_address([&](CpuOperands& operands) {
    const Tensor tokens = operands.integers(kEmbeddingTokens), values = operands.random(10 * hidden), table = operands.random(5 * hidden);
    const Tensor output = operands.blank(10 * hidden), placed = operands.blank(10 * hidden), positions = operands.blank(5 * hidden);
    run(EmbeddingCall{tokens, table, output, 10, hidden, {3, 5}}, operands.addresses());
    run(PositionCall{values, table, placed, 2, 5, hidden}, operands.addresses());
    run(EmbeddingGradientCall{tokens, values, table, 10, hidden, {3, 5}, true}, operands.addresses());
    run(PositionGradientCall{values, positions, 2, 5, hidden, 5, false}, operands.addresses());
    return operands.contents({output, placed, table, positions});
  });
}

TEST(CpuKernelEmbedding, OtherTypesAreRefused) {
  const StorageAddresses none;
  EXPECT_THROW(run(EmbeddingCall{.elements = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(run(EmbeddingGradientCall{.elements = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(run(EmbeddingGradientCall{.gradients = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(run(PositionCall{.elements = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(run(PositionGradientCall{.elements = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(run(PositionGradientCall{.gradients = DType::kBf16}, none), std::logic_error);
}

}  // namespace
}  // namespace stepsim::cpu
