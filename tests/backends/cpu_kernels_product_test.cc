// Products of the CPU against sums in double precision, within the bound of any order of additions.
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "hardware/backends/cpu/product.h"
#include "tests/backends/cpu_kernels_operands.h"

namespace stepsim::cpu {
namespace {

struct ProductSizes {
  std::int64_t m = 0, n = 0, k = 0, outer = 1, inner = 1, gap = 0;  // gap: elements between rows that are of no matrix
};

// Matrices of one outer index lie beside each other, as heads do in token-major tensors; those of C one behind the other.
ProductCall product_call(CpuOperands& operands, const ProductSizes& sizes, bool transpose_a, bool transpose_b, bool accumulate) {
  ProductCall call{.m = sizes.m, .n = sizes.n, .k = sizes.k, .outer = sizes.outer, .inner = sizes.inner};
  call.transpose_a = transpose_a, call.transpose_b = transpose_b, call.accumulate = accumulate;
  const auto beside = [&](std::int64_t rows, std::int64_t columns) {
    const std::int64_t row = sizes.inner * columns + sizes.gap;
    return ProductCall::Operand{.tensor = operands.random(sizes.outer * rows * row), .row = row, .outer = rows * row, .inner = columns};
  };
  call.a = transpose_a ? beside(sizes.k, sizes.m) : beside(sizes.m, sizes.k);
  call.b = transpose_b ? beside(sizes.n, sizes.k) : beside(sizes.k, sizes.n);
  const std::int64_t row = sizes.n + sizes.gap, count = sizes.outer * sizes.inner * sizes.m * row;
  call.c = {.tensor = accumulate ? operands.random(count) : operands.blank(count),
            .row = row,
            .outer = sizes.inner * sizes.m * row,
            .inner = sizes.m * row};
  return call;
}

std::size_t product_place(const ProductCall::Operand& operand, std::int64_t i, std::int64_t j, std::int64_t row, std::int64_t column) {
  return static_cast<std::size_t>(i * operand.outer + j * operand.inner + row * operand.row + column);
}

void check_product(const ProductSizes& sizes, bool transpose_a, bool transpose_b, bool accumulate) {
  CpuOperands operands;
  const ProductCall call = product_call(operands, sizes, transpose_a, transpose_b, accumulate);
  const std::vector<double> a = operands.doubles(call.a.tensor), b = operands.doubles(call.b.tensor);
  const std::vector<double> before = operands.doubles(call.c.tensor);
  run(call, operands.addresses());
  const std::vector<double> c = operands.doubles(call.c.tensor);
  std::vector<bool> written(c.size(), false);
  for (std::int64_t at = 0; at < call.outer * call.inner * call.m * call.n; ++at) {
    const std::int64_t column = at % call.n, row = at / call.n % call.m, j = at / (call.n * call.m) % call.inner;
    const std::int64_t i = at / (call.n * call.m * call.inner);
    const std::size_t place = product_place(call.c, i, j, row, column);
    double sum = accumulate ? before[place] : 0.0, magnitude = std::abs(sum);
    for (std::int64_t x = 0; x < call.k; ++x) {
      const double of_a = a[transpose_a ? product_place(call.a, i, j, x, row) : product_place(call.a, i, j, row, x)];
      const double of_b = b[transpose_b ? product_place(call.b, i, j, column, x) : product_place(call.b, i, j, x, column)];
      sum += of_a * of_b, magnitude += std::abs(of_a * of_b);
    }
    // k + 1 roundings at most on the way of each term (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
    ASSERT_LE(std::abs(c[place] - sum), static_cast<double>(call.k + 1) * 0x1p-24 * magnitude) << "element " << at;
    written[place] = true;
  }
  const std::vector<float> after = operands.values<float>(call.c.tensor);
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (written[i]) continue;
    EXPECT_TRUE(accumulate ? static_cast<double>(after[i]) == before[i] : std::isnan(after[i])) << "between rows, " << i;
  }
}

TEST(CpuKernelProduct, AllTransposesWithAndWithoutAccumulation) {
  const std::vector<ProductSizes> cases = {{1, 1, 1},           {1, 7, 5},    {9, 1, 3},          {3, 5, 1},
                                           {33, 17, 65},        {64, 64, 64}, {5, 6, 7, 1, 1, 3}, {12, 12, 20, 2, 3, 0},
                                           {13, 11, 9, 3, 2, 5}};
  for (const ProductSizes& sizes : cases) {
    for (int variant = 0; variant < 8; ++variant) {
      SCOPED_TRACE(testing::Message() << sizes.m << " x " << sizes.n << " x " << sizes.k << ", variant " << variant);
      check_product(sizes, (variant & 1) != 0, (variant & 2) != 0, (variant & 4) != 0);
    }
  }
}

TEST(CpuKernelProduct, LongSum) { check_product({3, 5, 20000}, false, true, false); }

TEST(CpuKernelProduct, SameBitsAtAnyAddress) {
  for (const ProductSizes& sizes : {ProductSizes{1, 1, 37}, ProductSizes{31, 45, 70}, ProductSizes{24, 24, 12, 2, 3, 1}}) {
    for (int variant = 0; variant < 4; ++variant) {
      expect_same_bits_at_any_address([&](CpuOperands& operands) {
        const ProductCall call = product_call(operands, sizes, (variant & 1) != 0, (variant & 2) != 0, true);
        run(call, operands.addresses());
        return operands.contents({call.c.tensor});
      });
    }
  }
}

TEST(CpuKernelProduct, OtherTypesAreRefused) {
  CpuOperands operands;
  ProductCall call = product_call(operands, {2, 2, 2}, false, false, false);
  call.elements = DType::kBf16;
  EXPECT_THROW(run(call, operands.addresses()), std::logic_error);
  call.elements = DType::kFp32, call.output = DType::kBf16;
  EXPECT_THROW(run(call, operands.addresses()), std::logic_error);
}

}  // namespace
}  // namespace stepsim::cpu
