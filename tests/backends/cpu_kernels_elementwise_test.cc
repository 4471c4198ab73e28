// Kernels of one pass of the CPU against double precision, gradients against differences of it.
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "hardware/backends/cpu/elementwise.h"
#include "tests/backends/cpu_kernels_operands.h"

namespace stepsim::cpu {
namespace {

const std::vector<std::int64_t> kElementCounts = {1, 3, 4, 5, 16, 37, 1003};

double activation_reference(ActivationKind kind, double x) {
  return kind == ActivationKind::kGelu ? 0.5 * x * std::erfc(-x / std::sqrt(2.0)) : x / (1 + std::exp(-x));
}

// Of values from -30 to 30, a thousandth apart, and the ends of what an fp32 can be.
std::vector<float> activation_inputs() {
  std::vector<float> inputs = {0.0F, -0.0F, 1e-30F, -1e-30F, 1e-42F, 88.5F, -88.5F, 104.0F, -104.0F, 1e10F, -1e10F, 3e38F, -3e38F};
  for (int i = -30000; i <= 30000; ++i) inputs.push_back(static_cast<float>(i) * 1e-3F);
  return inputs;
}

std::vector<double> activation_outputs(CpuOperands& operands, const Tensor& input, ActivationKind kind) {
  const std::int64_t count = input.size.value / 4;
  const ActivationCall call{input, operands.blank(count), count, kind};
  run(call, operands.addresses());
  return operands.doubles(call.output);
}

// The share of x that is left is good to 3e-7: exp to 1e-7, erf to 2e-7 more. Below -87, silu has e^-87 for e^x.
TEST(CpuKernelActivation, ForwardIsGoodToAFewRoundingsOfItsInput) {
  for (const ActivationKind kind : {ActivationKind::kGelu, ActivationKind::kSilu}) {
    CpuOperands operands;
    const Tensor input = operands.floats(activation_inputs());
    const std::vector<double> x = operands.doubles(input), found = activation_outputs(operands, input, kind);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(found[i], activation_reference(kind, x[i]), 3e-7 * std::abs(x[i])) << "of " << x[i];
    }
  }
}

// In the tail, where 1 + erf(x / sqrt(2)) would be all rounding: e^(-x^2 / 2) has the error of its exponent, 6e-8 of at most 15.
TEST(CpuKernelActivation, TailsAreGoodToAFewRoundingsOfThemselves) {
  for (const ActivationKind kind : {ActivationKind::kGelu, ActivationKind::kSilu}) {
    CpuOperands operands;
    const Tensor input = operands.random(10000, -5.5F, -0.01F);
    const std::vector<double> x = operands.doubles(input), found = activation_outputs(operands, input, kind);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double wanted = activation_reference(kind, x[i]);
      ASSERT_NEAR(found[i], wanted, 5e-6 * std::abs(wanted)) << "of " << x[i];
    }
  }
}

TEST(CpuKernelActivation, Backward) {
  for (const ActivationKind kind : {ActivationKind::kGelu, ActivationKind::kSilu}) {
    CpuOperands operands;
    const std::int64_t count = 4001;
    const ActivationBackwardCall call{operands.random(count, -8, 8), operands.random(count), operands.blank(count), count, kind};
    run(call, operands.addresses());
    const std::vector<double> x = operands.doubles(call.input), gradient = operands.doubles(call.output_gradient);
    const std::vector<double> found = operands.doubles(call.input_gradient);
    for (std::size_t i = 0; i < x.size(); ++i) {
      constexpr double kStep = 1e-5;
      const double slope = (activation_reference(kind, x[i] + kStep) - activation_reference(kind, x[i] - kStep)) / (2 * kStep);
      ASSERT_NEAR(found[i], gradient[i] * slope, 1e-6 * std::abs(gradient[i])) << "of " << x[i];  // the slope is at most 1.13
    }
  }
}

// Far out the slope is 1 or 0: what the clamped exponential, e^-87, leaves of 1e10 is nothing.
TEST(CpuKernelActivation, BackwardFarOut) {
  for (const ActivationKind kind : {ActivationKind::kGelu, ActivationKind::kSilu}) {
    CpuOperands operands;
    const ActivationBackwardCall call{operands.floats({100, 1e10F, -200, -1e10F}), operands.floats({2, 2, 2, 2}), operands.blank(4), 4,
                                      kind};
    run(call, operands.addresses());
    const std::vector<double> found = operands.doubles(call.input_gradient);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(found[i], i < 2 ? 2.0 : 0.0, 1e-20) << i;
  }
}

TEST(CpuKernelElementwise, SumAndGateProduct) {
  for (const std::int64_t count : kElementCounts) {
    CpuOperands operands;
    const Tensor a = operands.random(count), b = operands.random(count), gradient = operands.random(count);
    const GateProductCall product{a, b, operands.blank(count), count};
    const GateProductBackwardCall back{gradient, a, b, operands.blank(count), operands.blank(count), count};
    const AddCall add{a, operands.floats(operands.values<float>(b)), count};
    run(product, operands.addresses());
    run(back, operands.addresses());
    run(add, operands.addresses());
    const std::vector<float> of_a = operands.values<float>(a), of_b = operands.values<float>(b), of = operands.values<float>(gradient);
    for (std::size_t i = 0; i < of.size(); ++i) {
      ASSERT_EQ(operands.values<float>(product.output)[i], of_a[i] * of_b[i]);
      ASSERT_EQ(operands.values<float>(back.gate_gradient)[i], of[i] * of_b[i]);
      ASSERT_EQ(operands.values<float>(back.up_gradient)[i], of[i] * of_a[i]);
      ASSERT_EQ(operands.values<float>(add.sum)[i], of_b[i] + of_a[i]);
    }
  }
}

TEST(CpuKernelElementwise, SameBitsAtAnyAddress) {
  for (const std::int64_t count : kElementCounts) {
    expect_same_bits_at_any_address([&](CpuOperands& operands) {
      const Tensor a = operands.random(count, -100, 100), b = operands.random(count, -4, 4), sum = operands.random(count);
      std::vector<Tensor> written = {sum};
      for (int i = 0; i < 11; ++i) written.push_back(operands.blank(count));
      run(AddCall{a, sum, count}, operands.addresses());
      std::size_t next = 1;
      for (const ActivationKind kind : {ActivationKind::kGelu, ActivationKind::kSilu}) {
        for (const Tensor& input : {a, b}) {
          run(ActivationCall{input, written[next++], count, kind}, operands.addresses());
          run(ActivationBackwardCall{input, a, written[next++], count, kind}, operands.addresses());
        }
      }
      run(GateProductCall{a, b, written[next++], count}, operands.addresses());
      run(GateProductBackwardCall{a, b, sum, written[next], written[next + 1], count}, operands.addresses());
      return operands.contents(written);
    });
  }
}

TEST(CpuKernelElementwise, OtherTypesAreRefused) {
  const StorageAddresses none;
  EXPECT_THROW(run(AddCall{.elements = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(run(ActivationCall{.elements = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(run(ActivationBackwardCall{.elements = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(run(GateProductCall{.elements = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(run(GateProductBackwardCall{.elements = DType::kBf16}, none), std::logic_error);
}

}  // namespace
}  // namespace stepsim::cpu
