// Token and position embeddings of the CUDA kernels, run on the host: shares of the vocabulary, sums in the order of the tokens.
#include <gtest/gtest.h>

#include <vector>

#include "hardware/backends/cuda/embedding.cuh"
#include "tests/backends/cuda_kernels_operands.h"

namespace stepsim::cuda {
namespace {

// Vocabulary 700 in shares of 256 + 300 + 144 rows: more than one block of 256 rows. 600 tokens, most of them few words, as in text: the
// sum of squares of a counter spreads them unevenly.
constexpr std::int64_t kTokenCount = 600;
constexpr TableShare kTableShares[] = {{0, 256}, {256, 300}, {556, 144}};

std::vector<std::int64_t> test_tokens() {
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < kTokenCount; ++i) tokens.push_back(i % 3 == 0 ? 300 + i % 2 : (i * i) % 700);
  return tokens;
}

TEST(CudaKernelEmbedding, SharesOfTheTable) {
  for_kernel_variants(false, [](KernelVariant variant) {
    for (const std::int64_t hidden : {3, 16}) {
      CallOperands operands(variant.aligned);
      const std::vector<std::int64_t> tokens = test_tokens();
      const Tensor token_tensor = operands.integers(tokens);
      const auto columns = static_cast<std::size_t>(hidden);
      for (const TableShare& share : kTableShares) {
        const EmbeddingCall call{token_tensor,
                                 operands.random(share.rows * hidden, variant.elements),
                                 operands.blank(kTokenCount * hidden, variant.elements),
                                 kTokenCount,
                                 hidden,
                                 share,
                                 variant.elements};
        operands.run_call(call);
        const std::vector<double> table = operands.values(call.table, variant.elements);
        std::vector<double> wanted;
        for (const std::int64_t token : tokens) {
          const bool held = token >= share.first && token < share.first + share.rows;
          for (std::size_t i = 0; i < columns; ++i) {
            wanted.push_back(held ? table[static_cast<std::size_t>(token - share.first) * columns + i] : 0);
          }
        }
        EXPECT_EQ(operands.values(call.output, variant.elements), wanted);
      }
    }
  });
}

TEST(CudaKernelEmbedding, GradientOfTheTable) {
  for_kernel_variants(true, [](KernelVariant variant) {
    for (const std::int64_t hidden : {3, 16}) {
      for (const bool accumulate : {false, true}) {
        CallOperands operands(variant.aligned);
        const std::vector<std::int64_t> tokens = test_tokens();
        const Tensor token_tensor = operands.integers(tokens), gradient = operands.random(kTokenCount * hidden, variant.elements);
        const std::vector<double> gradients = operands.values(gradient, variant.elements);
        const auto columns = static_cast<std::size_t>(hidden);
        for (const TableShare& share : kTableShares) {
          const EmbeddingGradientCall call{token_tensor, gradient,         operands.random(share.rows * hidden, variant.gradients),
                                           kTokenCount,  hidden,           share,
                                           accumulate,   variant.elements, variant.gradients};
          std::vector<double> wanted = operands.values(call.table_gradient, variant.gradients);
          if (!accumulate) wanted.assign(wanted.size(), 0);
          for (std::size_t i = 0; i < gradients.size(); ++i) {
            const std::int64_t row = tokens[i / columns] - share.first;
            if (row >= 0 && row < share.rows) wanted[static_cast<std::size_t>(row) * columns + i % columns] += gradients[i];
          }
          operands.run_call_with_scratch(call);
          expect_close(operands.values(call.table_gradient, variant.gradients), wanted, variant.gradients);
        }
      }
    }
  });
}

// Gradients 2^24, 1, 1, -2^24 of one word, in fp32: in the order of the tokens both ones are lost, so the sum is 0, not 2.
TEST(CudaKernelEmbedding, GradientsAreAddedInTheOrderOfTheTokens) {
  CallOperands operands;
  const std::vector<float> values{0x1p24F, 1, 1, -0x1p24F};
  const Tensor tokens = operands.integers({5, 5, 5, 5}), gradient = operands.blank(4, DType::kFp32);
  for (std::int64_t i = 0; i < 4; ++i) operands.set(gradient, DType::kFp32, i, values[static_cast<std::size_t>(i)]);
  const EmbeddingGradientCall call{tokens, gradient, operands.blank(8, DType::kFp32), 4, 1, {0, 8}};
  operands.run_call_with_scratch(call);
  EXPECT_EQ(operands.values(call.table_gradient, DType::kFp32), std::vector<double>(8, 0));
}

TEST(CudaKernelEmbedding, Positions) {
  for_kernel_variants(true, [](KernelVariant variant) {
    for (const std::int64_t hidden : {5, 24}) {
      for (const bool accumulate : {false, true}) {
        CallOperands operands(variant.aligned);
        const std::int64_t batch = 3, sequence = 4, table_rows = 6, count = batch * sequence * hidden;
        const PositionCall call{operands.random(count, variant.elements),
                                operands.random(table_rows * hidden, variant.elements),
                                operands.blank(count, variant.elements),
                                batch,
                                sequence,
                                hidden,
                                variant.elements};
        const PositionGradientCall backward{call.input,
                                            operands.random(table_rows * hidden, variant.gradients),
                                            batch,
                                            sequence,
                                            hidden,
                                            table_rows,
                                            accumulate,
                                            variant.elements,
                                            variant.gradients};
        std::vector<double> outputs = operands.values(call.input, variant.elements);
        const std::vector<double> table = operands.values(call.table, variant.elements);
        std::vector<double> sums = operands.values(backward.table_gradient, variant.gradients);
        if (!accumulate) sums.assign(sums.size(), 0);
        for (std::size_t i = 0; i < outputs.size(); ++i) {
          const std::size_t place = i % static_cast<std::size_t>(sequence * hidden);
          sums[place] += outputs[i];
          outputs[i] += table[place];
        }
        operands.run_call(call);
        operands.run_call(backward);
        expect_close(operands.values(call.output, variant.elements), outputs, variant.elements);
        expect_close(operands.values(backward.table_gradient, variant.gradients), sums, variant.gradients);
      }
    }
  });
}

}  // namespace
}  // namespace stepsim::cuda
