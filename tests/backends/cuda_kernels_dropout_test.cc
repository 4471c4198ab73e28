// Dropout and the residual connection of the CUDA kernels, run on the host: the numbers drawn, the masks, the sums of gradients.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "hardware/backends/cuda/dropout.cuh"
#include "hardware/backends/cuda/residual.cuh"
#include "tests/backends/cuda_kernels_operands.h"

namespace stepsim::cuda {
namespace {

std::array<std::uint32_t, 4> philox_words(std::array<std::uint32_t, 4> counter, std::uint32_t key_low, std::uint32_t key_high) {
  const PhiloxWords words = philox({{counter[0], counter[1], counter[2], counter[3]}}, key_low, key_high);
  return {words.of[0], words.of[1], words.of[2], words.of[3]};
}

// Random123, kat_vectors, philox4x32 10: zeros, ones, digits of pi.
TEST(CudaKernelDropout, PhiloxKnownAnswers) {
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox_words({0, 0, 0, 0}, 0, 0), (Words{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}));
  EXPECT_EQ(philox_words({0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, 0xFFFFFFFF, 0xFFFFFFFF),
            (Words{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}));
  EXPECT_EQ(philox_words({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, 0xA4093822, 0x299F31D0),
            (Words{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}));
}

// The mask that the comment of Draw says, element by element.
std::vector<std::uint8_t> drawn_mask(const Draw& draw, std::int64_t count) {
  std::vector<std::uint8_t> mask;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto group = static_cast<std::uint64_t>(i / 4);
    const std::array<std::uint32_t, 4> words =
        philox_words({static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(group >> 32), static_cast<std::uint32_t>(draw.offset),
                      static_cast<std::uint32_t>(draw.offset >> 32)},
                     static_cast<std::uint32_t>(draw.seed), static_cast<std::uint32_t>(draw.seed >> 32));
    const double uniform = static_cast<double>(words[static_cast<std::size_t>(i % 4)] >> 8) / (1 << 24);
    mask.push_back(uniform >= double{draw.probability} ? 1 : 0);
  }
  return mask;
}

constexpr Draw kTestDraw{.probability = 0.25F, .seed = 0x0123456789ABCDEF, .offset = 0xFEDCBA9876543210};

TEST(CudaKernelDropout, MaskAndOutput) {
  for_kernel_variants(false, [](KernelVariant variant) {
    for (const std::int64_t count : {1, 6, 8, 2053}) {
      CallOperands operands(variant.aligned);
      const DropoutCall call{.input = operands.random(count, variant.elements),
                             .output = operands.blank(count, variant.elements),
                             .mask = operands.blank_mask(count),
                             .count = count,
                             .draw = kTestDraw,
                             .elements = variant.elements};
      const DropoutBackwardCall backward{.gradient = operands.random(count, variant.elements),
                                         .mask = call.mask,
                                         .output = operands.blank(count, variant.elements),
                                         .count = count,
                                         .probability = kTestDraw.probability,
                                         .elements = variant.elements};
      operands.run_call(call);
      operands.run_call(backward);
      const std::vector<std::uint8_t> mask = drawn_mask(kTestDraw, count);
      EXPECT_EQ(operands.mask(call.mask), mask);
      std::vector<double> wanted = operands.values(call.input, variant.elements);
      std::vector<double> gradients = operands.values(backward.gradient, variant.elements);
      for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] *= mask[i] / 0.75, gradients[i] *= mask[i] / 0.75;
      expect_close(operands.values(call.output, variant.elements), wanted, variant.elements);
      expect_close(operands.values(backward.output, variant.elements), gradients, variant.elements);
    }
  });
}

// 2053 draws that are kept with probability 3/4: mean 1540, standard deviation 20. Other seeds and offsets give other masks.
TEST(CudaKernelDropout, MasksAreOfTheSeedAndTheOffset) {
  const std::vector<std::uint8_t> mask = drawn_mask(kTestDraw, 2053);
  EXPECT_NEAR(std::accumulate(mask.begin(), mask.end(), 0), 1540, 60);
  EXPECT_NE(mask, drawn_mask({kTestDraw.probability, kTestDraw.seed + 1, kTestDraw.offset}, 2053));
  EXPECT_NE(mask, drawn_mask({kTestDraw.probability, kTestDraw.seed + (std::uint64_t{1} << 32), kTestDraw.offset}, 2053));
  EXPECT_NE(mask, drawn_mask({kTestDraw.probability, kTestDraw.seed, kTestDraw.offset + 1}, 2053));
  EXPECT_NE(mask, drawn_mask({kTestDraw.probability, kTestDraw.seed, kTestDraw.offset + (std::uint64_t{1} << 32)}, 2053));
}

TEST(CudaKernelDropout, ProbabilitiesZeroAndOne) {
  CallOperands operands;
  const Tensor input = operands.random(40, DType::kFp32), output = operands.blank(40, DType::kFp32), mask = operands.blank_mask(40);
  operands.run_call(DropoutCall{input, output, mask, 40, {.probability = 0}});
  EXPECT_EQ(operands.values(output, DType::kFp32), operands.values(input, DType::kFp32));
  operands.run_call(DropoutCall{input, output, mask, 40, {.probability = 1}});
  EXPECT_EQ(operands.values(output, DType::kFp32), std::vector<double>(40, 0));
  EXPECT_EQ(operands.mask(mask), std::vector<std::uint8_t>(40, 0));
}

TEST(CudaKernelResidual, Forward) {
  for_kernel_variants(false, [](KernelVariant variant) {
    for (const std::int64_t columns : {5, 24}) {
      for (const bool with_bias : {false, true}) {
        for (const bool with_mask : {false, true}) {
          CallOperands operands(variant.aligned);
          const std::int64_t rows = 7, count = rows * columns;
          ResidualCall call{.branch = operands.random(count, variant.elements),
                            .residual = operands.random(count, variant.elements),
                            .output = operands.blank(count, variant.elements),
                            .rows = rows,
                            .columns = columns,
                            .draw = kTestDraw,
                            .elements = variant.elements};
          if (with_bias) call.bias = operands.random(columns, variant.elements);
          if (with_mask) call.mask = operands.blank_mask(count);
          operands.run_call(call);
          const std::vector<std::uint8_t> mask = drawn_mask(kTestDraw, count);
          EXPECT_TRUE(!with_mask || operands.mask(*call.mask) == mask);
          std::vector<double> wanted = operands.values(call.branch, variant.elements);
          const std::vector<double> before = operands.values(call.residual, variant.elements);
          for (std::size_t i = 0; i < wanted.size(); ++i) {
            if (with_bias) wanted[i] += operands.values(*call.bias, variant.elements)[i % static_cast<std::size_t>(columns)];
            if (with_mask) wanted[i] *= mask[i] / 0.75;
            wanted[i] += before[i];
          }
          expect_close(operands.values(call.output, variant.elements), wanted, variant.elements);
        }
      }
    }
  });
}

struct ResidualGradients {
  bool mask = false, bias = false, branch = false, accumulate = false;
};

void check_residual_backward(KernelVariant variant, std::int64_t columns, ResidualGradients with) {
  CallOperands operands(variant.aligned);
  const std::int64_t rows = 150, count = rows * columns;  // three slabs
  ResidualBackwardCall call{.gradient = operands.random(count, variant.elements),
                            .rows = rows,
                            .columns = columns,
                            .probability = kTestDraw.probability,
                            .accumulate = with.accumulate,
                            .elements = variant.elements,
                            .gradients = variant.gradients};
  if (with.mask) {
    const Tensor input = operands.random(count, variant.elements), output = operands.blank(count, variant.elements);
    call.mask = operands.blank_mask(count);
    operands.run_call(DropoutCall{input, output, *call.mask, count, kTestDraw, variant.elements});
  }
  if (with.branch) call.branch_gradient = operands.blank(count, variant.elements);
  std::vector<double> bias(static_cast<std::size_t>(columns));
  if (with.bias) {
    call.bias_gradient = with.accumulate ? operands.random(columns, variant.gradients) : operands.blank(columns, variant.gradients);
    if (with.accumulate) bias = operands.values(*call.bias_gradient, variant.gradients);
  }
  operands.run_call_with_scratch(call);
  std::vector<double> branch = operands.values(call.gradient, variant.elements);
  const std::vector<std::uint8_t> mask = drawn_mask(kTestDraw, count);
  for (std::size_t i = 0; i < branch.size(); ++i) {
    if (with.mask) branch[i] *= mask[i] / 0.75;
    bias[i % bias.size()] += branch[i];
  }
  if (with.branch) expect_close(operands.values(*call.branch_gradient, variant.elements), branch, variant.elements);
  if (with.bias) expect_close(operands.values(*call.bias_gradient, variant.gradients), bias, variant.gradients);
}

TEST(CudaKernelResidual, Backward) {
  for_kernel_variants(true, [](KernelVariant variant) {
    for (const std::int64_t columns : {5, 24}) {
      check_residual_backward(variant, columns, {.mask = true, .branch = true});
      check_residual_backward(variant, columns, {.mask = true, .bias = true, .branch = true});
      check_residual_backward(variant, columns, {.mask = true, .bias = true, .branch = true, .accumulate = true});
      check_residual_backward(variant, columns, {.bias = true});
    }
  });
}

}  // namespace
}  // namespace stepsim::cuda
