#include "hardware/gemm_cost.h"

#include <gtest/gtest.h>

#include <cmath>

namespace stepsim {
namespace {

// Round numbers, so that a person can check: 100 TFLOP/s, 1 TB/s, 100 SMs.
GpuSpec roofline_gpu() {
  GpuSpec gpu = load_gpu("a100");
  gpu.peak_tflops = {{"bf16", 100}, {"fp8", 200}, {"fp32", 10}};
  gpu.hbm = BytesPerSecond(1e12);
  gpu.sms = 100;
  gpu.fit.gemm_fixed = std::chrono::microseconds(4);
  gpu.fit.gemm_compute = 0.5;
  gpu.fit.gemm_compute_fp8 = 0.25;
  gpu.fit.gemm_compute_fp32 = 0.5;
  gpu.fit.gemm_memory = 0.8;
  gpu.fit.gemm_tile.reset();
  return gpu;
}

// An SM computes 0.5 TFLOP/s and takes operands at 1 TB/s: never bound by feed, since a tile of 16 x 64 needs 160 bytes for 2048 FLOPs.
GpuSpec tiled_gpu(double waves) {
  GpuSpec gpu = roofline_gpu();
  gpu.fit.gemm_tile =
      GemmTileFit{.fixed = std::chrono::microseconds(2), .compute = 0.5, .memory = 0.8, .feed = BytesPerSecond(1e12), .waves = waves};
  return gpu;
}

double us(Duration d) { return seconds(d) * 1e6; }

// (a^2.5 + b^2.5)^(1 / 2.5), as the specification writes it.
double overlapped(double a, double b) { return std::pow(std::pow(a, 2.5) + std::pow(b, 2.5), 0.4); }

TEST(RooflineGemm, BoundByCompute) {
  // 2 * 1000^3 FLOPs / (0.5 * 100e12) = 40 us; 2 * 3 * 1000^2 bytes / (0.8 * 1e12) = 7.5 us. 8 x 8 tiles of 128 on 100 SMs.
  const DeviceCost cost = gemm_cost(roofline_gpu(), {.m = 1000, .n = 1000, .k = 1000});
  EXPECT_DOUBLE_EQ(us(cost.fixed), 4);
  EXPECT_DOUBLE_EQ(us(cost.alone), 40);
  EXPECT_EQ(cost.bound, Bound::kCompute);
  EXPECT_DOUBLE_EQ(cost.sm, 0.64);
  EXPECT_DOUBLE_EQ(cost.hbm, 6e6 / 40e-6 / 1e12);  // 6 MB in 40 us of 1 TB/s
}

TEST(RooflineGemm, BoundByMemory) {
  // k = 1: 2e6 FLOPs take 0.04 us; (1000 + 1000 + 10^6) * 2 bytes / 0.8e12 = 2.505 us.
  const DeviceCost cost = gemm_cost(roofline_gpu(), {.m = 1000, .n = 1000, .k = 1});
  EXPECT_DOUBLE_EQ(us(cost.alone), 2.505);
  EXPECT_EQ(cost.bound, Bound::kMemory);
  EXPECT_NEAR(cost.hbm, 0.8, 1e-12);
}

TEST(RooflineGemm, Fp8HasItsOwnEfficiencyAndBatchesCount) {
  // 2 * 1000^3 * 3 / (0.25 * 200e12) = 120 us.
  const DeviceCost cost = gemm_cost(roofline_gpu(), {.m = 1000, .n = 1000, .k = 1000, .batch = 3, .dtype = DType::kFp8});
  EXPECT_DOUBLE_EQ(us(cost.alone), 120);
  EXPECT_EQ(cost.sm, 1);
}

// 1280 x 1280 are 100 tiles of 128 x 128: one full wave. k = 1280: 2 * 128 * 128 * 1280 / 0.5e12 = 83.88608 us and 0.05 us a wave;
// 3 * 1280^2 * 2 bytes / 0.8e12 = 12.288 us.
TEST(TiledGemm, OneFullWave) {
  for (const double waves : {0.0, 1.0}) {
    const DeviceCost cost = gemm_cost(tiled_gpu(waves), {.m = 1280, .n = 1280, .k = 1280});
    EXPECT_DOUBLE_EQ(us(cost.fixed), 2);
    EXPECT_NEAR(us(cost.alone), overlapped(83.93608, 12.288), 1e-5);
    EXPECT_EQ(cost.bound, Bound::kCompute);
    EXPECT_EQ(cost.sm, 1);
    EXPECT_NEAR(cost.hbm, 9.8304e6 / seconds(cost.alone) / 1e12, 1e-9);
  }
}

// A row more: 11 x 10 tiles of 128 x 128. Small tiles round off least: 81 x 20 of 16 x 64, each a sixteenth, are 16.2 waves, or 17 where a
// part-filled wave takes as long as a full one (two of 128 x 128 would be 167.9 us).
TEST(TiledGemm, WavesOfOneRowMore) {
  const Gemm work{.m = 1281, .n = 1280, .k = 1280};
  const double memory = 2.0 * (1281 * 1280 + 1280 * 1280 + 1281 * 1280) / 0.8e6, wave = 83.88608 / 16 + 0.05;
  EXPECT_NEAR(us(gemm_cost(tiled_gpu(1), work).alone), overlapped(17 * wave, memory), 1e-5);
  EXPECT_NEAR(us(gemm_cost(tiled_gpu(0), work).alone), overlapped(16.2 * wave, memory), 1e-5);
  EXPECT_NEAR(us(gemm_cost(tiled_gpu(0.5), work).alone), overlapped(16.6 * wave, memory), 1e-5);
}

// 16 tiles of 16 x 64 leave 84 SMs idle: 2 * 16 * 64 * 16384 / 0.5e12 = 67.1 us. 8 parts of k are 128 tiles, 1.28 waves of 67.1 / 8 + 0.05:
// 10.80 us; 8 parts of 128 x 128 elements add 8 bytes each to 8.421 MB: 11.84 us.
TEST(TiledGemm, SplitOfKCostsAMicrosecond) {
  const GpuSpec gpu = tiled_gpu(0);
  const DeviceCost cost = gemm_cost(gpu, {.m = 128, .n = 128, .k = 16384});
  EXPECT_DOUBLE_EQ(us(cost.fixed), 3);
  const double bytes = 2 * (2 * 128 * 16384 + 128 * 128) + 8 * 8 * 128 * 128;
  EXPECT_NEAR(us(cost.alone), overlapped(1.28 * (67.108864 / 8 + 0.05), bytes / 0.8e6), 1e-5);
  // k too short for two parts of 128.
  EXPECT_DOUBLE_EQ(us(gemm_cost(gpu, {.m = 128, .n = 128, .k = 255}).fixed), 2);
}

// One tile of 16 x 64, in 16 parts of k: 84 of 100 SMs idle.
TEST(TiledGemm, FewTilesAreBoundByWaves) {
  const DeviceCost cost = gemm_cost(tiled_gpu(0), {.m = 16, .n = 64, .k = 4096});
  EXPECT_EQ(cost.bound, Bound::kWaves);
  EXPECT_DOUBLE_EQ(cost.sm, 0.16);
}

// One SM takes 5 GB/s: a step of k of a tile of 256 x 128 needs 2 * 384 bytes, 153.6 ns, and computes 2 * 256 * 128 / 0.5e12 s, 131.1 ns.
TEST(TiledGemm, FeedOfAnSm) {
  GpuSpec gpu = tiled_gpu(0);
  gpu.fit.gemm_tile->feed = BytesPerSecond(5e9);
  const DeviceCost cost = gemm_cost(gpu, {.m = 12800, .n = 12800, .k = 1280});
  EXPECT_EQ(cost.bound, Bound::kFeed);
  // Tiles of 256 x 128 feed best: 50 x 100 of them, 50 waves; the 393 MB of memory traffic take a twentieth of that.
  EXPECT_NEAR(us(cost.alone) / (50 * (2 * 384 / 5e3 * 1280 + 0.05)), 1, 2e-3);
}

// At 0.1 TB/s 2 * (2 * 12800 * 16 + 12800^2) bytes take 4106.24 us; k = 16 counts as 64: 50 waves of 2 * 256 * 128 * 64 / 0.5e12 + 0.05 us.
TEST(TiledGemm, BoundByMemory) {
  GpuSpec gpu = tiled_gpu(0);
  gpu.hbm = BytesPerSecond(1e11);
  const DeviceCost cost = gemm_cost(gpu, {.m = 12800, .n = 12800, .k = 16});
  EXPECT_EQ(cost.bound, Bound::kMemory);
  EXPECT_NEAR(us(cost.alone), overlapped(4106.24, 50 * (8.388608 + 0.05)), 1e-4);
}

// 100 batches of one tile are one wave, as 10 x 10 tiles are.
TEST(TiledGemm, BatchesMultiplyTiles) {
  const GpuSpec gpu = tiled_gpu(1);
  const DeviceCost cost = gemm_cost(gpu, {.m = 128, .n = 128, .k = 1280, .batch = 100});
  EXPECT_NEAR(us(cost.alone), overlapped(83.93608, 100 * 2.0 * (2 * 128 * 1280 + 128 * 128) / 0.8e6), 1e-5);
  EXPECT_EQ(cost.sm, 1);
}

// NT takes 1.5 times the tensor cores' 83.88608 us; the fp32 gradient is read and written: 8 instead of 2 bytes an element. In bf16 it is
// 4 bytes.
TEST(TiledGemm, WeightGradients) {
  GpuSpec gpu = tiled_gpu(0);
  gpu.fit.gemm_tile->weight_gradient = 1.5;
  const Gemm forward{.m = 1280, .n = 1280, .k = 1280, .transpose_a = true};
  EXPECT_NEAR(us(gemm_cost(gpu, forward).alone), overlapped(83.93608, 12.288), 1e-5);
  Gemm gradient{.m = 1280, .n = 1280, .k = 1280, .transpose_b = true, .accumulate_fp32 = true};
  const double tiles = 1.5 * 83.88608 + 0.05, element = 1280 * 1280 / 0.8e6;
  EXPECT_NEAR(us(gemm_cost(gpu, gradient).alone), overlapped(tiles, 12 * element), 1e-5);
  gradient.accumulate_fp32 = false;
  gradient.accumulate = true;
  EXPECT_NEAR(us(gemm_cost(gpu, gradient).alone), overlapped(tiles, 8 * element), 1e-5);
}

// fp8: twice the peak at half the efficiency, half the bytes; fp32 keeps roofline3: 2 * 1280^3 / 5e12.
TEST(TiledGemm, OtherDTypes) {
  const GpuSpec gpu = tiled_gpu(0);
  const DeviceCost fp8 = gemm_cost(gpu, {.m = 1280, .n = 1280, .k = 1280, .dtype = DType::kFp8});
  EXPECT_NEAR(us(fp8.alone), overlapped(83.93608, 6.144), 1e-5);
  const DeviceCost fp32 = gemm_cost(gpu, {.m = 1280, .n = 1280, .k = 1280, .dtype = DType::kFp32});
  EXPECT_DOUBLE_EQ(us(fp32.fixed), 4);
  EXPECT_NEAR(us(fp32.alone), 2.0 * 1280 * 1280 * 1280 / 5e6, 1e-5);
}

TEST(TiledGemm, NothingTakesNoTime) {
  EXPECT_EQ(gemm_cost(tiled_gpu(1), {}).alone.count(), 0);
  EXPECT_EQ(gemm_cost(tiled_gpu(1), {.m = 128, .n = 0, .k = 128}).alone.count(), 0);
}

// The fifth root is Newton's: equal to pow at every ratio of the two parts, to the picosecond.
TEST(TiledGemm, OverlapIsThePowerMean) {
  GpuSpec gpu = tiled_gpu(0);
  const double tiles = 83.93608, bytes = 6 * 1280 * 1280;
  for (double memory = 1; memory < 5000; memory *= 1.1) {
    gpu.hbm = BytesPerSecond(bytes / (memory * 1e-6) / 0.8);
    EXPECT_NEAR(us(gemm_cost(gpu, {.m = 1280, .n = 1280, .k = 1280}).alone), overlapped(tiles, memory), 2e-6 + 1e-12 * memory) << memory;
  }
}

// A machine file's own roofline3, and a user's, stand in place of the tiles of the base; so do tiles of its own.
TEST(GemmModel, OfAMachine) {
  EXPECT_TRUE(load_gpu("h100").fit.gemm_tile.has_value());
  EXPECT_TRUE(load_gpu("h20").fit.gemm_tile.has_value());  // an H100 with fewer SMs
  for (const char* name : {"v100-sxm-32gb", "p100", "rtx-4090", "rtx-5090", "l4", "a6000", "mi300x", "tpu-v5p", "rubin-nvl144"}) {
    EXPECT_FALSE(load_gpu(name).fit.gemm_tile.has_value()) << name;
  }
  using Values = std::vector<std::pair<std::string, std::string>>;
  EXPECT_FALSE(load_gpu("h100", Values{{"gemm.compute", "0.5"}}).fit.gemm_tile.has_value());
  EXPECT_TRUE(load_gpu("h100", Values{{"gemm.compute_fp8", "0.5"}}).fit.gemm_tile.has_value());
  const GpuSpec tiled = load_gpu("h100", Values{{"gemm_tile.waves", "0.25"}});
  ASSERT_TRUE(tiled.fit.gemm_tile.has_value());
  EXPECT_EQ(tiled.fit.gemm_tile->waves, 0.25);
  EXPECT_EQ(tiled.fit.gemm_tile->feed.value, load_gpu("h100").fit.gemm_tile->feed.value);
}

}  // namespace
}  // namespace stepsim
