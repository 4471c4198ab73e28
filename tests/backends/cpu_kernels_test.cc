// Kernels of the CPU that have no twin among the CUDA tests, which run all others: products, rotary positions, the optimizer, random
// numbers, exp and erf; and that no result depends on where operands lie.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "hardware/backends/cpu/adamw.h"
#include "hardware/backends/cpu/attention_softmax.h"
#include "hardware/backends/cpu/bias.h"
#include "hardware/backends/cpu/elementwise.h"
#include "hardware/backends/cpu/gradient.h"
#include "hardware/backends/cpu/loss.h"
#include "hardware/backends/cpu/norm.h"
#include "hardware/backends/cpu/philox.h"
#include "hardware/backends/cpu/product.h"
#include "hardware/backends/cpu/rotary.h"
#include "hardware/backends/cpu/vector_math.h"

namespace stepsim::cpu {

namespace {

// fp32 operands in memory that begins `shift` elements behind a multiple of 64 bytes.
class FloatOperands {
 public:
  explicit FloatOperands(std::size_t shift = 0) : shift_(shift) {}

  Tensor add(const std::vector<float>& values) {
    std::vector<float>& block = blocks_.emplace_back(values.size() + 32, 0.0F);
    const auto misplaced = static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(block.data()) / sizeof(float)) % 16;
    float* const first = block.data() + (16 - misplaced) % 16 + shift_;
    std::memcpy(first, values.data(), values.size() * sizeof(float));
    addresses_.base.push_back(reinterpret_cast<std::byte*>(first));
    return {StorageId{static_cast<std::int32_t>(addresses_.base.size()) - 1}, Bytes(0),
            Bytes(static_cast<std::int64_t>(values.size() * sizeof(float)))};
  }
  Tensor random(std::size_t count) {
    std::vector<float> values(count);
    for (float& each : values) each = static_cast<float>(generator_() >> 8) * 0x1p-22F - 2;
    return add(values);
  }
  Tensor zero(std::size_t count) { return add(std::vector<float>(count, 0.0F)); }
  std::vector<float> values(const Tensor& tensor) const {
    const auto* const first = addresses_.of<float>(tensor);
    return {first, first + tensor.size.value / 4};
  }
  const StorageAddresses& addresses() const { return addresses_; }

 private:
  std::size_t shift_;
  std::mt19937 generator_{5489};  // the engine's default seed
  std::vector<std::vector<float>> blocks_;
  StorageAddresses addresses_;
};

}  // namespace

