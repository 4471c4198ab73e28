// The byte model of quantisation against kernels of Transformer Engine, which it was not fitted on but for the fraction of bandwidth, 0.70
// (accuracy.md C.3).
#include <gtest/gtest.h>

#include "hardware/kernel_cost.h"
#include "models/low_precision.h"
#include "tests/validation/measured_rows.h"

namespace stepsim {
namespace {

struct Cast {
  Precision precision = Precision::kFp8;
  std::int64_t source_bytes = 2;
  bool both = true;
};

TrainingRecipe recipe_of(Precision precision) {
  TrainingRecipe training;
  training.precision = precision;
  return training;
}

double quantize_us(const GpuSpec& gpu, const Cast& cast, double elements) {
  const CastBytes bytes =
      cast_bytes(recipe_of(cast.precision), static_cast<std::int64_t>(elements / 128), 128, cast.source_bytes, true, cast.both);
  const DeviceCost cost = memory_bound_cost(gpu, {.read = bytes.read, .written = bytes.written, .kernel = MemoryKernel::kQuantize});
  return seconds(cost.fixed + cost.alone) * 1e6;
}

// One kernel each: 8192 x 8192, by rows, by columns or both.
TEST(KernelQuantize, MxFp8OnB200) {
  const auto table = measured_table("kernels/te_mxfp8_quant_b200_us.csv");
  if (!table) GTEST_SKIP() << "no measured data";
  const GpuSpec gpu = load_gpu("b200");
  std::vector<double> errors;
  for (std::size_t row = 0; row < table->rows.size(); ++row) {
    const Cast cast{.precision = Precision::kMxFp8,
                    .source_bytes = table->at(row, "dtype") == "fp32" ? 4 : 2,
                    .both = table->at(row, "scaling") == "both"};
    const double simulated = quantize_us(gpu, cast, table->number(row, "rows") * table->number(row, "cols"));
    errors.push_back(simulated / table->number(row, "b200_us") - 1);
    EXPECT_NEAR(errors.back(), 0, 0.17) << table->at(row, "dtype") << " " << table->at(row, "scaling");  // issue 5
  }
  print_heading("kernel-quantize-mxfp8", "Quantisation: Transformer Engine's MXFP8 kernel, B200");
  expect_summary("fp32, bf16 and fp16, three orientations", errors, 0.10, 0.07);
  EXPECT_EQ(errors.size(), 9u);
}

// A layer's four linear modules: M = 15872 tokens, hidden 4096, qkv 12288, ffn 16384. With and without the casts of both operands; the
// difference is theirs. te_gemm_profiling.csv.
TEST(KernelQuantize, AutocastMinusPrequantised) {
  const auto table = measured_table("kernels/te_gemm_profiling.csv");
  if (!table) GTEST_SKIP() << "no measured data";
  const double tokens = 15872, hidden = 4096, qkv = 12288, ffn = 16384;
  const double inputs = tokens * (3 * hidden + ffn), weights = hidden * (qkv + hidden + 2 * ffn),
               outputs = tokens * (qkv + 2 * hidden + ffn);
  struct Recipe {
    const char* column;
    Precision precision;
  };
  const Recipe recipes[] = {{"fp8current_ms", Precision::kFp8}, {"mxfp8_ms", Precision::kMxFp8}, {"nvfp4_ms", Precision::kNvFp4}};
  print_heading("kernel-quantize-step", "Quantisation: Transformer Engine, with casts minus without, by GPU, recipe and pass");
  std::vector<double> errors;
  for (std::size_t with = 0; with < table->rows.size(); ++with) {
    if (table->at(with, "mode") != "autocast") continue;
    for (std::size_t without = 0; without < table->rows.size(); ++without) {
      const std::string &name = table->at(with, "gpu"), &pass = table->at(with, "pass");
      if (table->at(without, "mode") != "prequantised" || table->at(without, "gpu") != name || table->at(without, "pass") != pass) continue;
      const GpuSpec gpu = load_gpu(name == "H200-NVL" ? "h200-nvl" : "b300");
      for (const Recipe& recipe : recipes) {
        if (table->at(with, recipe.column).empty() || table->at(without, recipe.column).empty()) continue;
        const double measured_us = 1e3 * (table->number(with, recipe.column) - table->number(without, recipe.column));
        // Each product's operands as it alone wants them, but for scales in blocks, which are written for both.
        const Cast cast{.precision = recipe.precision, .both = recipe.precision != Precision::kFp8};
        const double first = pass == "fprop" ? inputs : outputs, second = pass == "wgrad" ? inputs : weights;
        const double simulated_us = quantize_us(gpu, cast, first) + quantize_us(gpu, cast, second) +
                                    6 * seconds(gpu.fit.memory_fixed) * 1e6;  // four modules, two kernels each
        errors.push_back(simulated_us / measured_us - 1);
        const std::string recipe_name(recipe.column, std::string(recipe.column).size() - 3);
        print_summary(name + ", " + recipe_name + ", " + pass, summary({errors.back()}));
        EXPECT_NEAR(errors.back(), 0, 0.17) << name << " " << recipe.column << " " << pass;  // issue 5
      }
    }
  }
  EXPECT_EQ(errors.size(), 12u);  // B300: 3 recipes by 3 passes; H200 NVL: current scaling
  expect_summary("all", errors, 0.10, 0);
}

}  // namespace
}  // namespace stepsim
