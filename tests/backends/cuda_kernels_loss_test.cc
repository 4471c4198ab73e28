// Cross entropy of the CUDA kernels, run on the host: two ranks with a share of the vocabulary each, against one log-softmax in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "hardware/backends/cuda/cross_entropy.cuh"
#include "tests/backends/cuda_kernels_operands.h"

namespace stepsim::cuda {
namespace {

struct LossRank {
  Tensor logits{}, maximum{}, mask{}, target{}, softmax{}, predicted{}, denominator{}, loss{}, gradient{};
  TableShare share{};
};

LossRank loss_rank(CallOperands& operands, std::int64_t rows, TableShare share, bool in_place) {
  LossRank rank{.logits = operands.random(rows * share.rows, DType::kFp32),
                .maximum = operands.blank(rows, DType::kFp32),
                .mask = operands.blank_mask(rows),
                .target = operands.blank_integers(rows),
                .predicted = operands.blank(rows, DType::kFp32),
                .denominator = operands.blank(rows, DType::kFp32),
                .loss = operands.blank(rows, DType::kFp32),
                .gradient = operands.blank(rows * share.rows, DType::kFp32),
                .share = share};
  rank.softmax = in_place ? rank.logits : operands.blank(rows * share.rows, DType::kFp32);
  return rank;
}

// What an all-reduce over the two ranks leaves with both.
void reduce_ranks(CallOperands& operands, const Tensor& a, const Tensor& b, bool maximum) {
  const std::vector<double> of_a = operands.values(a, DType::kFp32), of_b = operands.values(b, DType::kFp32);
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    const auto reduced = static_cast<float>(maximum ? std::max(of_a[i], of_b[i]) : of_a[i] + of_b[i]);
    for (const Tensor& each : {a, b}) operands.set(each, DType::kFp32, static_cast<std::int64_t>(i), reduced);
  }
}

struct LossReference {
  std::vector<double> loss, softmax, gradient;  // softmax and gradient: [rows, vocabulary]
};

LossReference loss_reference(const std::vector<double>& logits, const std::vector<std::int64_t>& labels, double scale) {
  LossReference result;
  const std::size_t vocabulary = logits.size() / labels.size();
  for (std::size_t row = 0; row < labels.size(); ++row) {
    double sum = 0;
    for (std::size_t i = 0; i < vocabulary; ++i) sum += std::exp(logits[row * vocabulary + i]);
    const auto label = static_cast<std::size_t>(labels[row]);
    result.loss.push_back(std::log(sum) - logits[row * vocabulary + label]);
    for (std::size_t i = 0; i < vocabulary; ++i) {
      result.softmax.push_back(std::exp(logits[row * vocabulary + i]) / sum);
      result.gradient.push_back(scale * (result.softmax.back() - (i == label ? 1 : 0)));
    }
  }
  return result;
}

// [rows, vocabulary] of both ranks' columns.
std::vector<double> whole_rows(const CallOperands& operands, const Tensor& a, const Tensor& b, std::size_t rows) {
  const std::vector<double> of_a = operands.values(a, DType::kFp32), of_b = operands.values(b, DType::kFp32);
  const std::size_t columns_a = of_a.size() / rows, columns_b = of_b.size() / rows;
  std::vector<double> result;
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < columns_a; ++i) result.push_back(of_a[row * columns_a + i]);
    for (std::size_t i = 0; i < columns_b; ++i) result.push_back(of_b[row * columns_b + i]);
  }
  return result;
}

void check_two_ranks(bool aligned, std::int64_t columns_a, std::int64_t columns_b, bool in_place) {
  CallOperands operands(aligned);
  const std::int64_t vocabulary = columns_a + columns_b;
  const std::vector<std::int64_t> labels{0, columns_a - 1, columns_a, vocabulary - 1, vocabulary / 3};
  const auto rows = static_cast<std::int64_t>(labels.size());
  const Tensor label_tensor = operands.integers(labels);
  const LossRank a = loss_rank(operands, rows, {0, columns_a}, in_place);
  const LossRank b = loss_rank(operands, rows, {columns_a, columns_b}, in_place);
  const float scale = 0.2F;
  const LossReference reference = loss_reference(whole_rows(operands, a.logits, b.logits, labels.size()), labels, double{scale});
  for (const LossRank& rank : {a, b}) {
    operands.run_call(LossMaximumCall{rank.logits, rank.maximum, rows, rank.share.rows});
    operands.run_call(TargetMaskCall{label_tensor, rank.mask, rank.target, rows, rank.share});
  }
  reduce_ranks(operands, a.maximum, b.maximum, true);
  for (const LossRank& rank : {a, b}) {
    operands.run_call(LossNumeratorCall{rank.logits, rank.maximum, rank.mask, rank.target, rank.softmax, rank.predicted, rank.denominator,
                                        rows, rank.share.rows});
  }
  reduce_ranks(operands, a.predicted, b.predicted, false);
  reduce_ranks(operands, a.denominator, b.denominator, false);
  for (const LossRank& rank : {a, b}) {
    operands.run_call(LossCall{rank.predicted, rank.denominator, rank.softmax, rank.loss, rows, rank.share.rows});
    operands.run_call(LossBackwardCall{rank.softmax, rank.mask, rank.target, rank.gradient, rows, rank.share.rows, scale});
    expect_close(operands.values(rank.loss, DType::kFp32), reference.loss, DType::kFp32);
  }
  expect_close(whole_rows(operands, a.softmax, b.softmax, labels.size()), reference.softmax, DType::kFp32);
  expect_close(whole_rows(operands, a.gradient, b.gradient, labels.size()), reference.gradient, DType::kFp32);
}

TEST(CudaKernelLoss, TwoRanks) {
  for (const bool aligned : {true, false}) {
    for (const bool in_place : {false, true}) {
      check_two_ranks(aligned, 8, 12, in_place);
      check_two_ranks(aligned, 13, 1, in_place);
      check_two_ranks(aligned, 2100, 2051, in_place);  // more than a pack for each of 512 threads
    }
  }
}

TEST(CudaKernelLoss, TargetsOfAShare) {
  CallOperands operands;
  const TargetMaskCall call{operands.integers({9, 10, 14, 15, 0}), operands.blank_mask(5), operands.blank_integers(5), 5, {10, 5}};
  operands.run_call(call);
  EXPECT_EQ(operands.mask(call.mask), (std::vector<std::uint8_t>{1, 0, 0, 1, 1}));
  EXPECT_EQ(operands.integers(call.target), (std::vector<std::int64_t>{0, 0, 4, 0, 0}));
}

}  // namespace
}  // namespace stepsim::cuda
