// Gradient norm, clipping and AdamW of the CPU against double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "hardware/backends/cpu/adamw.h"
#include "hardware/backends/cpu/gradient.h"
#include "tests/backends/cpu_kernels_operands.h"

namespace stepsim::cpu {
namespace {

// A million squares in fp64: sixteen lanes of 62500 terms, each off by 1e-16 of the sum at most.
TEST(CpuKernelGradientNorm, IsASumInDoublePrecision) {
  CpuOperands operands;
  const GradientNormCall call{{operands.random(1000003), operands.random(1), operands.random(37)}};
  double wanted = 0;
  for (const Tensor& tensor : call.gradients) {
    const std::vector<double> gradient = operands.doubles(tensor);
    wanted += dot(gradient, gradient);
  }
  EXPECT_NEAR(squared_norm(call, operands.addresses()), wanted, 1e-11 * wanted);
  EXPECT_EQ(squared_norm(GradientNormCall{}, operands.addresses()), 0.0);
}

TEST(CpuKernelGradientNorm, SquaresBeyondTheRangeOfSinglePrecision) {
  CpuOperands operands;
  const double large = squared_norm(GradientNormCall{{operands.floats({3e30F, 4e30F})}}, operands.addresses());
  EXPECT_NEAR(large, 25e60, 25e54);  // the inputs are rounded: 1e-7 each
  const double small = squared_norm(GradientNormCall{{operands.floats({3e-30F, 4e-30F})}}, operands.addresses());
  EXPECT_NEAR(small, 25e-60, 25e-66);
}

TEST(CpuKernelGradientClip, ScalesToTheMost) {
  for (const std::int64_t count : {1, 5, 16, 1003}) {
    CpuOperands operands;
    const GradientClipCall call{{operands.random(count), operands.random(3)}, 0.5F};
    std::vector<std::vector<double>> wanted;
    for (const Tensor& tensor : call.gradients) wanted.push_back(operands.doubles(tensor));
    const double norm = std::sqrt(squared_norm(GradientNormCall{call.gradients}, operands.addresses())), factor = 0.5 / (norm + 1e-6);
    ASSERT_LT(factor, 1.0);
    clip(call, operands.addresses(), norm);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      for (double& value : wanted[i]) value *= factor;
      expect_close(operands.doubles(call.gradients[i]), wanted[i], 3e-7);  // the factor and the product are rounded
    }
  }
}

TEST(CpuKernelGradientClip, LeavesWhatIsSmallerAlone) {
  CpuOperands operands;
  const GradientClipCall call{{operands.random(37)}, 2.0F};
  const std::vector<float> before = operands.values<float>(call.gradients[0]);
  for (const double norm : {0.0, 1.0, 1.99999}) {
    clip(call, operands.addresses(), norm);
    EXPECT_EQ(operands.values<float>(call.gradients[0]), before);
  }
}

struct AdamWState {
  std::vector<double> weight, first, second;
};

// arXiv 1711.05101, algorithm 2, with the decay times the learning rate as in torch.optim.AdamW.
void step_reference(AdamWState& state, const std::vector<double>& gradient, const AdamWSettings& settings, std::int64_t step) {
  const double beta1 = settings.beta1, beta2 = settings.beta2, rate = settings.learning_rate;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    state.first[i] = beta1 * state.first[i] + (1 - beta1) * gradient[i];
    state.second[i] = beta2 * state.second[i] + (1 - beta2) * gradient[i] * gradient[i];
    const double first = state.first[i] / (1 - std::pow(beta1, static_cast<double>(step)));
    const double second = state.second[i] / (1 - std::pow(beta2, static_cast<double>(step)));
    state.weight[i] -= rate * static_cast<double>(settings.weight_decay) * state.weight[i];
    state.weight[i] -= rate * first / (std::sqrt(second) + static_cast<double>(settings.epsilon));
  }
}

TEST(CpuKernelGradientClip, ANormThatIsNoNumberShows) {
  std::vector<float> gradient = {1, 2};
  StorageAddresses addresses;
  addresses.base = {reinterpret_cast<std::byte*>(gradient.data())};
  clip({.gradients = {{StorageId{0}, Bytes(0), Bytes(8)}}, .most = 1}, addresses, std::nan(""));
  EXPECT_TRUE(std::isnan(gradient[0]));
}

