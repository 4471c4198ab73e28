// Cross entropy of the CPU's kernels, of the whole vocabulary and of two halves that the test reduces, against double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "hardware/backends/cpu/loss.h"
#include "tests/backends/cpu_kernels_operands.h"

namespace stepsim::cpu {
namespace {

// The exponential to 1e-7, its argument to 6e-8 of a few units; the sum is in fp64.
constexpr double kLossTolerance = 2e-6;
constexpr float kLossScale = 0.125F;

double loss_reference(const std::vector<double>& logits, const std::vector<std::int64_t>& labels) {
  double total = 0;
  const std::size_t columns = logits.size() / labels.size();
  for (std::size_t row = 0; row < labels.size(); ++row) {
    double sum = 0;
    for (std::size_t i = 0; i < columns; ++i) sum += std::exp(logits[row * columns + i]);
    total += std::log(sum) - logits[row * columns + static_cast<std::size_t>(labels[row])];
  }
  return total;
}

struct LossShare {
  Tensor logits{}, maximum{}, mask{}, target{}, softmax{}, predicted{}, denominator{}, loss{}, gradient{};
  TableShare share{};
};

LossShare loss_share(CpuOperands& operands, const std::vector<float>& logits, std::int64_t rows, TableShare share, bool in_place) {
  LossShare found{.logits = operands.floats(logits), .maximum = operands.blank(rows), .mask = operands.blank_bytes(rows)};
  const std::int64_t count = rows * share.rows;
  found.target = operands.blank_integers(rows), found.softmax = in_place ? found.logits : operands.blank(count);
  found.predicted = operands.blank(rows), found.denominator = operands.blank(rows), found.loss = operands.blank(rows);
  found.gradient = operands.blank(count), found.share = share;
  return found;
}

// What an all-reduce leaves with each of the shares.
void reduce_shares(CpuOperands& operands, const std::vector<LossShare>& shares, Tensor LossShare::*part, bool maximum) {
  std::vector<float> reduced = operands.values<float>(shares.front().*part);
  for (std::size_t share = 1; share < shares.size(); ++share) {
    const std::vector<float> other = operands.values<float>(shares[share].*part);
    for (std::size_t i = 0; i < reduced.size(); ++i) reduced[i] = maximum ? std::max(reduced[i], other[i]) : reduced[i] + other[i];
  }
  for (const LossShare& share : shares) {
    std::copy(reduced.begin(), reduced.end(), operands.addresses().of<float>(share.*part));
  }
}

void run_loss(CpuOperands& operands, const std::vector<LossShare>& shares, const std::vector<std::int64_t>& labels) {
  const auto rows = static_cast<std::int64_t>(labels.size());
  const Tensor label_tensor = operands.integers(labels);
  const StorageAddresses& addresses = operands.addresses();
  for (const LossShare& each : shares) {
    run(LossMaximumCall{each.logits, each.maximum, rows, each.share.rows}, addresses);
    run(TargetMaskCall{label_tensor, each.mask, each.target, rows, each.share}, addresses);
  }
  reduce_shares(operands, shares, &LossShare::maximum, true);
  for (const LossShare& each : shares) {
    run(LossNumeratorCall{each.logits, each.maximum, each.mask, each.target, each.softmax, each.predicted, each.denominator, rows,
                          each.share.rows},
        addresses);
  }
  reduce_shares(operands, shares, &LossShare::predicted, false);
  reduce_shares(operands, shares, &LossShare::denominator, false);
  for (const LossShare& each : shares) {
    run(LossCall{each.predicted, each.denominator, each.softmax, each.loss, rows, each.share.rows}, addresses);
    run(LossBackwardCall{each.softmax, each.mask, each.target, each.gradient, rows, each.share.rows, kLossScale}, addresses);
  }
}

// Columns [first, first + count) of every row.
template <class Number>
std::vector<Number> columns_of(const std::vector<Number>& rows, std::size_t columns, const TableShare& share) {
  std::vector<Number> found;
  for (std::size_t first = 0; first < rows.size(); first += columns) {
    const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(first) + share.first;
    found.insert(found.end(), begin, begin + share.rows);
  }
  return found;
}

void check_loss(std::int64_t columns, const std::vector<TableShare>& parts, bool in_place) {
  SCOPED_TRACE(testing::Message() << columns << " columns in " << parts.size() << " shares" << (in_place ? ", in place" : ""));
  CpuOperands operands;
  const std::vector<std::int64_t> labels = {0, columns - 1, columns / 2, columns / 3, 0};
  const auto rows = static_cast<std::int64_t>(labels.size());
  const std::vector<float> logits = operands.values<float>(operands.random(rows * columns, -5, 5));
  const std::vector<double> exact(logits.begin(), logits.end());
  std::vector<LossShare> shares;
  for (const TableShare& part : parts) {
    shares.push_back(loss_share(operands, columns_of(logits, static_cast<std::size_t>(columns), part), rows, part, in_place));
  }
  run_loss(operands, shares, labels);
  const auto objective = [&](const std::vector<double>& at) { return static_cast<double>(kLossScale) * loss_reference(at, labels); };
  const std::vector<double> gradient = central_differences(objective, exact);
  for (const LossShare& each : shares) {
    double total = 0;
    for (const double loss : operands.doubles(each.loss)) total += loss;
    EXPECT_NEAR(total, loss_reference(exact, labels), kLossTolerance * static_cast<double>(rows));
    const std::vector<double> wanted = columns_of(gradient, static_cast<std::size_t>(columns), each.share);
    const std::vector<double> found = operands.doubles(each.gradient);
    // Slopes are of scale at most; of one column they are 0, which no relative bound has.
    for (std::size_t i = 0; i < wanted.size(); ++i) ASSERT_NEAR(found[i], wanted[i], kLossTolerance * static_cast<double>(kLossScale));
  }
}

TEST(CpuKernelLoss, WholeVocabulary) {
  for (const std::int64_t columns : {1, 2, 3, 16, 37, 130}) check_loss(columns, {{0, columns}}, false);
}

TEST(CpuKernelLoss, TwoSharesGiveTheWhole) {
  for (const std::int64_t columns : {2, 16, 38, 130}) check_loss(columns, {{0, columns / 2}, {columns / 2, columns / 2}}, false);
}

// As Megatron-LM's cross entropy works: the softmax takes the place of the logits.
TEST(CpuKernelLoss, InPlace) {
  check_loss(37, {{0, 37}}, true);
  check_loss(130, {{0, 65}, {65, 65}}, true);
}

// The softmax of a row adds up to 1, and the loss of equal logits is the logarithm of their number.
TEST(CpuKernelLoss, EqualLogits) {
  CpuOperands operands;
  const LossShare share = loss_share(operands, std::vector<float>(2 * 50000, 1.5F), 2, {0, 50000}, false);
  run_loss(operands, {share}, {7, 49999});
  for (const double loss : operands.doubles(share.loss)) EXPECT_NEAR(loss, std::log(50000.0), 1e-6);
  for (const double weight : operands.doubles(share.softmax)) ASSERT_NEAR(weight, 2e-5, 2e-12);
}

TEST(CpuKernelLoss, TargetsOfAShare) {
  CpuOperands operands;
  const TargetMaskCall call{operands.integers({9, 10, 14, 15, 0}), operands.blank_bytes(5), operands.blank_integers(5), 5, {10, 5}};
  run(call, operands.addresses());
  EXPECT_EQ(operands.values<std::uint8_t>(call.mask), (std::vector<std::uint8_t>{1, 0, 0, 1, 1}));
  EXPECT_EQ(operands.values<std::int64_t>(call.target), (std::vector<std::int64_t>{0, 0, 4, 0, 0}));
}

TEST(CpuKernelLoss, SameBitsAtAnyAddress) {
  for (const std::int64_t columns : {1, 37, 1000}) {
    for (const bool in_place : {false, true}) {
      expect_same_bits_at_any_address([&](CpuOperands& operands) {
        const std::vector<float> logits = operands.values<float>(operands.random(3 * columns));
        const LossShare share = loss_share(operands, logits, 3, {0, columns}, in_place);
        run_loss(operands, {share}, {0, columns - 1, columns / 2});
        return operands.contents({share.maximum, share.softmax, share.predicted, share.denominator, share.loss, share.gradient});
      });
    }
  }
}

}  // namespace
}  // namespace stepsim::cpu
