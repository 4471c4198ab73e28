// LayerNorm and RMSNorm of the CPU against double precision, their gradients against differences of it.
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "hardware/backends/cpu/norm.h"
#include "tests/backends/cpu_kernels_operands.h"

namespace stepsim::cpu {
namespace {

// Some ten roundings of 6e-8 each; sums are in fp64.
constexpr double kNormTolerance = 2e-6;
constexpr double kNormEpsilon = 1e-3;  // large enough to show

struct NormSizes {
  std::size_t rows = 0, columns = 0;
};
const std::vector<NormSizes> kNormSizes = {{1, 1}, {1, 5}, {3, 1}, {4, 16}, {5, 37}, {2, 130}};

struct NormReference {
  std::vector<double> output, means, scales;
};

NormReference norm_reference(const std::vector<double>& input, const std::vector<double>& gain, const std::vector<double>& bias,
                             bool centred) {
  NormReference found;
  const std::size_t columns = gain.size();
  for (std::size_t first = 0; first < input.size(); first += columns) {
    double mean = 0, squares = 0;
    for (std::size_t i = 0; centred && i < columns; ++i) mean += input[first + i] / static_cast<double>(columns);
    for (std::size_t i = 0; i < columns; ++i) squares += (input[first + i] - mean) * (input[first + i] - mean);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(columns) + kNormEpsilon);
    found.means.push_back(mean);
    found.scales.push_back(scale);
    for (std::size_t i = 0; i < columns; ++i) found.output.push_back((input[first + i] - mean) * scale * gain[i] + bias[i]);
  }
  return found;
}

struct NormOperands {
  CpuOperands operands{};
  std::int64_t rows = 0, columns = 0;
  bool centred = false;
  Tensor input{}, gain{}, bias{}, gradient{}, statistics{};

  NormOperands(const NormSizes& sizes, bool is_centred, std::int64_t shift = 0)
      : operands(shift),
        rows(static_cast<std::int64_t>(sizes.rows)),
        columns(static_cast<std::int64_t>(sizes.columns)),
        centred(is_centred),
        input(operands.random(rows * columns, -1, 3)),
        gain(operands.random(columns)),
        bias(operands.random(columns)),
        gradient(operands.random(rows * columns)),
        statistics(operands.blank(centred ? 2 * rows : rows)) {}