// Random123's kat_vectors, philox4x32-10.
TEST(CpuKernels, PhiloxKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(CpuKernels, MasksKeepTheirShareAndFollowTheOffset) {
  constexpr std::int64_t kCount = 100'003;
  std::vector<std::uint8_t> first(kCount), again(kCount), other(kCount);
  fill_mask({.probability = 0.3F, .seed = 7, .offset = 5}, kCount, first.data());
  fill_mask({.probability = 0.3F, .seed = 7, .offset = 5}, kCount, again.data());
  fill_mask({.probability = 0.3F, .seed = 7, .offset = 6}, kCount, other.data());
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
  double kept = 0;
  for (const std::uint8_t each : first) kept += each;
  EXPECT_NEAR(kept / kCount, 0.7, 4 * std::sqrt(0.3 * 0.7 / kCount));
  for (std::int64_t i = 0; i < 40; ++i) {  // element by element, as the contract has it
    const std::uint32_t word = drawn_words({.seed = 7, .offset = 5}, i / 4)[static_cast<std::size_t>(i % 4)];
    EXPECT_EQ(first[static_cast<std::size_t>(i)] == 1, static_cast<float>(word >> 8) * 0x1p-24F >= 0.3F);
  }
}

TEST(CpuKernels, ExpAndErfAreThose) {
  for (float x = -86; x < 87; x += 0.0137F) {
    const double wanted = std::exp(static_cast<double>(x));
    ASSERT_NEAR(static_cast<double>(exp_of(x)), wanted, 3e-7 * wanted) << x;
  }
  EXPECT_EQ(exp_of(0), 1);
  EXPECT_LT(exp_of(-1000), 2e-38F);
  for (float x = -5; x < 5; x += 0.0013F) {
    ASSERT_NEAR(static_cast<double>(erf_of(x, exp_of(-x * x))), std::erf(static_cast<double>(x)), 5e-7) << x;
  }
}

TEST(CpuKernels, ProductsOfEveryLayout) {
  constexpr std::int64_t kM = 5, kN = 7, kK = 11, kOuter = 2, kInner = 3;
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      for (const bool accumulate : {false, true}) {
        FloatOperands operands;
        ProductCall call{.m = kM, .n = kN, .k = kK, .outer = kOuter, .inner = kInner};
        call.transpose_a = transpose_a, call.transpose_b = transpose_b, call.accumulate = accumulate;
        // Rows lie apart by more than they are long; products follow each other with a gap.
        const auto operand = [&](std::int64_t rows, std::int64_t columns) {
          const std::int64_t row = columns + 2, inner = rows * row + 3, outer = kInner * inner + 1;
          return ProductCall::Operand{operands.random(static_cast<std::size_t>(kOuter * outer)), row, outer, inner};
        };
        call.a = transpose_a ? operand(kK, kM) : operand(kM, kK);
        call.b = transpose_b ? operand(kN, kK) : operand(kK, kN);
        call.c = operand(kM, kN);
        const std::vector<float> a = operands.values(call.a.tensor), b = operands.values(call.b.tensor),
                                 before = operands.values(call.c.tensor);
        run(call, operands.addresses());
        const std::vector<float> after = operands.values(call.c.tensor);
        std::vector<bool> written(after.size(), false);
        const auto place = [](const ProductCall::Operand& of, std::int64_t i, std::int64_t j, std::int64_t row, std::int64_t column) {
          return static_cast<std::size_t>(i * of.outer + j * of.inner + row * of.row + column);
        };
        for (std::int64_t i = 0; i < kOuter; ++i) {
          for (std::int64_t j = 0; j < kInner; ++j) {
            for (std::int64_t m = 0; m < kM; ++m) {
              for (std::int64_t n = 0; n < kN; ++n) {
                const std::size_t c = place(call.c, i, j, m, n);
                double sum = accumulate ? static_cast<double>(before[c]) : 0.0;
                for (std::int64_t k = 0; k < kK; ++k) {
                  sum += static_cast<double>(a[transpose_a ? place(call.a, i, j, k, m) : place(call.a, i, j, m, k)]) *
                         static_cast<double>(b[transpose_b ? place(call.b, i, j, n, k) : place(call.b, i, j, k, n)]);
                }
                EXPECT_NEAR(static_cast<double>(after[c]), sum, 1e-5);
                written[c] = true;
              }
            }
          }
        }
        for (std::size_t i = 0; i < after.size(); ++i) {
          if (written[i]) continue;
          EXPECT_EQ(after[i], before[i]);  // between the rows
        }
      }
    }
  }
}

// A turn keeps lengths, and backward turns back: of what forward made of a joint tensor, backward makes it again.
TEST(CpuKernels, RotaryTurnsByThePositionAndBack) {
  const HeadShape shape{.batch = 2, .sequence = 5, .heads = 3, .kv_heads = 2, .head_dim = 6};
  const RotaryTable table(shape.sequence, shape.head_dim, 100);
  FloatOperands operands;
  const std::size_t tokens = 10, joint = tokens * 7 * 6;
  RotaryCall call{.joint = operands.random(joint), .query = operands.zero(tokens * 18), .key = operands.zero(tokens * 12)};
  call.value = operands.zero(tokens * 12);
  call.shape = shape;
  run(call, operands.addresses(), table);
  const std::vector<float> before = operands.values(call.joint), query = operands.values(call.query), key = operands.values(call.key);
  for (std::size_t token = 0; token < tokens; ++token) {
    for (std::size_t head = 0; head < 5; ++head) {  // three of the queries, two of the keys
      for (std::size_t pair = 0; pair < 3; ++pair) {
        const double angle = static_cast<double>(token % 5) * std::pow(100.0, -2.0 * static_cast<double>(pair) / 6);
        const auto u = static_cast<double>(before[token * 42 + head * 6 + pair]),
                   v = static_cast<double>(before[token * 42 + head * 6 + 3 + pair]);
        const float* const turned = head < 3 ? &query[token * 18 + head * 6] : &key[token * 12 + (head - 3) * 6];
        EXPECT_NEAR(static_cast<double>(turned[pair]), u * std::cos(angle) - v * std::sin(angle), 1e-6);
        EXPECT_NEAR(static_cast<double>(turned[3 + pair]), v * std::cos(angle) + u * std::sin(angle), 1e-6);
      }
    }
  }
  // Backward reads head-major tensors.
  const auto head_major = [&](const std::vector<float>& rows, std::size_t heads) {
    std::vector<float> found(rows.size());
    for (std::size_t token = 0; token < tokens; ++token) {
      for (std::size_t head = 0; head < heads; ++head) {
        for (std::size_t i = 0; i < 6; ++i)
          found[((token / 5 * heads + head) * 5 + token % 5) * 6 + i] = rows[(token * heads + head) * 6 + i];
      }
    }
    return operands.add(found);
  };
  RotaryBackwardCall backward{.query = head_major(query, 3), .key = head_major(key, 2)};
  backward.value = head_major(operands.values(call.value), 2);
  backward.joint = operands.zero(joint);
  backward.shape = shape;
  run(backward, operands.addresses(), table);
  const std::vector<float> after = operands.values(backward.joint);
  for (std::size_t i = 0; i < joint; ++i) EXPECT_NEAR(after[i], before[i], 1e-6F);
}

