// Norms and biases of the CUDA kernels, run on the host, and the sums of their gradients over rows.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "hardware/backends/cuda/bias.cuh"
#include "hardware/backends/cuda/norm.cuh"
#include "tests/backends/cuda_kernels_operands.h"

namespace stepsim::cuda {
namespace {

struct NormCase {
  std::int64_t rows = 0, columns = 0;
  bool centred = false, with_bias = false;
};
// Columns: one; less than a pack; packs for less than the warp; more than the block's threads at a pack each, with a rest.
constexpr NormCase kNormCases[] = {{3, 1, true, true},    {2, 7, false, false},   {5, 24, true, true},   {5, 24, false, true},
                                   {2, 200, true, false}, {2, 200, false, false}, {1, 4104, true, true}, {1, 4107, false, false}};

struct NormReference {
  std::vector<double> output, means, scales, normalized;
};

NormReference norm_reference(const NormCase& norm, double epsilon, const std::vector<double>& input, const std::vector<double>& gain,
                             const std::vector<double>& bias) {
  NormReference result;
  const auto columns = static_cast<std::size_t>(norm.columns);
  for (std::size_t row = 0; row < static_cast<std::size_t>(norm.rows); ++row) {
    double mean = 0, variance = 0;
    for (std::size_t i = 0; i < columns && norm.centred; ++i) mean += input[row * columns + i] / static_cast<double>(columns);
    for (std::size_t i = 0; i < columns; ++i) variance += std::pow(input[row * columns + i] - mean, 2) / static_cast<double>(columns);
    result.means.push_back(mean);
    result.scales.push_back(1 / std::sqrt(variance + epsilon));
    for (std::size_t i = 0; i < columns; ++i) {
      result.normalized.push_back((input[row * columns + i] - mean) * result.scales.back());
      result.output.push_back(result.normalized.back() * gain[i] + (norm.with_bias ? bias[i] : 0));
    }
  }
  return result;
}

std::vector<double> norm_statistics(const NormCase& norm, const NormReference& reference) {
  std::vector<double> result = norm.centred ? reference.means : std::vector<double>{};
  result.insert(result.end(), reference.scales.begin(), reference.scales.end());
  return result;
}

// From the chain rule over all pairs of columns: d output_j / d input_i = gain_j (delta_ij - 1/n [centred] - x_i x_j / n) scale.
std::vector<double> norm_input_gradient(const NormCase& norm, const NormReference& reference, const std::vector<double>& gradient,
                                        const std::vector<double>& gain) {
  std::vector<double> result;
  const auto columns = static_cast<std::size_t>(norm.columns);
  const auto n = static_cast<double>(norm.columns);
  for (std::size_t row = 0; row < static_cast<std::size_t>(norm.rows); ++row) {
    double sum = 0, product = 0;
    for (std::size_t j = 0; j < columns; ++j) {
      const double g = gradient[row * columns + j] * gain[j];
      sum += norm.centred ? g : 0;
      product += g * reference.normalized[row * columns + j];
    }
    for (std::size_t i = 0; i < columns; ++i) {
      const double g = gradient[row * columns + i] * gain[i], x = reference.normalized[row * columns + i];
      result.push_back(reference.scales[row] * (g - sum / n - x * product / n));
    }
  }
  return result;
}

TEST(CudaKernelNorm, ForwardAndInputGradient) {
  for_kernel_variants(false, [](KernelVariant variant) {
    for (const NormCase& norm : kNormCases) {
      SCOPED_TRACE(std::to_string(norm.columns) + (norm.centred ? " centred" : ""));
      CallOperands operands(variant.aligned);
      const DType type = variant.elements;
      const std::int64_t count = norm.rows * norm.columns;
      NormCall call{.input = operands.random(count, type),
                    .gain = operands.random(norm.columns, type),
                    .output = operands.blank(count, type),
                    .statistics = operands.blank(norm.centred ? 2 * norm.rows : norm.rows, DType::kFp32),
                    .rows = norm.rows,
                    .columns = norm.columns,
                    .centred = norm.centred,
                    .epsilon = 0.1F,
                    .elements = type};
      if (norm.with_bias) call.bias = operands.random(norm.columns, type);
      const NormBackwardCall backward{.output_gradient = operands.random(count, type),
                                      .input = call.input,
                                      .gain = call.gain,
                                      .statistics = call.statistics,
                                      .input_gradient = operands.blank(count, type),
                                      .rows = norm.rows,
                                      .columns = norm.columns,
                                      .centred = norm.centred,
                                      .elements = type};
      operands.run_call(call);
      operands.run_call(backward);
      const std::vector<double> gain = operands.values(call.gain, type);
      const NormReference reference = norm_reference(norm, double{0.1F}, operands.values(call.input, type), gain,
                                                     norm.with_bias ? operands.values(*call.bias, type) : std::vector<double>{});
      expect_close(operands.values(call.output, type), reference.output, type);
      expect_close(operands.values(call.statistics, DType::kFp32), norm_statistics(norm, reference), DType::kFp32);
      expect_close(operands.values(backward.input_gradient, type),
                   norm_input_gradient(norm, reference, operands.values(backward.output_gradient, type), gain), type);
    }
  });
}

// Values 1000 + {0, 1}: mean 1000.5, variance 1/4. The mean of squares less the squared mean is 0.25 of 10^6: two digits in fp32.
TEST(CudaKernelNorm, VarianceFarFromZero) {
  CallOperands operands;
  const Tensor input = operands.blank(64, DType::kFp32), gain = operands.blank(64, DType::kFp32), output = operands.blank(64, DType::kFp32);
  const Tensor statistics = operands.blank(2, DType::kFp32);
  for (std::int64_t i = 0; i < 64; ++i) {
    operands.set(input, DType::kFp32, i, 1000 + static_cast<float>(i % 2));
    operands.set(gain, DType::kFp32, i, 1);
  }
  operands.run_call(NormCall{
      .input = input, .gain = gain, .output = output, .statistics = statistics, .rows = 1, .columns = 64, .centred = true, .epsilon = 0});
  EXPECT_EQ(operands.values(statistics, DType::kFp32), (std::vector<double>{1000.5, 2}));
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(operands.values(output, DType::kFp32)[i], i % 2 == 0 ? -1 : 1);
}

void check_norm_weights(KernelVariant variant, const NormCase& norm, bool accumulate) {
  CallOperands operands(variant.aligned);
  const DType type = variant.elements;
  const std::int64_t count = norm.rows * norm.columns;
  NormWeightGradientCall call{.output_gradient = operands.random(count, type),
                              .input = operands.random(count, type),
                              .statistics = operands.random(norm.centred ? 2 * norm.rows : norm.rows, DType::kFp32),
                              .gain_gradient = operands.random(norm.columns, variant.gradients),
                              .rows = norm.rows,
                              .columns = norm.columns,
                              .centred = norm.centred,
                              .accumulate = accumulate,
                              .elements = type,
                              .gradients = variant.gradients};
  if (norm.with_bias) call.bias_gradient = operands.random(norm.columns, variant.gradients);
  const std::vector<double> x = operands.values(call.input, type), g = operands.values(call.output_gradient, type);
  const std::vector<double> statistics = operands.values(call.statistics, DType::kFp32);
  const auto columns = static_cast<std::size_t>(norm.columns), rows = static_cast<std::size_t>(norm.rows);
  std::vector<double> gain(columns), bias(columns);
  if (accumulate) gain = operands.values(call.gain_gradient, variant.gradients);
  if (accumulate && norm.with_bias) bias = operands.values(*call.bias_gradient, variant.gradients);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t row = i / columns;
    const double mean = norm.centred ? statistics[row] : 0, scale = norm.centred ? statistics[rows + row] : statistics[row];
    gain[i % columns] += g[i] * (x[i] - mean) * scale;
    bias[i % columns] += g[i];
  }
  operands.run_call_with_scratch(call);
  expect_close(operands.values(call.gain_gradient, variant.gradients), gain, variant.gradients);
  if (norm.with_bias) expect_close(operands.values(*call.bias_gradient, variant.gradients), bias, variant.gradients);
}

// 150 rows are three slabs; 264 columns more than one block of 32 packs; 17000 rows slabs of 67 rows, 254 of them.
TEST(CudaKernelNorm, WeightGradients) {
  for_kernel_variants(true, [](KernelVariant variant) {
    for (const bool accumulate : {false, true}) {
      check_norm_weights(variant, {1, 1, true, true}, accumulate);
      check_norm_weights(variant, {150, 7, false, false}, accumulate);
      check_norm_weights(variant, {150, 264, true, true}, accumulate);
      check_norm_weights(variant, {64, 264, false, false}, accumulate);
    }
  });
  check_norm_weights({DType::kBf16, DType::kFp32, true}, {17000, 8, false, false}, false);
}

TEST(CudaKernelNorm, ScratchIsSmall) {
  EXPECT_EQ(scratch_bytes(NormWeightGradientCall{.rows = 64, .columns = 10}), 40);                              // one slab
  EXPECT_EQ(scratch_bytes(NormWeightGradientCall{.bias_gradient = Tensor{}, .rows = 65, .columns = 10}), 160);  // two of two sums
  EXPECT_EQ(scratch_bytes(BiasGradientCall{.rows = 1 << 20, .columns = 1000}), 256 * 4000);                     // at most 256 slabs
  CallOperands operands;
  const BiasGradientCall call{operands.random(80, DType::kFp32), operands.blank(8, DType::kFp32), 10, 8};
  const auto run_with_less = [&](const StorageAddresses& addresses, Scratch scratch, Stream stream) {
    run(call, addresses, Scratch{scratch.memory, scratch.bytes - 1}, stream);
  };
  EXPECT_THROW(operands.run(scratch_bytes(call), run_with_less), std::logic_error);
}

TEST(CudaKernelBias, ForwardAndGradient) {
  for_kernel_variants(true, [](KernelVariant variant) {
    for (const std::int64_t columns : {3, 16, 264}) {
      for (const bool accumulate : {false, true}) {
        CallOperands operands(variant.aligned);
        const std::int64_t rows = 70;  // two slabs
        const BiasCall call{operands.random(rows * columns, variant.elements),
                            operands.random(columns, variant.elements),
                            operands.blank(rows * columns, variant.elements),
                            rows,
                            columns,
                            variant.elements};
        const BiasGradientCall backward{
            call.input, operands.random(columns, variant.gradients), rows, columns, accumulate, variant.elements, variant.gradients};
        std::vector<double> outputs = operands.values(call.input, variant.elements), sums(static_cast<std::size_t>(columns));
        if (accumulate) sums = operands.values(backward.bias_gradient, variant.gradients);
        const std::vector<double> bias = operands.values(call.bias, variant.elements);
        for (std::size_t i = 0; i < outputs.size(); ++i) {
          sums[i % sums.size()] += outputs[i];
          outputs[i] += bias[i % sums.size()];
        }
        operands.run_call(call);
        operands.run_call_with_scratch(backward);
        expect_close(operands.values(call.output, variant.elements), outputs, variant.elements);
        expect_close(operands.values(backward.bias_gradient, variant.gradients), sums, variant.gradients);
      }
    }
  });
}

}  // namespace
}  // namespace stepsim::cuda
