#include "hardware/fit/flash_attention_fit.h"

#include <gtest/gtest.h>

#include "hardware/fit/inference_attention_fit.h"

namespace stepsim {
namespace {

constexpr std::int8_t kFlash3 = 1;
constexpr std::int64_t kLengths[] = {512, 1024, 2048, 4096, 8192, 16384};

GpuSpec gpu_with(const std::vector<AttentionRate>& rates) {
  GpuSpec gpu = load_gpu("h100-sxm-80gb");
  for (AttentionFit& fit : gpu.fit.attention) {
    if (fit.kernel == kFlash3) fit.rates = rates;
  }
  return gpu;
}

void add_rows(const GpuSpec& gpu, std::int32_t head_dim, bool causal, AttentionPass pass, std::vector<MeasuredAttention>& rows) {
  for (const std::int64_t length : kLengths) {
    MeasuredAttention row{.work = {.batch = 16384 / length,
                                   .heads = 2048 / head_dim,
                                   .kv_heads = 2048 / head_dim,
                                   .queries = length,
                                   .keys = length,
                                   .head_dim = head_dim,
                                   .causal = causal,
                                   .kernel = kFlash3},
                          .pass = pass};
    row.measured_s = simulated_s(gpu, row);
    rows.push_back(row);
  }
}

TEST(FlashAttentionFitTest, FindsRatesThatMadeTheTimes) {
  const GpuSpec gpu = gpu_with({{128, false, 0.7, 250, 0.6, 400}, {128, true, 0.65, 600, 0.55, 900}});
  std::vector<MeasuredAttention> rows;
  add_rows(gpu, 128, false, AttentionPass::kForward, rows);
  add_rows(gpu, 128, false, AttentionPass::kBackward, rows);
  add_rows(gpu, 128, true, AttentionPass::kForward, rows);
  add_rows(gpu, 128, true, AttentionPass::kBoth, rows);
  hold_out_second_lengths(rows);
  const std::optional<FlashAttentionFit> fit = fit_flash_attention(load_gpu("h100-sxm-80gb"), kFlash3, rows);
  ASSERT_TRUE(fit.has_value());
  ASSERT_EQ(fit->fit.rates.size(), 2u);
  EXPECT_EQ(fit->sources, std::vector<std::string>(2));
  EXPECT_EQ(fit->fewer, "");
  const AttentionRate &full = fit->fit.rates[0], &causal = fit->fit.rates[1];
  EXPECT_NEAR(full.forward, 0.7, 0.001);
  EXPECT_NEAR(full.forward_half_length, 250, 2);
  EXPECT_NEAR(full.backward, 0.6, 0.001);
  EXPECT_NEAR(causal.backward, 0.55, 0.001);
  EXPECT_NEAR(causal.backward_half_length, 900, 5);
}

TEST(FlashAttentionFitTest, HoldsOutEverySecondLength) {
  std::vector<MeasuredAttention> rows;
  add_rows(load_gpu("h100-sxm-80gb"), 64, false, AttentionPass::kForward, rows);
  add_rows(load_gpu("h100-sxm-80gb"), 64, false, AttentionPass::kBackward, rows);
  add_rows(load_gpu("h100-sxm-80gb"), 64, false, AttentionPass::kBoth, rows);
  hold_out_second_lengths(rows);
  for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(rows[i].held_out, i % 2 == 1) << i;
  for (std::size_t i = 12; i < 18; ++i) EXPECT_TRUE(rows[i].held_out) << i;  // backward is known apart
}

TEST(FlashAttentionFitTest, DerivesABackwardPassThatWasNotMeasured) {
  const GpuSpec gpu = gpu_with({{64, false, 0.5, 200, 0.4, 300}, {64, true, 0.5, 800, 0, 0}});
  std::vector<MeasuredAttention> rows;
  add_rows(gpu, 64, true, AttentionPass::kForward, rows);
  const GpuSpec base = load_gpu("h100-sxm-80gb");
  const BackwardRatio ratio{.full = 0.9, .causal = 0.8, .source = "a source"};
  std::optional<FlashAttentionFit> fit = fit_flash_attention(base, kFlash3, rows, ratio);
  ASSERT_TRUE(fit.has_value());
  EXPECT_EQ(fit->sources[0], "backward 0.8 of forward: a source");
  EXPECT_NEAR(fit->fit.rates[0].backward, 0.8 * fit->fit.rates[0].forward, 1e-4);
  // With a measured full mask: its ratio 0.4 / 0.5 and difference of half lengths 100.
  add_rows(gpu, 64, false, AttentionPass::kForward, rows);
  add_rows(gpu, 64, false, AttentionPass::kBackward, rows);
  fit = fit_flash_attention(base, kFlash3, rows, ratio);
  ASSERT_EQ(fit->fit.rates.size(), 2u);
  EXPECT_EQ(fit->sources[1], "backward derived from head_dim 64, not causal");
  EXPECT_NEAR(fit->fit.rates[1].backward, 0.4, 0.002);
  EXPECT_NEAR(fit->fit.rates[1].backward_half_length, 900, 10);
}

TEST(FlashAttentionFitTest, ScalesToAnotherGpu) {
  FlashAttentionFit fit;
  fit.fit.kernel = 4;
  fit.fit.rates.push_back({64, true, 0.4, 100, 0.2, 50});
  fit.sources = {""};
  const FlashAttentionFit scaled = scaled_attention(fit, load_gpu("a100"), load_gpu("h100"), 1.5);
  EXPECT_NEAR(scaled.fit.rates[0].forward, 0.4 * 1.5 * 312 / 989, 1e-4);
  EXPECT_NEAR(scaled.fit.rates[0].backward, 0.2 * 1.5 * 312 / 989, 1e-4);
  EXPECT_EQ(scaled.fit.rates[0].forward_half_length, 100);
  EXPECT_EQ(scaled.sources[0], "1.5 times the rate on a100-sxm-80gb");
}

TEST(FlashAttentionFitTest, FewRows) {
  const GpuSpec base = load_gpu("h100-sxm-80gb");
  EXPECT_FALSE(fit_flash_attention(base, kFlash3, {}).has_value());
  std::vector<MeasuredAttention> rows;
  add_rows(base, 128, true, AttentionPass::kForward, rows);
  rows.resize(1);
  const std::optional<FlashAttentionFit> fit = fit_flash_attention(base, kFlash3, rows);
  ASSERT_TRUE(fit.has_value());
  EXPECT_EQ(fit->fewer, "half lengths of the base where one length was measured");
}

}  // namespace
}  // namespace stepsim
