// Matrix products against the published fit (gemm_golden.csv) and against measured latencies (gemm_aic_*.csv).
#include <gtest/gtest.h>

#include "hardware/kernel_cost.h"
#include "tests/validation/measured_rows.h"

namespace stepsim {
namespace {

double gemm_us(const GpuSpec& gpu, const MeasuredTable& table, std::size_t row) {
  const auto size = [&](const char* column) { return static_cast<std::int64_t>(table.number(row, column)); };
  const DeviceCost cost = gemm_cost(gpu, {.m = size("m"), .n = size("n"), .k = size("k")});
  return seconds(cost.fixed + cost.alone) * 1e6;
}

TEST(KernelGemm, GoldenRowsOfRoofline3) {
  const auto table = measured_table("kernels/gemm_golden.csv");
  if (!table) GTEST_SKIP() << "no measured data";
  ASSERT_EQ(table->rows.size(), 32u);
  std::vector<double> errors;
  for (std::size_t row = 0; row < table->rows.size(); ++row) {
    const double golden = table->number(row, "roofline3_us");
    const double simulated = gemm_us(load_gpu(table->at(row, "gpu")), *table, row);
    EXPECT_NEAR(simulated / golden, 1, 0.01) << table->at(row, "gpu") << " row " << row;  // kernels.md 6: 1 %
    errors.push_back(simulated / golden - 1);
  }
  print_heading("GEMM: this model against gemm_golden.csv roofline3_us");
  print_summary("all", summary(errors));
}

// The fit took half of the (n, k) pairs, unknown which, so these rows are half held out. Bounds of kernels.md 6; A100 by its roofline3
// figure.
TEST(KernelGemm, MeasuredTrainingSizes) {
  struct Case {
    const char* gpu;
    double bound;
  };
  const Case cases[] = {{"A100-SXM4-80GB", 0.075}, {"H100-SXM", 0.06}, {"H200-SXM", 0.06}, {"B200-SXM", 0.08},
                        {"GB200", 0.08},           {"B300-SXM", 0.08}, {"GB300", 0.06}};
  print_heading("GEMM: bf16, m, n, k >= 1024, against aiconfigurator (half fitted)");
  for (const Case& c : cases) {
    const auto table = measured_table(std::string("kernels/gemm_aic_") + c.gpu + ".csv");
    if (!table) GTEST_SKIP() << "no measured data";
    const GpuSpec gpu = load_gpu(c.gpu);
    std::vector<double> errors;
    for (std::size_t row = 0; row < table->rows.size(); ++row) {
      if (table->at(row, "dtype") != "bf16") continue;
      if (std::min({table->number(row, "m"), table->number(row, "n"), table->number(row, "k")}) < 1024) continue;
      errors.push_back(gemm_us(gpu, *table, row) / table->number(row, "latency_us") - 1);
    }
    const ErrorSummary all = summary(errors);
    print_summary(c.gpu, all);
    EXPECT_GT(all.rows, 1000u);
    EXPECT_LE(all.mean, c.bound) << c.gpu;
    EXPECT_LE(all.p90, 0.16) << c.gpu;  // kernels.md 6
  }
}

}  // namespace
}  // namespace stepsim
