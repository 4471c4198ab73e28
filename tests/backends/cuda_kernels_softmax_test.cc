// Softmax of attention scores of the CUDA kernels, run on the host.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "hardware/backends/cuda/softmax.cuh"
#include "tests/backends/cuda_kernels_operands.h"

namespace stepsim::cuda {
namespace {

struct SoftmaxCase {
  std::int64_t matrices = 0, queries = 0, keys = 0;
  bool causal = true;
};
constexpr SoftmaxCase kSoftmaxCases[] = {{1, 1, 1, true},   {6, 5, 5, true},   {6, 16, 16, true},   {2, 40, 40, true},
                                         {3, 4, 11, false}, {2, 3, 24, false}, {1, 1, 4104, false}, {1, 1, 4105, false}};

std::int64_t seen_keys(const SoftmaxCase& at, std::size_t row) {
  return at.causal ? static_cast<std::int64_t>(row) % at.queries + 1 : at.keys;
}

std::vector<double> softmax_reference(const SoftmaxCase& at, double scale, const std::vector<double>& scores) {
  std::vector<double> result(scores.size());
  const auto keys = static_cast<std::size_t>(at.keys);
  for (std::size_t row = 0; row < scores.size() / keys; ++row) {
    const auto seen = static_cast<std::size_t>(seen_keys(at, row));
    double sum = 0;
    for (std::size_t key = 0; key < seen; ++key) sum += std::exp(scale * scores[row * keys + key]);  // scores are at most 2
    for (std::size_t key = 0; key < seen; ++key) result[row * keys + key] = std::exp(scale * scores[row * keys + key]) / sum;
  }
  return result;
}

TEST(CudaKernelSoftmax, Forward) {
  for_kernel_variants(false, [](KernelVariant variant) {
    for (const SoftmaxCase& at : kSoftmaxCases) {
      SCOPED_TRACE(std::to_string(at.keys) + (at.causal ? " causal" : ""));
      CallOperands operands(variant.aligned);
      const DType type = variant.elements;
      const std::int64_t count = at.matrices * at.queries * at.keys;
      const AttentionSoftmaxCall call{
          operands.random(count, type), operands.blank(count, type), at.matrices, at.queries, at.keys, 0.7F, at.causal, type};
      const std::vector<double> wanted = softmax_reference(at, double{0.7F}, operands.values(call.scores, type));
      // What a query does not see may be anything.
      for (std::int64_t i = 0; i < count; ++i) {
        const bool hidden = i % at.keys >= seen_keys(at, static_cast<std::size_t>(i / at.keys));
        if (hidden) operands.set(call.scores, type, i, std::numeric_limits<float>::quiet_NaN());
      }
      operands.run_call(call);
      const std::vector<double> found = operands.values(call.output, type);
      expect_close(found, wanted, type);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        EXPECT_TRUE(wanted[i] != 0 || found[i] == 0) << i;
      }
    }
  });
}

TEST(CudaKernelSoftmax, LargeScores) {
  CallOperands operands;
  const Tensor scores = operands.blank(4, DType::kFp32), output = operands.blank(4, DType::kFp32);
  for (std::int64_t i = 0; i < 4; ++i) operands.set(scores, DType::kFp32, i, i == 2 ? 3e4F : -3e4F);
  operands.run_call(AttentionSoftmaxCall{scores, output, 1, 1, 4, 1, false});
  EXPECT_EQ(operands.values(output, DType::kFp32), (std::vector<double>{0, 0, 1, 0}));
}

TEST(CudaKernelSoftmax, Backward) {
  for_kernel_variants(false, [](KernelVariant variant) {
    for (const SoftmaxCase& at : kSoftmaxCases) {
      SCOPED_TRACE(std::to_string(at.keys) + (at.causal ? " causal" : ""));
      CallOperands operands(variant.aligned);
      const DType type = variant.elements;
      const std::int64_t count = at.matrices * at.queries * at.keys;
      const Tensor scores = operands.random(count, type);
      const AttentionSoftmaxBackwardCall call{operands.blank(count, type),
                                              operands.random(count, type),
                                              operands.blank(count, type),
                                              at.matrices,
                                              at.queries,
                                              at.keys,
                                              0.7F,
                                              at.causal,
                                              type};
      operands.run_call(AttentionSoftmaxCall{scores, call.softmax, at.matrices, at.queries, at.keys, 0.7F, at.causal, type});
      const std::vector<double> y = operands.values(call.softmax, type), g = operands.values(call.gradient, type);
      std::vector<double> wanted(y.size());
      const auto keys = static_cast<std::size_t>(at.keys);
      for (std::size_t row = 0; row < y.size() / keys; ++row) {
        double sum = 0;
        for (std::size_t key = 0; key < keys; ++key) sum += y[row * keys + key] * g[row * keys + key];  // y is 0 where it is not seen
        for (std::size_t key = 0; key < keys; ++key) {
          wanted[row * keys + key] = double{0.7F} * y[row * keys + key] * (g[row * keys + key] - sum);
        }
      }
      for (std::int64_t i = 0; i < count; ++i) {
        const bool hidden = i % at.keys >= seen_keys(at, static_cast<std::size_t>(i / at.keys));
        if (hidden) operands.set(call.gradient, type, i, std::numeric_limits<float>::quiet_NaN());
      }
      operands.run_call(call);
      expect_close(operands.values(call.scores_gradient, type), wanted, type);
    }
  });
}

}  // namespace
}  // namespace stepsim::cuda
