// Sums, changes of type, activation functions and gate products of the CUDA kernels, run on the host.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "hardware/backends/cuda/activation.cuh"
#include "hardware/backends/cuda/elementwise.cuh"
#include "tests/backends/cuda_kernels_operands.h"

namespace stepsim::cuda {
namespace {

constexpr std::int64_t kElementCounts[] = {1, 7, 8, 2053};  // 2053: more than one block of 256 threads at 8 a thread, and a rest

// Calls body(variant, count) for all variants and counts.
template <class Body>
void for_element_counts(const Body& body) {
  for_kernel_variants(false, [&](KernelVariant variant) {
    for (const std::int64_t count : kElementCounts) body(variant, count);
  });
}

TEST(CudaKernelElementwise, Add) {
  for_element_counts([](KernelVariant variant, std::int64_t count) {
    CallOperands operands(variant.aligned);
    const AddCall call{operands.random(count, variant.elements), operands.random(count, variant.elements), count, variant.elements};
    std::vector<double> wanted = operands.values(call.sum, variant.elements);
    const std::vector<double> added = operands.values(call.input, variant.elements);
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += added[i];
    operands.run_call(call);
    expect_close(operands.values(call.sum, variant.elements), wanted, variant.elements);
  });
}

TEST(CudaKernelElementwise, WidenAndNarrow) {
  for_element_counts([](KernelVariant variant, std::int64_t count) {
    CallOperands operands(variant.aligned);
    const Tensor narrow = operands.random(count, variant.elements), wide = operands.blank(count, DType::kFp32);
    operands.run_call(WidenCall{narrow, wide, count, variant.elements});
    EXPECT_EQ(operands.values(wide, DType::kFp32), operands.values(narrow, variant.elements));
    const Tensor exact = operands.random(count, DType::kFp32), back = operands.blank(count, variant.elements);
    operands.run_call(NarrowCall{exact, back, count, variant.elements});
    expect_close(operands.values(back, variant.elements), operands.values(exact, DType::kFp32), variant.elements);
  });
}

double gelu_reference(double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); }
double silu_reference(double x) { return x / (1 + std::exp(-x)); }

TEST(CudaKernelElementwise, ActivationAndItsSlope) {
  for (const ActivationKind kind : {ActivationKind::kGelu, ActivationKind::kSilu}) {
    double (*const reference)(double) = kind == ActivationKind::kGelu ? gelu_reference : silu_reference;
    for_element_counts([&](KernelVariant variant, std::int64_t count) {
      CallOperands operands(variant.aligned);
      const Tensor input = operands.random(count, variant.elements), output = operands.blank(count, variant.elements);
      const Tensor gradient = operands.random(count, variant.elements), input_gradient = operands.blank(count, variant.elements);
      operands.run_call(ActivationCall{input, output, count, kind, variant.elements});
      operands.run_call(ActivationBackwardCall{input, gradient, input_gradient, count, kind, variant.elements});
      std::vector<double> outputs, gradients;
      const std::vector<double> x = operands.values(input, variant.elements), g = operands.values(gradient, variant.elements);
      for (std::size_t i = 0; i < x.size(); ++i) {
        outputs.push_back(reference(x[i]));
        gradients.push_back(g[i] * (reference(x[i] + 1e-5) - reference(x[i] - 1e-5)) / 2e-5);  // central difference: error about 1e-10
      }
      expect_close(operands.values(output, variant.elements), outputs, variant.elements);
      expect_close(operands.values(input_gradient, variant.elements), gradients, variant.elements);
    });
  }
}

TEST(CudaKernelElementwise, ActivationOfLargeInputs) {
  EXPECT_EQ(activation(ActivationKind::kSilu, -200), 0);
  EXPECT_EQ(activation(ActivationKind::kSilu, 200), 200);
  EXPECT_EQ(activation(ActivationKind::kGelu, -200), 0);
  EXPECT_EQ(activation_slope(ActivationKind::kSilu, -200), 0);
  EXPECT_EQ(activation_slope(ActivationKind::kGelu, 200), 1);
}

TEST(CudaKernelElementwise, GateProduct) {
  for_element_counts([](KernelVariant variant, std::int64_t count) {
    CallOperands operands(variant.aligned);
    const Tensor gate = operands.random(count, variant.elements), up = operands.random(count, variant.elements);
    const Tensor output = operands.blank(count, variant.elements), gradient = operands.random(count, variant.elements);
    const Tensor gate_gradient = operands.blank(count, variant.elements), up_gradient = operands.blank(count, variant.elements);
    operands.run_call(GateProductCall{gate, up, output, count, variant.elements});
    operands.run_call(GateProductBackwardCall{gradient, gate, up, gate_gradient, up_gradient, count, variant.elements});
    const std::vector<double> a = operands.values(gate, variant.elements), b = operands.values(up, variant.elements);
    const std::vector<double> g = operands.values(gradient, variant.elements);
    std::vector<double> products, of_gate, of_up;
    for (std::size_t i = 0; i < a.size(); ++i) {
      products.push_back(a[i] * b[i]);
      of_gate.push_back(g[i] * b[i]);
      of_up.push_back(g[i] * a[i]);
    }
    expect_close(operands.values(output, variant.elements), products, variant.elements);
    expect_close(operands.values(gate_gradient, variant.elements), of_gate, variant.elements);
    expect_close(operands.values(up_gradient, variant.elements), of_up, variant.elements);
  });
}

}  // namespace
}  // namespace stepsim::cuda
