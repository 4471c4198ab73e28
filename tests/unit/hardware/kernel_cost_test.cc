#include "hardware/kernel_cost.h"

#include <gtest/gtest.h>

#include "hardware/collective_cost.h"
#include "hardware/gemm_cost.h"
#include "hardware/roofline_cost_model.h"
#include "sim/input_error.h"

namespace stepsim {
namespace {

// Round numbers, so that a person can check: 100 TFLOP/s, 1 TB/s, 100 SMs.
GpuSpec round_gpu() {
  GpuSpec gpu = load_gpu("a100");
  gpu.peak_tflops = {{"bf16", 100}, {"fp8", 200}};
  gpu.hbm = BytesPerSecond(1e12);
  gpu.sms = 100;
  gpu.host_to_device = BytesPerSecond(25e9);
  gpu.device_to_host = BytesPerSecond(20e9);
  gpu.nvlink_per_direction = BytesPerSecond(100e9);
  const CollectiveFit fit{
      .fixed = std::chrono::microseconds(10), .per_rank = std::chrono::microseconds(1), .bus = 0.5, .small_group = 0, .pipeline = {}};
  gpu.fit.all_reduce = gpu.fit.gather = gpu.fit.all_to_all = fit;
  gpu.fit.network_hop = std::chrono::microseconds(5);
  return gpu;
}

ClusterSpec round_cluster() {
  ClusterSpec cluster = load_cluster("dgx-h100");
  cluster.nvlink_domain = 4;
  cluster.network_per_gpu = BytesPerSecond(10e9);
  cluster.network_efficiency = 1;
  return cluster;
}

double us(Duration d) { return seconds(d) * 1e6; }

TEST(MemoryBoundCost, FractionsByKind) {
  GpuSpec gpu = round_gpu();
  // 85 MB at .85 of 1 TB/s: 100 us; at .6: 141.67 us; at .7: 121.43 us.
  const auto cost = [&](MemoryKernel kernel) {
    return memory_bound_cost(gpu, {.read = Bytes(80'000'000), .written = Bytes(5'000'000), .kernel = kernel});
  };
  EXPECT_NEAR(us(cost(MemoryKernel::kFusedElementwise).alone), 100, 1e-6);
  EXPECT_NEAR(us(cost(MemoryKernel::kNorm).alone), 85 / 0.6, 1e-5);
  EXPECT_NEAR(us(cost(MemoryKernel::kSoftmax).alone), 85 / 0.7, 1e-5);
  EXPECT_DOUBLE_EQ(cost(MemoryKernel::kFusedElementwise).hbm, 0.85);
  EXPECT_EQ(cost(MemoryKernel::kFusedElementwise).sm, 1);
  EXPECT_DOUBLE_EQ(memory_bound_cost(gpu, {.read = Bytes(40960)}).sm, 0.1);  // 10 blocks of 4 KiB on 100 SMs
}

TEST(CopyCost, HostLinkAndWithinTheDevice) {
  const GpuSpec gpu = round_gpu();
  const ClusterSpec cluster = round_cluster();
  // 25 MB in at 25 GB/s: 1000 us; out at 20 GB/s: 1250 us; pageable at half; within the device 2 x 25 MB at .9 TB/s: 55.6 us.
  const Copy in{.bytes = Bytes(25'000'000), .direction = CopyDirection::kHostToDevice};
  EXPECT_DOUBLE_EQ(us(copy_cost(gpu, cluster, in).alone), 1000);
  EXPECT_EQ(copy_cost(gpu, cluster, in).link_in, 1);
  EXPECT_EQ(copy_cost(gpu, cluster, in).link_out, 0);
  EXPECT_EQ(copy_cost(gpu, cluster, in).sm, 0);
  EXPECT_DOUBLE_EQ(copy_cost(gpu, cluster, in).hbm, 0.025);
  EXPECT_DOUBLE_EQ(us(copy_cost(gpu, cluster, {.bytes = Bytes(25'000'000)}).alone), 1250);
  EXPECT_DOUBLE_EQ(us(copy_cost(gpu, cluster, {.bytes = Bytes(25'000'000), .pinned = false}).alone), 2500);
  const DeviceCost inner = copy_cost(gpu, cluster, {.bytes = Bytes(25'000'000), .direction = CopyDirection::kDeviceToDevice});
  EXPECT_NEAR(us(inner.alone), 50 / 0.9, 1e-5);
  EXPECT_EQ(inner.link_in + inner.link_out, 0);
}

TEST(AttentionCost, RateAtALength) {
  GpuSpec gpu = round_gpu();
  AttentionFit fit;
  fit.fixed = std::chrono::microseconds(5);
  fit.memory = 1;
  fit.rates = {
      {.head_dim = 64, .causal = true, .forward = 0.4, .forward_half_length = 1000, .backward = 0.2, .backward_half_length = 1000},
      {.head_dim = 128, .causal = true, .forward = 0.6, .forward_half_length = 1000, .backward = 0.3, .backward_half_length = 1000}};
  gpu.fit.attention = {fit};
  Attention work{.batch = 1, .heads = 20, .kv_heads = 20, .queries = 1000, .keys = 1000, .head_dim = 128};
  // FLOPs 4 * 20 * 1000^2 * 128 / 2 = 5.12e9; rate .6 / (1 + 1000 / 1000) = .3 of 100 TFLOP/s: 170.67 us; 8 * 20 blocks fill 100 SMs.
  EXPECT_NEAR(us(attention_cost(gpu, work).alone), 5.12e9 / 30e12 * 1e6, 1e-5);
  EXPECT_DOUBLE_EQ(us(attention_cost(gpu, work).fixed), 5);
  EXPECT_EQ(attention_cost(gpu, work).sm, 1);
  work.backward = true;  // 2.5 x the FLOPs at half the rate
  EXPECT_NEAR(us(attention_cost(gpu, work).alone), 5 * 5.12e9 / 30e12 * 1e6, 1e-5);
  work.backward = false;
  work.head_dim = 96;  // halfway between .4 and .6
  EXPECT_NEAR(us(attention_cost(gpu, work).alone), 3.84e9 / 25e12 * 1e6, 1e-5);
  work.head_dim = 256;  // the nearest is 128
  EXPECT_NEAR(us(attention_cost(gpu, work).alone), 10.24e9 / 30e12 * 1e6, 1e-5);
  work.head_dim = 128;
  work.heads = work.kv_heads = 5;  // 8 * 5 blocks on 100 SMs: .4 of the rate for a quarter of the work
  EXPECT_NEAR(us(attention_cost(gpu, work).alone), 1.28e9 / 12e12 * 1e6, 1e-5);
  EXPECT_DOUBLE_EQ(attention_cost(gpu, work).sm, 0.4);
}

TEST(CollectiveCost, NcclConventionsWithinADomain) {
  const GpuSpec gpu = round_gpu();
  const ClusterSpec cluster = round_cluster();
  // bus 50 GB/s, 4 ranks, 100 MB: all-reduce sends 150 MB, 3000 us, all-gather 75 MB, 1500 us; latency 10 + 3 us.
  const auto time = [&](CollectiveKind kind, std::int32_t ranks, std::int32_t stride = 1) {
    return us(collective_time(gpu, cluster, {.kind = kind, .message = Bytes(100'000'000), .ranks = ranks, .stride = stride}));
  };
  EXPECT_NEAR(time(CollectiveKind::kAllReduce, 4), 3013, 1e-5);
  EXPECT_NEAR(time(CollectiveKind::kAllGather, 4), 1513, 1e-5);
  EXPECT_NEAR(time(CollectiveKind::kReduceScatter, 4), 1513, 1e-5);
  EXPECT_NEAR(time(CollectiveKind::kSendReceive, 2), 2011, 1e-5);
  EXPECT_EQ(time(CollectiveKind::kAllReduce, 1), 0);
  // 8 ranks in two domains: 175 MB over the 4 NICs of a domain, 10 GB/s each: 4375 us; inside 3500 us; latency 10 + 3 + 2 * 5 us.
  EXPECT_NEAR(time(CollectiveKind::kAllReduce, 8), 4398, 1e-5);
  // One rank a domain: 150 MB over one NIC; 2 levels up and down.
  EXPECT_NEAR(time(CollectiveKind::kAllReduce, 4, 4), 15000 + 10 + 20, 1e-5);
  // All-to-all over 8: half of the buffer leaves the domain by the GPU's own NIC: 50 MB, 5000 us; one step of 5 us.
  EXPECT_NEAR(time(CollectiveKind::kAllToAll, 8), 5000 + 13 + 5, 1e-5);
}

TEST(DeviceCostTest, AbsurdSizesAreInputErrors) {
  const GpuSpec gpu = round_gpu();
  const std::int64_t huge = 1'000'000'000'000;
  EXPECT_THROW(gemm_cost(gpu, {.m = huge, .n = huge, .k = huge}), InputError);
  EXPECT_THROW(attention_cost(gpu, {.batch = huge, .heads = huge, .kv_heads = 1, .queries = huge, .keys = huge, .head_dim = 128}),
               InputError);
}

TEST(DeviceCostTest, NothingToDoTakesTheFixedPart) {
  const GpuSpec gpu = round_gpu();
  EXPECT_EQ(gemm_cost(gpu, {}).alone.count(), 0);
  EXPECT_EQ(attention_cost(gpu, {}).alone.count(), 0);
  EXPECT_EQ(memory_bound_cost(gpu, {}).alone.count(), 0);
  EXPECT_EQ(memory_bound_cost(gpu, {}).hbm, 0);
}

}  // namespace
}  // namespace stepsim
