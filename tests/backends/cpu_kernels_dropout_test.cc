// Dropout of the CPU's kernels: the generator against known answers, masks against their definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "hardware/backends/cpu/dropout.h"
#include "hardware/backends/cpu/philox.h"
#include "tests/backends/cpu_kernels_operands.h"

namespace stepsim::cpu {
namespace {

// Random123, tests/kat_vectors, philox4x32 with 10 rounds.
TEST(CpuKernelPhilox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

struct Dropped {
  std::vector<float> input, output;
  std::vector<std::uint8_t> mask;
};

Dropped dropped(std::int64_t count, const Draw& draw) {
  CpuOperands operands;
  const DropoutCall call{operands.random(count), operands.blank(count), operands.blank_bytes(count), count, draw};
  run(call, operands.addresses());
  return {operands.values<float>(call.input), operands.values<float>(call.output), operands.values<std::uint8_t>(call.mask)};
}

// kernel_calls.h, Draw: seed and offset of more than 32 bits, every place in a block of four.
TEST(CpuKernelDropout, MasksFollowTheDefinition) {
  const Draw draw{.probability = 0.3F, .seed = 0x123456789abcdef0U, .offset = 0xfedcba9876543210U};
  for (const std::int64_t count : {1, 2, 3, 4, 5, 63, 64, 65, 1001}) {
    const Dropped found = dropped(count, draw);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const PhiloxWords words = philox({static_cast<std::uint32_t>(i / 4), 0, 0x76543210U, 0xfedcba98U}, {0x9abcdef0U, 0x12345678U});
      const bool kept = static_cast<double>(words[at % 4] >> 8) * 0x1p-24 >= static_cast<double>(draw.probability);
      ASSERT_EQ(found.mask[at], kept ? 1 : 0) << "element " << i << " of " << count;
      // The scale and the product are rounded: 2 of 6e-8.
      ASSERT_NEAR(found.output[at], kept ? found.input[at] / 0.7F : 0.0F, 3e-7F * std::abs(found.input[at]));
    }
  }
}

TEST(CpuKernelDropout, OneOffsetOneMask) {
  const std::int64_t count = 4001;
  const Draw draw{.probability = 0.5F, .seed = 7, .offset = 11};
  const std::vector<std::uint8_t> mask = dropped(count, draw).mask;
  EXPECT_EQ(dropped(count, draw).mask, mask);
  // Independent masks agree at half of the places: 2000 of 4001, give or take 4 sigma, which is 4 sqrt(4001 / 4) = 127.
  for (const Draw& other : {Draw{0.5F, 7, 12}, Draw{0.5F, 8, 11}, Draw{0.5F, 7, 11 + (std::uint64_t{1} << 32)}}) {
    const std::vector<std::uint8_t> with = dropped(count, other).mask;
    std::int64_t alike = 0;
    for (std::size_t i = 0; i < mask.size(); ++i) alike += mask[i] == with[i] ? 1 : 0;
    EXPECT_NEAR(static_cast<double>(alike), 2000.5, 127);
  }
}

TEST(CpuKernelDropout, KeptShare) {
  const std::int64_t count = 200000;
  for (const float probability : {0.1F, 0.5F, 0.9F}) {
    const std::vector<std::uint8_t> mask = dropped(count, {.probability = probability, .seed = 3, .offset = 5}).mask;
    const double p = probability, n = count;
    const auto kept = static_cast<double>(std::count(mask.begin(), mask.end(), 1));
    EXPECT_NEAR(kept, n * (1 - p), 4 * std::sqrt(n * p * (1 - p)));  // 4 sigma of a binomial distribution
    EXPECT_EQ(std::count(mask.begin(), mask.end(), 0), count - static_cast<std::int64_t>(kept));
  }
}

TEST(CpuKernelDropout, AllAndNothing) {
  const Dropped all = dropped(1000, {.probability = 0, .seed = 1, .offset = 2});
  EXPECT_EQ(all.output, all.input);
  EXPECT_EQ(all.mask, std::vector<std::uint8_t>(1000, 1));
  const Dropped nothing = dropped(1000, {.probability = 1, .seed = 1, .offset = 2});
  EXPECT_EQ(nothing.output, std::vector<float>(1000, 0.0F));
  EXPECT_EQ(nothing.mask, std::vector<std::uint8_t>(1000, 0));
}

// The least probability that drops u = 0 and the greatest below 1, which keeps u = 1 - 2^-24 alone.
TEST(CpuKernelDropout, BoundsOfProbability) {
  EXPECT_EQ(kept_from(0.0F), 0U);
  EXPECT_EQ(kept_from(0x1p-149F), 1U);
  EXPECT_EQ(kept_from(0x1p-24F), 1U);
  EXPECT_EQ(kept_from(0.5F), 1U << 23);
  EXPECT_EQ(kept_from(1 - 0x1p-24F), (1U << 24) - 1);
  EXPECT_EQ(kept_from(1.0F), 1U << 24);
}

// What is dropped is zero, also where it was no number, and nothing else is scaled: the derivative of the forward is its factor.
TEST(CpuKernelDropout, BackwardScalesWhatWasKept) {
  for (const std::int64_t count : {1, 5, 16, 1003}) {
    CpuOperands operands;
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3 == 0 ? 1 : 0;
    std::vector<float> gradient(mask.size());
    for (std::size_t i = 0; i < mask.size(); ++i) gradient[i] = i % 3 == 1 ? INFINITY : static_cast<float>(i) - 7.5F;
    const DropoutBackwardCall call{operands.floats(gradient), operands.bytes(mask), operands.blank(count), count, 0.2F};
    run(call, operands.addresses());
    std::vector<double> wanted(mask.size());
    for (std::size_t i = 0; i < mask.size(); ++i) wanted[i] = mask[i] != 0 ? static_cast<double>(gradient[i]) / (1 - 0.2) : 0.0;
    expect_close(operands.doubles(call.output), wanted, 3e-7);  // 0.2 in fp32, the scale and the product are rounded
  }
}

TEST(CpuKernelDropout, SameBitsAtAnyAddress) {
  for (const std::int64_t count : {1, 3, 67, 1000}) {
    expect_same_bits_at_any_address([&](CpuOperands& operands) {
      const DropoutCall call{operands.random(count), operands.blank(count), operands.blank_bytes(count), count, {0.4F, 1, 2}};
      const Tensor back = operands.blank(count);
      run(call, operands.addresses());
      run(DropoutBackwardCall{call.input, call.mask, back, count, 0.4F}, operands.addresses());
      return operands.contents({call.output, call.mask, back});
    });
  }
}

TEST(CpuKernelDropout, OtherTypesAreRefused) {
  const StorageAddresses none;
  EXPECT_THROW(run(DropoutCall{.elements = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(run(DropoutBackwardCall{.elements = DType::kBf16}, none), std::logic_error);
}

}  // namespace
}  // namespace stepsim::cpu
