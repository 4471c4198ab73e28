// Softmax of attention scores of the CPU against double precision, its gradient against differences of it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "hardware/backends/cpu/attention_softmax.h"
#include "tests/backends/cpu_kernels_operands.h"

namespace stepsim::cpu {
namespace {

// The exponential is good to 1e-7, its argument to 6e-8 of scores of a few units; sums in sixteen lanes add a few roundings.
constexpr double kSoftmaxTolerance = 2e-6;
constexpr float kSoftmaxScale = 0.75F;

struct ScoreSizes {
  std::int64_t matrices = 0, queries = 0, keys = 0;
  bool causal = false;
  std::int64_t count() const { return matrices * queries * keys; }
  bool sees(std::int64_t i) const { return !causal || i % keys <= i / keys % queries; }
};
const std::vector<ScoreSizes> kScoreSizes = {{1, 1, 1, false}, {1, 1, 1, true},   {2, 3, 5, false},  {3, 1, 37, false},
                                             {2, 7, 7, true},  {1, 37, 37, true}, {2, 4, 130, false}};

std::vector<double> softmax_reference(const std::vector<double>& scores, const ScoreSizes& sizes) {
  std::vector<double> found(scores.size(), 0.0);
  for (std::int64_t first = 0; first < sizes.count(); first += sizes.keys) {
    double sum = 0;
    for (std::int64_t pass = 0; pass < 2; ++pass) {
      for (std::int64_t i = first; i < first + sizes.keys; ++i) {
        if (!sizes.sees(i)) continue;
        const double weight = std::exp(static_cast<double>(kSoftmaxScale) * scores[static_cast<std::size_t>(i)]);
        if (pass == 0) sum += weight;
        if (pass == 1) found[static_cast<std::size_t>(i)] = weight / sum;
      }
    }
  }
  return found;
}

// Scores that no query sees are NaN: they are read by none.
Tensor random_scores(CpuOperands& operands, const ScoreSizes& sizes) {
  std::vector<float> scores = operands.values<float>(operands.random(sizes.count(), -4, 4));
  for (std::int64_t i = 0; i < sizes.count(); ++i) {
    if (!sizes.sees(i)) scores[static_cast<std::size_t>(i)] = std::numeric_limits<float>::quiet_NaN();
  }
  return operands.floats(scores);
}

TEST(CpuKernelSoftmax, Forward) {
  for (const ScoreSizes& sizes : kScoreSizes) {
    SCOPED_TRACE(testing::Message() << sizes.matrices << " x " << sizes.queries << " x " << sizes.keys);
    CpuOperands operands;
    const AttentionSoftmaxCall call{random_scores(operands, sizes),
                                    operands.blank(sizes.count()),
                                    sizes.matrices,
                                    sizes.queries,
                                    sizes.keys,
                                    kSoftmaxScale,
                                    sizes.causal};
    run(call, operands.addresses());
    const std::vector<double> found = operands.doubles(call.output);
    expect_close(found, softmax_reference(operands.doubles(call.scores), sizes), kSoftmaxTolerance);
    for (std::int64_t i = 0; i < sizes.count(); ++i) {
      if (!sizes.sees(i)) {
        ASSERT_EQ(found[static_cast<std::size_t>(i)], 0.0);
      }
    }
  }
}

// Scores far apart neither overflow nor leave anything but the largest.
TEST(CpuKernelSoftmax, ScoresFarApart) {
  CpuOperands operands;
  const AttentionSoftmaxCall call{operands.floats({1e4F, -1e4F, 0, -3e38F, 3e38F, 3e38F}), operands.blank(6), 1, 2, 3, 1.0F, false};
  run(call, operands.addresses());
  const std::vector<float> found = operands.values<float>(call.output);
  EXPECT_EQ(found[0], 1.0F);
  EXPECT_EQ(found[4], 0.5F);
  EXPECT_EQ(found[5], 0.5F);
  for (const std::size_t none : {1U, 2U, 3U}) {
    EXPECT_GE(found[none], 0.0F);
    EXPECT_LT(found[none], 2e-38F);
  }
}

TEST(CpuKernelSoftmax, Backward) {
  for (const ScoreSizes& sizes : kScoreSizes) {
    SCOPED_TRACE(testing::Message() << sizes.matrices << " x " << sizes.queries << " x " << sizes.keys);
    CpuOperands operands;
    const Tensor scores = random_scores(operands, sizes), softmax = operands.blank(sizes.count());
    const Tensor gradient = random_scores(operands, sizes), found = operands.blank(sizes.count());
    run(AttentionSoftmaxCall{scores, softmax, sizes.matrices, sizes.queries, sizes.keys, kSoftmaxScale, sizes.causal},
        operands.addresses());
    run(AttentionSoftmaxBackwardCall{softmax, gradient, found, sizes.matrices, sizes.queries, sizes.keys, kSoftmaxScale, sizes.causal},
        operands.addresses());
    std::vector<double> weights = operands.doubles(gradient), places = operands.doubles(scores);
    for (std::int64_t i = 0; i < sizes.count(); ++i) {
      if (!sizes.sees(i)) weights[static_cast<std::size_t>(i)] = places[static_cast<std::size_t>(i)] = 0;
    }
    const auto objective = [&](const std::vector<double>& at) { return dot(softmax_reference(at, sizes), weights); };
    const std::vector<double> wanted = central_differences(objective, places);
    if (sizes.keys == 1) {
      for (const double slope : operands.doubles(found)) EXPECT_NEAR(slope, 0.0, 1e-6);  // a softmax of one score is 1
    } else {
      expect_close(operands.doubles(found), wanted, 3 * kSoftmaxTolerance);  // differences from a mean
    }
  }
}

TEST(CpuKernelSoftmax, SameBitsAtAnyAddress) {
  for (const ScoreSizes& sizes : kScoreSizes) {
    expect_same_bits_at_any_address([&](CpuOperands& operands) {
      const Tensor scores = operands.random(sizes.count()), softmax = operands.blank(sizes.count());
      const Tensor gradient = operands.random(sizes.count()), back = operands.blank(sizes.count());
      run(AttentionSoftmaxCall{scores, softmax, sizes.matrices, sizes.queries, sizes.keys, kSoftmaxScale, sizes.causal},
          operands.addresses());
      run(AttentionSoftmaxBackwardCall{softmax, gradient, back, sizes.matrices, sizes.queries, sizes.keys, kSoftmaxScale, sizes.causal},
          operands.addresses());
      return operands.contents({softmax, back});
    });
  }
}

TEST(CpuKernelSoftmax, OtherTypesAreRefused) {
  const StorageAddresses none;
  EXPECT_THROW(run(AttentionSoftmaxCall{.elements = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(run(AttentionSoftmaxBackwardCall{.elements = DType::kBf16}, none), std::logic_error);
}

}  // namespace
}  // namespace stepsim::cpu
