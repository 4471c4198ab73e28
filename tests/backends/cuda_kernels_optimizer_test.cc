// The gradient norm, clipping and AdamW of the CUDA kernels, run on the host.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "hardware/backends/cuda/adamw.cuh"
#include "hardware/backends/cuda/gradient_norm.cuh"
#include "tests/backends/cuda_kernels_operands.h"

namespace stepsim::cuda {
namespace {

// Counts: one element; a rest behind packs; exactly one part of 2^15; a second and third part.
constexpr std::int64_t kGradientCounts[] = {1, 2051, 1 << 15, 70001};

double squares_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return sum;
}

TEST(CudaKernelGradientNorm, SumOfSquaresAndClip) {
  for_kernel_variants(false, [](KernelVariant variant) {
    for (const float most : {1.0F, 1e9F}) {
      CallOperands operands(variant.aligned);
      GradientNormCall norm{.type = variant.elements};
      std::vector<std::vector<double>> before;
      double squares = 0;
      for (const std::int64_t count : kGradientCounts) {
        norm.gradients.push_back(operands.random(count, variant.elements));
        before.push_back(operands.values(norm.gradients.back(), variant.elements));
        squares += squares_of(before.back());
      }
      const Tensor squared_norm = operands.blank(1, DType::kFp32);
      operands.run(scratch_bytes(norm), [&](const StorageAddresses& addresses, Scratch scratch, Stream stream) {
        run(norm, addresses, addresses.of<float>(squared_norm), scratch, stream);
      });
      expect_close(operands.values(squared_norm, DType::kFp32), {squares}, DType::kFp32);
      const GradientClipCall clip{norm.gradients, most, variant.elements};
      operands.run(0, [&](const StorageAddresses& addresses, Scratch, Stream stream) {
        run(clip, addresses, addresses.of<float>(squared_norm), stream);
      });
      const double factor = std::min(1.0, double{most} / (std::sqrt(squares) + 1e-6));
      for (std::size_t i = 0; i < before.size(); ++i) {
        for (double& value : before[i]) value *= factor;
        expect_close(operands.values(clip.gradients[i], variant.elements), before[i], variant.elements);
      }
    }
  });
}

TEST(CudaKernelGradientNorm, NoGradientsAndNoNumber) {
  CallOperands operands;
  const Tensor squared_norm = operands.blank(1, DType::kFp32), gradient = operands.random(5, DType::kFp32);
  const GradientClipCall clip{{gradient}, 1, DType::kFp32};
  operands.run(0, [&](const StorageAddresses& addresses, Scratch, Stream stream) {
    run(clip, addresses, addresses.of<float>(squared_norm), stream);  // NaN
  });
  for (const double value : operands.values(gradient, DType::kFp32)) EXPECT_TRUE(std::isnan(value));
  operands.run(0, [&](const StorageAddresses& addresses, Scratch scratch, Stream stream) {
    run(GradientNormCall{}, addresses, addresses.of<float>(squared_norm), scratch, stream);
  });
  EXPECT_EQ(operands.values(squared_norm, DType::kFp32), std::vector<double>{0});
}

struct AdamWCase {
  std::int64_t count = 0, step = 1;
  bool with_master = false;
};

void check_adamw(KernelVariant variant, const AdamWCase& at) {
  CallOperands operands(variant.aligned);
  AdamWCall call{.gradient = operands.random(at.count, variant.gradients),
                 .weight = operands.random(at.count, variant.elements),
                 .moments = operands.random(2 * at.count, DType::kFp32),
                 .count = at.count,
                 .elements = variant.elements,
                 .gradients = variant.gradients};
  std::vector<double> moments = operands.values(call.moments, DType::kFp32);
  const auto count = static_cast<std::size_t>(at.count);
  for (std::size_t i = count; i < 2 * count; ++i) {  // second moments are not negative
    moments[i] = std::abs(moments[i]);
    operands.set(call.moments, DType::kFp32, static_cast<std::int64_t>(i), static_cast<float>(moments[i]));
  }
  if (at.with_master) call.master = operands.random(at.count, DType::kFp32);
  std::vector<double> weights =
      at.with_master ? operands.values(*call.master, DType::kFp32) : operands.values(call.weight, variant.elements);
  const std::vector<double> g = operands.values(call.gradient, variant.gradients);
  const AdamWSettings settings{.learning_rate = 0.01F, .beta1 = 0.8F, .beta2 = 0.9F, .epsilon = 1e-3F, .weight_decay = 0.3F};
  operands.run(0, [&](const StorageAddresses& addresses, Scratch, Stream stream) { run(call, addresses, settings, at.step, stream); });
  const double beta1 = double{settings.beta1}, beta2 = double{settings.beta2}, step = static_cast<double>(at.step);
  for (std::size_t i = 0; i < count; ++i) {
    double &m = moments[i], &v = moments[count + i];
    m = beta1 * m + (1 - beta1) * g[i];
    v = beta2 * v + (1 - beta2) * g[i] * g[i];
    const double update = m / (1 - std::pow(beta1, step)) / (std::sqrt(v / (1 - std::pow(beta2, step))) + double{settings.epsilon});
    weights[i] -= double{settings.learning_rate} * (update + double{settings.weight_decay} * weights[i]);
  }
  expect_close(operands.values(call.moments, DType::kFp32), moments, DType::kFp32);
  expect_close(operands.values(call.weight, variant.elements), weights, variant.elements);
  if (at.with_master) expect_close(operands.values(*call.master, DType::kFp32), weights, DType::kFp32);
}

TEST(CudaKernelAdamW, Update) {
  for_kernel_variants(true, [](KernelVariant variant) {
    for (const std::int64_t count : {1, 16, 2051}) {
      for (const bool with_master : {false, true}) {
        check_adamw(variant, {count, 1, with_master});
        check_adamw(variant, {count, 7, with_master});
      }
    }
  });
}

// No moments, gradient 1, step 1: the corrected moments are 1, so the weight 2 becomes 2 - 0.5 (1 / (1 + 0) + 0.25 * 2) = 1.25.
TEST(CudaKernelAdamW, OneStepByHand) {
  CallOperands operands;
  const AdamWCall call{.gradient = operands.blank(1, DType::kFp32),
                       .weight = operands.blank(1, DType::kFp32),
                       .moments = operands.blank(2, DType::kFp32),
                       .count = 1};
  operands.set(call.gradient, DType::kFp32, 0, 1);
  operands.set(call.weight, DType::kFp32, 0, 2);
  for (const std::int64_t i : {0, 1}) operands.set(call.moments, DType::kFp32, i, 0);
  const AdamWSettings settings{.learning_rate = 0.5F, .beta1 = 0.5F, .beta2 = 0.75F, .epsilon = 0, .weight_decay = 0.25F};
  operands.run(0, [&](const StorageAddresses& addresses, Scratch, Stream stream) { run(call, addresses, settings, 1, stream); });
  EXPECT_EQ(operands.values(call.weight, DType::kFp32), std::vector<double>{1.25});
  EXPECT_EQ(operands.values(call.moments, DType::kFp32), (std::vector<double>{0.5, 0.25}));
}

}  // namespace
}  // namespace stepsim::cuda
