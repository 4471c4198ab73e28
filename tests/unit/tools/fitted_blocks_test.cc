// Fitted lines in machine files: what they replace, where they stand, what counts as a difference.
#include "tools/fitted_blocks.h"

#include <gtest/gtest.h>

#include "hardware/machine_text.h"

namespace stepsim {
namespace {

TEST(FittedBlocks, LinesReplaceThoseOfTheirFieldAndNoOther) {
  const std::string text =
      "# a machine\nbase: \"h100-sxm-80gb\"\ngemm_tile {\n  fixed: \"1 us\"  # old\n  waves: 1  # old\n  weight_gradient: 1.1  # by "
      "hand\n}\n"
      "memory_kernels {\n  fused: 0.5\n  norm: 0.6  # by hand\n}\nassumption: \"Something.\"\n";
  GemmTileFit tiles{.compute = 0.75, .memory = 0.8, .feed = BytesPerSecond(140e9), .waves = 0.25};
  tiles.fixed = Duration(2500000);  // 2.5 us
  const std::string found = with_blocks(text, {tile_block(tiles, "lab"), memory_block(MemoryKernel::kFusedElementwise, 0.9, "lab")}, {});
  EXPECT_EQ(found,
            "# a machine\nbase: \"h100-sxm-80gb\"\ngemm_tile {\n  fixed: \"2.5 us\"  # lab\n  waves: 0.25  # lab\n"
            "  weight_gradient: 1.1  # by hand\n  compute: 0.75  # lab\n  memory: 0.8  # lab\n  feed: \"140 GB/s\"  # lab\n}\n"
            "memory_kernels {\n  fused: 0.9  # lab\n  norm: 0.6  # by hand\n}\nassumption: \"Something.\"\n");
  const GpuSpec gpu = gpu_from_text("x", "x.textproto", found);
  ASSERT_TRUE(gpu.fit.gemm_tile.has_value());
  EXPECT_EQ(gpu.fit.gemm_tile->fixed, tiles.fixed);
  EXPECT_DOUBLE_EQ(gpu.fit.gemm_tile->weight_gradient, 1.1);
  EXPECT_DOUBLE_EQ(gpu.fit.memory_norm, 0.6);
}

TEST(FittedBlocks, KernelsOfAttentionAreReplacedWholeAndAddedInFrontOfTheRest) {
  const std::string text =
      "attention {\n  kernel: FLASH2\n  fixed: \"5 us\"\n}\nattention {\n  kernel: FLASH3\n  fixed: \"5 us\"\n}\nusual_cluster: \"x\"\n";
  AttentionFit fit{.kernel = 1, .memory = 0.8, .rates = {{.head_dim = 64, .causal = true, .forward = 0.5, .backward = 0.4}}};
  const std::string replaced = with_blocks(text, {attention_block(fit, "lab", "given", {"derived"})}, {});
  EXPECT_EQ(replaced,
            "attention {\n  kernel: FLASH2\n  fixed: \"5 us\"\n}\nattention {\n  kernel: FLASH3\n  fixed: \"0 us\"  # given\n  memory: 0.8 "
            " # given\n"
            "  rate { head_dim: 64 causal: true forward: 0.5000 forward_half_length: 0.0 backward: 0.4000 backward_half_length: 0.0 }"
            "  # lab; derived\n}\nusual_cluster: \"x\"\n");
  fit.kernel = 5;
  const std::string added = with_blocks(text, {attention_block(fit, "lab", "given", {""})}, {});
  EXPECT_EQ(added.find("  kernel: FLASH4\n"),
            added.find("usual_cluster") - added.substr(added.find("  kernel: FLASH4\n")).find("usual_cluster"));
  EXPECT_LT(added.find("FLASH3"), added.find("FLASH4"));
  EXPECT_LT(added.find("FLASH4"), added.find("usual_cluster"));
}

TEST(FittedBlocks, RecordsReplaceTheListOfRecords) {
  const std::string text =
      "base: \"h100-sxm-80gb\"\nfit {\n  op_class: \"memory\"\n}\nfit {\n  op_class: \"gemm\"\n}\nassumption: \"Something.\"\n";
  const FitRecord record{.op_class = "gemm",
                         .data = "a \"file\"",
                         .conditions = "none",
                         .part = "fp32",
                         .fitted_rows = 3,
                         .held_out_rows = 2,
                         .fitted_error = 0.01,
                         .held_out_error = 0.0234,
                         .held_out_bias = -0.01};
  const std::string found = with_blocks(text, {}, {record});
  const GpuSpec gpu = gpu_from_text("x", "x.textproto", found);
  ASSERT_EQ(gpu.fits.size(), 1u);
  EXPECT_EQ(gpu.fits[0].data, "a \"file\"");
  EXPECT_EQ(gpu.fits[0].part, "fp32");
  EXPECT_EQ(gpu.fits[0].held_out_rows, 2);
  EXPECT_DOUBLE_EQ(gpu.fits[0].held_out_error, 0.0234);
  EXPECT_DOUBLE_EQ(gpu.fits[0].held_out_bias, -0.01);
  EXPECT_EQ(with_blocks(found, {}, {record}), found);
}

TEST(FittedBlocks, MergedKeepsTheLastLineOfAField) {
  const std::vector<FittedBlock> found = merged({fp32_block(0.8, ""), roofline_block(std::nullopt, 0.7, 0.6, ""), fp32_block(0.9, "")});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].lines, (std::vector<std::string>{"  compute_fp32: 0.9", "  compute: 0.7", "  memory: 0.6"}));
}

// 1e-3 of the value, or one in the last digit that is written.
TEST(FittedBlocks, DifferencesBeyondRounding) {
  EXPECT_TRUE(text_differences("a: 0.8154\n", "a: 0.8154\n").empty());
  EXPECT_TRUE(text_differences("a: 0.8154 b: \"3.868 us\"\n", "a: 0.8155 b: \"3.871 us\"\n").empty());
  EXPECT_TRUE(text_differences("a: 0.12\n", "a: 0.13\n").empty());
  EXPECT_EQ(text_differences("a: 0.8154\n", "a: 0.8174\n").size(), 1u);
  EXPECT_EQ(text_differences("a: 0.8154\n", "b: 0.8154\n").size(), 1u);
  EXPECT_EQ(text_differences("a: 1\nb: 2\nc: 3\n", "a: 1\nc: 3\n").size(), 1u);  // shifted from there on
  EXPECT_EQ(text_differences("a: 1\n", "a: 1\nb: 2\n").size(), 1u);
}

}  // namespace
}  // namespace stepsim