TEST(CpuKernelAdamW, FollowsTheAlgorithm) {
  for (const std::int64_t count : {1, 5, 16, 1003}) {
    CpuOperands operands;
    const AdamWSettings settings{.learning_rate = 0.05F, .beta1 = 0.8F, .beta2 = 0.97F, .epsilon = 1e-3F, .weight_decay = 0.2F};
    AdamWCall call{.weight = operands.random(count), .count = count};
    call.moments = operands.floats(std::vector<float>(static_cast<std::size_t>(2 * count), 0.0F));
    AdamWState state{operands.doubles(call.weight), std::vector<double>(static_cast<std::size_t>(count), 0.0), {}};
    state.second = state.first;
    for (std::int64_t step = 1; step <= 5; ++step) {
      call.gradient = operands.random(count);
      run(call, operands.addresses(), settings, step);
      step_reference(state, operands.doubles(call.gradient), settings, step);
    }
    std::vector<double> moments = state.first;
    moments.insert(moments.end(), state.second.begin(), state.second.end());
    // Five steps of some ten roundings, 6e-8 each, and 1 - beta2, which fp32 has to 1e-6 of itself: 0.97 is 3e-8 off.
    expect_close(operands.doubles(call.moments), moments, 5e-6);
    expect_close(operands.doubles(call.weight), state.weight, 5e-6);
  }
}

// The first step is as long as the learning rate, whatever the gradient: m / sqrt(v) of one gradient is its sign.
TEST(CpuKernelAdamW, FirstStep) {
  CpuOperands operands;
  const AdamWCall call{.gradient = operands.floats({1e-3F, -20, 0}),
                       .weight = operands.floats({1, 1, 1}),
                       .moments = operands.floats({0, 0, 0, 0, 0, 0}),
                       .count = 3};
  run(call, operands.addresses(), AdamWSettings{.learning_rate = 0.25F, .epsilon = 1e-12F, .weight_decay = 0}, 1);
  const std::vector<double> weight = operands.doubles(call.weight);
  EXPECT_NEAR(weight[0], 0.75, 1e-6);
  EXPECT_NEAR(weight[1], 1.25, 1e-6);
  EXPECT_EQ(weight[2], 1.0);
}

TEST(CpuKernelAdamW, SameBitsAtAnyAddress) {
  for (const std::int64_t count : {1, 3, 1003}) {
    expect_same_bits_at_any_address([&](CpuOperands& operands) {
      const Tensor gradient = operands.random(count), weight = operands.random(count), moments = operands.random(2 * count, 0, 1);
      run(AdamWCall{.gradient = gradient, .weight = weight, .moments = moments, .count = count}, operands.addresses(), AdamWSettings{}, 7);
      const double sum = squared_norm(GradientNormCall{{gradient, moments}}, operands.addresses());
      clip(GradientClipCall{{gradient}, 0.1F}, operands.addresses(), std::sqrt(sum));
      std::vector<std::byte> found = operands.contents({gradient, weight, moments});
      const auto* const bits = reinterpret_cast<const std::byte*>(&sum);
      found.insert(found.end(), bits, bits + sizeof(sum));
      return found;
    });
  }
}

TEST(CpuKernelAdamW, WhatItHasNoCodeForIsRefused) {
  const StorageAddresses none;
  EXPECT_THROW(run(AdamWCall{.elements = DType::kBf16}, none, AdamWSettings{}, 1), std::logic_error);
  EXPECT_THROW(run(AdamWCall{.gradients = DType::kBf16}, none, AdamWSettings{}, 1), std::logic_error);
  EXPECT_THROW(run(AdamWCall{.master = Tensor{}}, none, AdamWSettings{}, 1), std::logic_error);
  EXPECT_THROW(squared_norm(GradientNormCall{.type = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(clip(GradientClipCall{.type = DType::kBf16}, none, 1), std::logic_error);
}

}  // namespace
}  // namespace stepsim::cpu
