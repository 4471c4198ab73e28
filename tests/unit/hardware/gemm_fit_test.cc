// The factor of weight gradients, from rows that the tile model made.
#include "hardware/fit/gemm_fit.h"

#include <gtest/gtest.h>

#include "hardware/gemm_cost.h"

namespace stepsim {
namespace {

MeasuredGemm row_of(const GpuSpec& gpu, std::int64_t size, bool weight_gradient, bool held_out) {
  MeasuredGemm row;
  row.work = {.m = size, .n = 2 * size, .k = size, .transpose_a = !weight_gradient, .transpose_b = weight_gradient};
  row.held_out = held_out;
  const DeviceCost cost = gemm_cost(gpu, row.work);
  row.measured_s = seconds(cost.fixed + cost.alone);
  return row;
}

// Small products are mostly latency and memory, which the factor leaves alone: a ratio of whole times would say less than 1.08.
TEST(WeightGradientFit, TheFactorThatMadeTheRows) {
  GpuSpec gpu = load_gpu("a100-sxm-80gb");
  GpuSpec made = gpu;
  made.fit.gemm_tile->weight_gradient = 1.08;
  std::vector<MeasuredGemm> rows;
  for (const std::int64_t size : {128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096}) {
    for (const bool held_out : {false, true}) {
      rows.push_back(row_of(gpu, size + (held_out ? 64 : 0), false, held_out));
      rows.push_back(row_of(made, size + (held_out ? 64 : 0), true, held_out));
    }
  }
  const std::optional<WeightGradientFit> fit = fit_weight_gradient(gpu, rows);
  ASSERT_TRUE(fit.has_value());
  EXPECT_NEAR(fit->ratio, 1.08, 0.002);
  EXPECT_NEAR(fit->held_out_ratio, 1.08, 0.002);
  EXPECT_EQ(fit->rows, 10u);
  EXPECT_EQ(fit->held_out_rows, 10u);
}

TEST(WeightGradientFit, NeedsBothKinds) {
  const GpuSpec gpu = load_gpu("a100-sxm-80gb");
  std::vector<MeasuredGemm> rows;
  for (const std::int64_t size : {512, 1024, 2048, 4096, 8192}) rows.push_back(row_of(gpu, size, false, false));
  EXPECT_FALSE(fit_weight_gradient(gpu, rows).has_value());
}

}  // namespace
}  // namespace stepsim
