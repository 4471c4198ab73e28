#include "hardware/kernel_explanation.h"

#include <gtest/gtest.h>

#include "hardware/device_cost.h"

namespace stepsim {
namespace {

using std::chrono::microseconds;

// Round numbers, so that a person can check: 100 TFLOP/s, 1 TB/s, 100 SMs; 0.5 of the tensor cores and 0.8 of memory are reached.
GpuSpec round_gpu() {
  GpuSpec gpu = load_gpu("a100");
  gpu.peak_tflops = {{"bf16", 100}};
  gpu.hbm = BytesPerSecond(1e12);
  gpu.sms = 100;
  gpu.nvlink_per_direction = BytesPerSecond(100e9);
  gpu.fit.gemm_tile =
      GemmTileFit{.fixed = microseconds(2), .compute = 0.5, .memory = 0.8, .feed = BytesPerSecond(1e12), .waves = 0, .weight_gradient = 1};
  gpu.fit.memory_fixed = microseconds(2);
  gpu.fit.memory_norm = 0.5;
  gpu.fit.all_reduce = {.fixed = microseconds(10), .per_rank = {}, .bus = 0.8, .small_group = 0, .pipeline = {}};
  gpu.fit.network_hop = {};
  return gpu;
}

ClusterSpec round_cluster() {
  ClusterSpec cluster = load_cluster("selene-a100");
  cluster.nvlink_domain = 8;
  cluster.network_per_gpu = BytesPerSecond(10e9);
  cluster.network_efficiency = 0.5;
  return cluster;
}

KernelExplanation explained(const GpuSpec& gpu, const OpWork& work) { return kernel_explanation(gpu, round_cluster(), work); }

// 100 x 100 tiles of 128 x 128 or their like: 2 * 12800^3 FLOPs take 83886 us at 50 TFLOP/s, whatever the tiles; the 983 MB take 1229 us at
// 0.8 TB/s, a 1.5th percent of that: less than 0.01 % longer. With 0.05 us for each of 50 or 100 waves and 2 us fixed: 50 % less 0.05 %.
TEST(KernelExplanation, LargeProductsAreBoundByCompute) {
  const KernelExplanation why = explained(round_gpu(), Gemm{.m = 12800, .n = 12800, .k = 12800});
  EXPECT_EQ(why.bound_by, "compute");
  EXPECT_NEAR(why.efficiency, 0.5, 5e-4);
  EXPECT_EQ(why.of, "100 TFLOP/s bf16");
  EXPECT_NE(why.detail.find(" waves, 100 SMs"), std::string::npos) << why.detail;
}

// k = 64: 2 * (2 * 12800 * 64 + 12800^2) = 330.96 MB take 413.7 us at 0.8 TB/s; 2 * 12800^2 * 64 FLOPs take 419.4 at 50 TFLOP/s. At half
// the memory bandwidth 827.4 us, so that both (x^2.5 + y^2.5)^0.4 are 885.8: 2.097e10 / 887.8 us is 23.6 % of 100 TFLOP/s, and the 331 MB
// are 74.6 % of 0.5 TB/s.
TEST(KernelExplanation, SkinnyProductsAreBoundByMemory) {
  GpuSpec gpu = round_gpu();
  gpu.hbm = BytesPerSecond(0.5e12);
  const KernelExplanation why = explained(gpu, Gemm{.m = 12800, .n = 12800, .k = 64});
  EXPECT_EQ(why.bound_by, "memory");
  EXPECT_NEAR(why.efficiency, 0.236, 2e-3);
  EXPECT_NE(why.detail.find("75 % of 500 GB/s HBM"), std::string::npos) << why.detail;
}

// One tile: 2 * 16 * 64 * 64 / 0.5 TFLOP/s and 0.05 us are 0.31 us; 2 us are fixed.
TEST(KernelExplanation, TinyProductsAreBoundByLatency) {
  const KernelExplanation why = explained(round_gpu(), Gemm{.m = 16, .n = 16, .k = 64});
  EXPECT_EQ(why.bound_by, "latency");
  EXPECT_LT(why.efficiency, 1e-3);
}

// An SM takes 5 GB/s: a step of k of a 256 x 128 tile needs 153.6 ns for 2 * 384 bytes and 131.1 ns for 2 * 256 * 128 FLOPs: 0.5 * 0.853.
TEST(KernelExplanation, ProductsBoundByFeed) {
  GpuSpec gpu = round_gpu();
  gpu.fit.gemm_tile->feed = BytesPerSecond(5e9);
  const KernelExplanation why = explained(gpu, Gemm{.m = 12800, .n = 12800, .k = 12800});
  EXPECT_EQ(why.bound_by, "feed");
  EXPECT_NEAR(why.efficiency, 0.4267, 5e-4);
  EXPECT_NE(why.detail.find("256x128 tiles, 50 waves"), std::string::npos) << why.detail;
}

// 109 tiles of 256 x 128 on the 108 SMs of an A100 are 1.01 waves, and a part-filled wave takes as long as a full one: 2 waves. The model
// flees to 218 tiles of 128 x 128, 2.02 waves that take 3; k is too short for two parts. The constants are those of gemm_fit_params.json:
// an SM computes 0.8162 * 312 / 108 = 2.358 TFLOP/s and is fed 33.35 GB/s, so that a step of k takes max(27.8, 23.0) ns in the larger
// tiles, max(13.9, 15.35) ns in the smaller ones: 2 (256 * 27.8 + 50) ns against 3 (256 * 15.35 + 50) ns = 11.94 us. 14.4 MB take 8.5 us of
// 0.8313 * 2.039 TB/s; both 11.94 (1 + 0.712^2.5)^0.4 = 13.8 us.
TEST(KernelExplanation, OneTileTooManyIsBoundByWaves) {
  GpuSpec gpu = load_gpu("a100-sxm-80gb");
  ASSERT_EQ(gpu.sms, 108);
  gpu.fit.gemm_tile = GemmTileFit{
      .fixed = microseconds(4), .compute = 0.8162, .memory = 0.8313, .feed = BytesPerSecond(33.35e9), .waves = 1, .weight_gradient = 1};
  const KernelExplanation why = explained(gpu, Gemm{.m = 256, .n = 109 * 128, .k = 255});
  EXPECT_EQ(why.bound_by, "waves");
  EXPECT_EQ(why.detail.substr(0, 33), "128x128 tiles, 2.02 waves, 108 SM");
  // 2 * 256 * 128 * 109 * 255 FLOPs = 1.822e9 in 13.8 and 4 us: 102 of 312 TFLOP/s.
  EXPECT_NEAR(why.efficiency, 0.328, 2e-3);
}

// 100 MB read and written take 200 us at 0.5 TB/s, 202 with the fixed part: 1e8 / 202 us are 49.5 % of 1 TB/s.
TEST(KernelExplanation, KernelsBoundByMemory) {
  const MemoryBound norm{.read = Bytes(60000000), .written = Bytes(40000000), .kernel = MemoryKernel::kNorm};
  const KernelExplanation why = explained(round_gpu(), norm);
  EXPECT_EQ(why.bound_by, "memory");
  EXPECT_NEAR(why.efficiency, 100.0 / 202, 1e-6);
  EXPECT_EQ(why.of, "1 TB/s HBM");
  EXPECT_EQ(why.detail, "norm");
  EXPECT_EQ(explained(round_gpu(), MemoryBound{.read = Bytes(4096), .kernel = MemoryKernel::kNorm}).bound_by, "latency");
}

// A stack whose kernels take 1.25 times as long: 250 us and the fixed 2.
TEST(KernelExplanation, NamesWhatAStackTakes) {
  GpuSpec gpu = round_gpu();
  gpu.fit.sustained.memory = 1.25;
  const KernelExplanation why = explained(gpu, MemoryBound{.read = Bytes(100000000), .kernel = MemoryKernel::kNorm});
  EXPECT_NEAR(why.efficiency, 100.0 / 252, 1e-6);
  EXPECT_EQ(why.detail, "norm, x 1.25 sustained");
}

// A ring of 8 sends 2 * 7 / 8 of 800 MB: 1.4 GB at 80 of 100 GB/s are 17.5 ms, and 10 us of latency.
TEST(KernelExplanation, AllReduceIsBoundByTheLink) {
  const KernelExplanation why = explained(round_gpu(), Collective{.message = Bytes(800000000), .ranks = 8});
  EXPECT_EQ(why.bound_by, "link");
  EXPECT_NEAR(why.efficiency, 14000.0 / 17510, 1e-6);
  EXPECT_EQ(why.of, "100 GB/s NVLink");
  EXPECT_NE(why.detail.find("8 ranks, latency 10.0 us"), std::string::npos) << why.detail;
  EXPECT_EQ(explained(round_gpu(), Collective{.message = Bytes(1000), .ranks = 8}).bound_by, "latency");
}

// Of 16 in two domains each NIC carries an eighth of 2 * 15 / 16 * 800 MB: 187.5 MB at half of 10 GB/s are 37.5 ms; NVLink would
// take 18.75.
TEST(KernelExplanation, AllReduceBetweenNodesIsBoundByTheNetwork) {
  const KernelExplanation why = explained(round_gpu(), Collective{.message = Bytes(800000000), .ranks = 16});
  EXPECT_EQ(why.bound_by, "network");
  EXPECT_NEAR(why.efficiency, 18750.0 / 37510, 1e-3);
  EXPECT_EQ(why.of, "10 GB/s network");
}

// 25.5 GB/s of an A100's PCIe 4 (hardware/data/machines/a100-sxm-80gb.textproto): all of it but the 6 us in front.
TEST(KernelExplanation, CopiesAreBoundByTheHostLink) {
  const GpuSpec gpu = load_gpu("a100-sxm-80gb");
  const KernelExplanation why = explained(gpu, Copy{.bytes = Bytes(255000000), .direction = CopyDirection::kHostToDevice});
  EXPECT_EQ(why.bound_by, "host link");
  EXPECT_NEAR(why.efficiency, 10000.0 / 10006, 1e-6);
  EXPECT_EQ(why.of, "25.5 GB/s host link");
  EXPECT_EQ(why.detail, "pinned, in");
}

// FlashAttention at S = 4096: the rate of the fit over the peak, on all SMs.
TEST(KernelExplanation, AttentionIsBoundByCompute) {
  GpuSpec gpu = round_gpu();
  gpu.sms = 128;  // 4 * 32 * 4096 / 128 blocks are 32 full waves
  AttentionFit fit{.kernel = 0, .fixed = microseconds(5), .memory = 0.8, .rates = {}};
  fit.rates.push_back(
      {.head_dim = 128, .causal = true, .forward = 0.6, .forward_half_length = 1024, .backward = 0.5, .backward_half_length = 0});
  gpu.fit.attention = {fit};
  const Attention work{.batch = 4, .heads = 32, .kv_heads = 32, .queries = 4096, .keys = 4096, .head_dim = 128};
  const KernelExplanation why = explained(gpu, work);
  EXPECT_EQ(why.bound_by, "compute");
  // 2 * 4 * 32 * 4096^2 * 128 = 5.498e11 FLOPs at 0.6 / (1 + 1024 / 4096) = 0.48 of 100 TFLOP/s: 11453 us and 5.
  EXPECT_NEAR(why.efficiency, 0.48 * 11453.2 / 11458.2, 1e-3);
  EXPECT_EQ(why.detail, "flash 2 forward");
}

}  // namespace
}  // namespace stepsim