  Tensor forward(bool with_bias) {
    const Tensor output = operands.blank(rows * columns);
    NormCall call{.input = input, .gain = gain, .output = output, .statistics = statistics};
    if (with_bias) call.bias = bias;
    call.rows = rows, call.columns = columns, call.centred = centred, call.epsilon = static_cast<float>(kNormEpsilon);
    run(call, operands.addresses());
    return output;
  }
  NormWeightGradientCall weight_gradient(bool with_bias, bool accumulate) {
    NormWeightGradientCall call{.output_gradient = gradient, .input = input, .statistics = statistics};
    call.gain_gradient = accumulate ? operands.random(columns) : operands.blank(columns);
    if (with_bias) call.bias_gradient = accumulate ? operands.random(columns) : operands.blank(columns);
    call.rows = rows, call.columns = columns, call.centred = centred, call.accumulate = accumulate;
    return call;
  }
};

TEST(CpuKernelNorm, Forward) {
  for (const NormSizes& sizes : kNormSizes) {
    for (int variant = 0; variant < 4; ++variant) {
      const bool centred = (variant & 1) != 0, with_bias = (variant & 2) != 0;
      SCOPED_TRACE(testing::Message() << sizes.rows << " x " << sizes.columns << ", variant " << variant);
      NormOperands norm(sizes, centred);
      const Tensor output = norm.forward(with_bias);
      const std::vector<double> none(sizes.columns, 0.0);
      const NormReference wanted = norm_reference(norm.operands.doubles(norm.input), norm.operands.doubles(norm.gain),
                                                  with_bias ? norm.operands.doubles(norm.bias) : none, centred);
      expect_close(norm.operands.doubles(output), wanted.output, kNormTolerance);
      std::vector<double> statistics = centred ? wanted.means : std::vector<double>{};
      statistics.insert(statistics.end(), wanted.scales.begin(), wanted.scales.end());
      expect_close(norm.operands.doubles(norm.statistics), statistics, kNormTolerance);
    }
  }
}

// A variance that is small beside the mean: the difference of mean squares would be nothing but rounding.
TEST(CpuKernelNorm, SmallVarianceBesideALargeMean) {
  CpuOperands operands;
  std::vector<float> input(64);
  for (std::size_t i = 0; i < input.size(); ++i) input[i] = 4096.0F + (i % 2 == 0 ? 0.5F : -0.5F);
  const NormCall call{.input = operands.floats(input),
                      .gain = operands.floats(std::vector<float>(64, 1.0F)),
                      .output = operands.blank(64),
                      .statistics = operands.blank(2),
                      .rows = 1,
                      .columns = 64,
                      .centred = true};
  run(call, operands.addresses());
  for (std::size_t i = 0; i < input.size(); ++i) EXPECT_EQ(operands.values<float>(call.output)[i], i % 2 == 0 ? 1.0F : -1.0F);
  EXPECT_EQ(operands.values<float>(call.statistics), (std::vector<float>{4096.0F, 2.0F}));
}

TEST(CpuKernelNorm, InputGradient) {
  for (const NormSizes& sizes : kNormSizes) {
    for (const bool centred : {false, true}) {
      SCOPED_TRACE(testing::Message() << sizes.rows << " x " << sizes.columns << (centred ? ", centred" : ""));
      NormOperands norm(sizes, centred);
      norm.forward(false);
      const Tensor found = norm.operands.blank(norm.rows * norm.columns);
      run(NormBackwardCall{norm.gradient, norm.input, norm.gain, norm.statistics, found, norm.rows, norm.columns, centred},
          norm.operands.addresses());
      const std::vector<double> gain = norm.operands.doubles(norm.gain), gradient = norm.operands.doubles(norm.gradient);
      const std::vector<double> none(sizes.columns, 0.0);
      const auto objective = [&](const std::vector<double>& input) {
        return dot(norm_reference(input, gain, none, centred).output, gradient);
      };
      const std::vector<double> wanted = central_differences(objective, norm.operands.doubles(norm.input));
      if (sizes.columns == 1) {
        // Differences of nearly nothing: one column, centred, is always 0, and else x / sqrt(x^2 + epsilon) is nearly constant.
        for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(norm.operands.doubles(found)[i], wanted[i], 1e-4);
      } else {
        expect_close(norm.operands.doubles(found), wanted, 5 * kNormTolerance);  // a difference of three terms, roundings of each
      }
    }
  }
}

TEST(CpuKernelNorm, WeightGradients) {
  for (const NormSizes& sizes : kNormSizes) {
    for (int variant = 0; variant < 8; ++variant) {
      const bool centred = (variant & 1) != 0, with_bias = (variant & 2) != 0, accumulate = (variant & 4) != 0;
      if (centred && sizes.columns == 1) continue;  // the output is 0: so is the gradient, but for the mean's rounding
      SCOPED_TRACE(testing::Message() << sizes.rows << " x " << sizes.columns << ", variant " << variant);
      NormOperands norm(sizes, centred);
      norm.forward(false);
      const NormWeightGradientCall call = norm.weight_gradient(with_bias, accumulate);
      const std::vector<double> input = norm.operands.doubles(norm.input), gradient = norm.operands.doubles(norm.gradient);
      const std::vector<double> gain = norm.operands.doubles(norm.gain), bias = norm.operands.doubles(norm.bias);
      std::vector<double> wanted_gain = central_differences(
          [&](const std::vector<double>& with) { return dot(norm_reference(input, with, bias, centred).output, gradient); }, gain);
      std::vector<double> wanted_bias = central_differences(
          [&](const std::vector<double>& with) { return dot(norm_reference(input, gain, with, centred).output, gradient); }, bias);
      for (std::size_t i = 0; accumulate && i < sizes.columns; ++i) {
        wanted_gain[i] += norm.operands.doubles(call.gain_gradient)[i];
        if (with_bias) wanted_bias[i] += norm.operands.doubles(*call.bias_gradient)[i];
      }
      run(call, norm.operands.addresses());
      expect_close(norm.operands.doubles(call.gain_gradient), wanted_gain, kNormTolerance);
      if (with_bias) expect_close(norm.operands.doubles(*call.bias_gradient), wanted_bias, kNormTolerance);
    }
  }
}

// Running fp32 sums of 2^17 terms of one sign would be off by some 1e-4; blocks of 32 rows, added in fp64, by a few roundings.
TEST(CpuKernelNorm, WeightGradientsOfManyRows) {
  const std::int64_t rows = 1 << 17, columns = 3;
  CpuOperands operands;
  const NormWeightGradientCall call{.output_gradient = operands.random(rows * columns, 0.1F, 1),
                                    .input = operands.random(rows * columns, 0.1F, 1),
                                    .statistics = operands.random(rows, 0.5F, 1),
                                    .gain_gradient = operands.blank(columns),
                                    .bias_gradient = operands.blank(columns),
                                    .rows = rows,
                                    .columns = columns};
  run(call, operands.addresses());
  const std::vector<double> gradient = operands.doubles(call.output_gradient), input = operands.doubles(call.input);
  const std::vector<double> scale = operands.doubles(call.statistics);
  std::vector<double> gains(3, 0.0), biases(3, 0.0);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gains[i % 3] += gradient[i] * input[i] * scale[i / 3];
    biases[i % 3] += gradient[i];
  }
  expect_close(operands.doubles(call.gain_gradient), gains, 5e-7);
  expect_close(operands.doubles(*call.bias_gradient), biases, 5e-7);
}

TEST(CpuKernelNorm, SameBitsAtAnyAddress) {
  for (const NormSizes& sizes : {NormSizes{3, 1}, NormSizes{70, 37}}) {
    for (const bool centred : {false, true}) {
      std::vector<std::byte> wanted;
      for (std::int64_t shift = 0; shift < 17; ++shift) {  // the last one: the first again
        NormOperands norm(sizes, centred, shift % 16);
        const Tensor output = norm.forward(true), input_gradient = norm.operands.blank(norm.rows * norm.columns);
        run(NormBackwardCall{norm.gradient, norm.input, norm.gain, norm.statistics, input_gradient, norm.rows, norm.columns, centred},
            norm.operands.addresses());
        const NormWeightGradientCall weights = norm.weight_gradient(true, true);
        run(weights, norm.operands.addresses());
        const std::vector<std::byte> found =
            norm.operands.contents({output, norm.statistics, input_gradient, weights.gain_gradient, *weights.bias_gradient});
        if (shift == 0) wanted = found;
        EXPECT_TRUE(found == wanted) << "operands " << shift << " elements off";
      }
    }
  }
}

TEST(CpuKernelNorm, OtherTypesAreRefused) {
  const StorageAddresses none;
  EXPECT_THROW(run(NormCall{.elements = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(run(NormBackwardCall{.elements = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(run(NormWeightGradientCall{.elements = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(run(NormWeightGradientCall{.gradients = DType::kBf16}, none), std::logic_error);
}

}  // namespace
}  // namespace stepsim::cpu
