// The byte model of quantisation against kernels of Transformer Engine, which it was not fitted on but for the fraction of bandwidth, 0.70
// (accuracy.md C.3).
#include <gtest/gtest.h>

#include "hardware/kernel_cost.h"
#include "hardware/quantize_bytes.h"
#include "tests/validation/measured_rows.h"

namespace stepsim {
namespace {

double quantize_us(const GpuSpec& gpu, const Quantization& quantization, double elements) {
  const DeviceCost cost = memory_bound_cost(gpu, quantize_work(quantization, static_cast<std::int64_t>(elements)));
  return seconds(cost.fixed + cost.alone) * 1e6;
}

// One kernel each: 8192 x 8192, by rows, by columns or both.
TEST(KernelQuantize, MxFp8OnB200) {
  const auto table = measured_table("kernels/te_mxfp8_quant_b200_us.csv");
  if (!table) GTEST_SKIP() << "no measured data";
  const GpuSpec gpu = load_gpu("b200");
  std::vector<double> errors;
  for (std::size_t row = 0; row < table->rows.size(); ++row) {
    const Quantization quantization{.recipe = QuantizeRecipe::kMxFp8,
                                    .source_bytes = table->at(row, "dtype") == "fp32" ? 4.0 : 2.0,
                                    .orientations = table->at(row, "scaling") == "both"};
    const double simulated = quantize_us(gpu, quantization, table->number(row, "rows") * table->number(row, "cols"));
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
    QuantizeRecipe recipe;
  };
  const Recipe recipes[] = {
      {"fp8current_ms", QuantizeRecipe::kFp8Current}, {"mxfp8_ms", QuantizeRecipe::kMxFp8}, {"nvfp4_ms", QuantizeRecipe::kNvFp4}};
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
        const Quantization quantization{.recipe = recipe.recipe, .orientations = recipe.recipe != QuantizeRecipe::kFp8Current};
        const double first = pass == "fprop" ? inputs : outputs, second = pass == "wgrad" ? inputs : weights;
        const double simulated_us = quantize_us(gpu, quantization, first) + quantize_us(gpu, quantization, second) +
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

TEST(KernelQuantize, DelayedScalingReadsOnce) {
  // 4 bytes an element, current scaling 5; on Hopper, which writes both orientations, current takes 6.
  const auto training = [](QuantizeRecipe recipe, int capability) {
    return element_bytes(training_quantization(recipe, capability)).total();
  };
  EXPECT_DOUBLE_EQ(training(QuantizeRecipe::kFp8Delayed, 100), 4);
  EXPECT_DOUBLE_EQ(training(QuantizeRecipe::kFp8Current, 100), 5);
  EXPECT_DOUBLE_EQ(training(QuantizeRecipe::kFp8Current, 90), 6);
  EXPECT_DOUBLE_EQ(training(QuantizeRecipe::kMxFp8, 100), 4.0625);
  EXPECT_DOUBLE_EQ(training(QuantizeRecipe::kNvFp4, 100), 5.6);
  EXPECT_EQ(quantize_work({}, std::int64_t{1} << 62).written.value, 4'000'000'000'000'000'000);
}

}  // namespace
}  // namespace stepsim