// Step 3 of one weight: m = 0.9 * 0.5 + 0.1 * 2, v = 0.95 * 0.25 + 0.05 * 4.
TEST(CpuKernels, AdamWIsTheFormula) {
  FloatOperands operands;
  const AdamWCall call{.gradient = operands.add({2}), .weight = operands.add({3}), .moments = operands.add({0.5F, 0.25F}), .count = 1};
  const AdamWSettings settings{.learning_rate = 0.1F, .beta1 = 0.9F, .beta2 = 0.95F, .epsilon = 1e-8F, .weight_decay = 0.2F};
  run(call, operands.addresses(), settings, 3);
  const double m = 0.65, v = 0.4375, direction = m / (1 - std::pow(0.9, 3)) / std::sqrt(v / (1 - std::pow(0.95, 3)));
  EXPECT_NEAR(operands.values(call.moments)[0], m, 1e-6);
  EXPECT_NEAR(operands.values(call.moments)[1], v, 1e-6);
  EXPECT_NEAR(operands.values(call.weight)[0], 3 - 0.1 * (direction + 0.2 * 3), 1e-5);
}

TEST(CpuKernels, ClipsByTheNormOfAllGradients) {
  FloatOperands operands;
  const Tensor first = operands.add({3, 0}), second = operands.add({4});
  const double squares = squared_norm({.gradients = {first, second}}, operands.addresses());
  EXPECT_DOUBLE_EQ(squares, 25);
  clip({.gradients = {first, second}, .most = 10}, operands.addresses(), 5);
  EXPECT_EQ(operands.values(second)[0], 4);  // below the limit: as it was
  clip({.gradients = {first, second}, .most = 1}, operands.addresses(), 5);
  EXPECT_NEAR(operands.values(first)[0], 3.0 / 5, 1e-6);
  EXPECT_NEAR(operands.values(second)[0], 4.0 / 5, 1e-6);
}

TEST(CpuKernels, NoBitDependsOnWhereOperandsLie) {
  constexpr std::int64_t kRows = 6, kColumns = 53;
  std::vector<std::vector<float>> aligned;
  for (std::size_t shift = 0; shift < 16; ++shift) {
    FloatOperands operands(shift);
    const auto whole = [&] { return operands.random(kRows * kColumns); };
    const auto empty = [&](std::int64_t count) { return operands.zero(static_cast<std::size_t>(count)); };
    const Tensor input = whole(), gradient = whole(), gain = operands.random(kColumns);
    const Tensor norm = empty(kRows * kColumns), statistics = empty(2 * kRows), gelu = empty(kRows * kColumns),
                 silu = empty(kRows * kColumns);
    const Tensor softmax = empty(kRows * kColumns), norm_gradient = empty(kRows * kColumns), sums = empty(kColumns), maximum = empty(kRows);
    const StorageAddresses& addresses = operands.addresses();
    run(NormCall{.input = input,
                 .gain = gain,
                 .output = norm,
                 .statistics = statistics,
                 .rows = kRows,
                 .columns = kColumns,
                 .centred = true,
                 .epsilon = 1e-5F},
        addresses);
    run(NormBackwardCall{gradient, input, gain, statistics, norm_gradient, kRows, kColumns, true}, addresses);
    run(ActivationCall{input, gelu, kRows * kColumns, ActivationKind::kGelu}, addresses);
    run(ActivationCall{input, silu, kRows * kColumns, ActivationKind::kSilu}, addresses);
    run(AttentionSoftmaxCall{input, softmax, 1, kRows, kColumns, 0.5F, false}, addresses);
    run(BiasGradientCall{gradient, sums, kRows, kColumns}, addresses);
    run(LossMaximumCall{input, maximum, kRows, kColumns}, addresses);
    std::vector<std::vector<float>> found;
    for (const Tensor& each : {norm, statistics, norm_gradient, gelu, silu, softmax, sums, maximum}) found.push_back(operands.values(each));
    if (shift == 0) aligned = found;
    EXPECT_EQ(found, aligned) << shift;
  }
}

}  // namespace stepsim::cpu
