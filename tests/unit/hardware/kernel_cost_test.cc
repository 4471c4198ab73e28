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

// Three kernels move the same bytes: three launches for the host and three fixed parts; 40,960 bytes make 10 blocks, 3.33 a kernel.
TEST(MemoryBoundCost, SeveralKernels) {
  const GpuSpec gpu = round_gpu();
  MemoryBound work{.read = Bytes(40960)};
  const DeviceCost one = memory_bound_cost(gpu, work);
  work.launches = 3;
  const DeviceCost three = memory_bound_cost(gpu, work);
  EXPECT_EQ(three.alone, one.alone);
  EXPECT_EQ(three.fixed, 3 * one.fixed);
  EXPECT_EQ(three.issue, 3 * one.issue);
  EXPECT_DOUBLE_EQ(three.sm, 0.1 / 3);
}

// Products of 1000^3: 2 GFLOP at half of 100 TFLOP/s, 40 us each, 2 us before. Six on four streams fill the device: 2 + 240 us. Small ones,
// 100 x 100 x 250 (120 kB at 1 TB/s: 0.12 us), wait for what is before them on their stream: two rounds of 2.12 us.
TEST(GemmCost, ProductsOnStreams) {
  GpuSpec gpu = round_gpu();
  gpu.fit.gemm_tile.reset();
  gpu.fit.gemm_compute = 0.5;
  gpu.fit.gemm_memory = 1;
  gpu.fit.gemm_fixed = std::chrono::microseconds(2);
  Gemm work{.m = 1000, .n = 1000, .k = 1000, .batch = 6, .in_flight = 4};
  const DeviceCost large = gemm_cost(gpu, work);
  EXPECT_NEAR(us(large.fixed), 2, 1e-6);
  EXPECT_NEAR(us(large.alone), 240, 1e-6);
  EXPECT_EQ(large.issue, 6 * gpu.fit.kernel_issue);
  work = {.m = 100, .n = 100, .k = 250, .batch = 6, .in_flight = 4};
  EXPECT_NEAR(us(gemm_cost(gpu, work).fixed + gemm_cost(gpu, work).alone), 2 * 2.12, 1e-6);
  work.in_flight = 8;  // all six at once
  EXPECT_NEAR(us(gemm_cost(gpu, work).fixed + gemm_cost(gpu, work).alone), 2 + 6 * 0.12, 1e-6);
  work.in_flight = 0;
  EXPECT_EQ(gemm_cost(gpu, work).issue, gpu.fit.kernel_issue);
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
  Attention work{.batch = 1, .heads = 25, .kv_heads = 25, .queries = 1024, .keys = 1000, .head_dim = 128};
  // 8 blocks of 128 queries for each of 25 heads: 2 waves on 100 SMs. FLOPs 4 * 25 * 1024 * 1000 * 128 / 2 = 6.5536e9; rate
  // .6 / (1 + 1000 / 1000) = .3 of 100 TFLOP/s.
  EXPECT_NEAR(us(attention_cost(gpu, work).alone), 6.5536e9 / 30e12 * 1e6, 1e-5);
  EXPECT_DOUBLE_EQ(us(attention_cost(gpu, work).fixed), 5);
  EXPECT_EQ(attention_cost(gpu, work).sm, 1);
  work.backward = true;  // 2.5 x the FLOPs at half the rate
  EXPECT_NEAR(us(attention_cost(gpu, work).alone), 5 * 6.5536e9 / 30e12 * 1e6, 1e-5);
  work.backward = false;
  work.head_dim = 96;  // halfway between .4 and .6
  EXPECT_NEAR(us(attention_cost(gpu, work).alone), 4.9152e9 / 25e12 * 1e6, 1e-5);
  work.head_dim = 256;  // the nearest is 128
  EXPECT_NEAR(us(attention_cost(gpu, work).alone), 13.1072e9 / 30e12 * 1e6, 1e-5);
  work.head_dim = 128;
  work.heads = work.kv_heads = 5;  // 40 blocks on 100 SMs: .4 of the rate for a fifth of the work
  EXPECT_NEAR(us(attention_cost(gpu, work).alone), 1.31072e9 / 12e12 * 1e6, 1e-5);
  EXPECT_DOUBLE_EQ(attention_cost(gpu, work).sm, 0.4);
  EXPECT_EQ(attention_cost(gpu, work).bound, Bound::kWaves);  // more than half of the SMs are empty
}

TEST(AttentionCost, WavesAndWholeTiles) {
  GpuSpec gpu = round_gpu();
  AttentionFit fit;
  fit.memory = 1;
  fit.rates = {{.head_dim = 128, .causal = false, .forward = 0.5, .backward = 0.5}};
  gpu.fit.attention = {fit};
  // One block of 128 queries and 1000 keys: 4 * 128 * 1000 * 128 = 65.536e6 FLOPs on an SM of .5 TFLOP/s: 131.072 us.
  Attention work{.batch = 1, .heads = 1, .kv_heads = 1, .queries = 128, .keys = 1000, .head_dim = 128, .causal = false};
  const auto alone = [&] { return us(attention_cost(gpu, work).alone); };
  EXPECT_NEAR(alone(), 131.072, 1e-4);
  work.queries = 1;  // a tile is whole
  EXPECT_NEAR(alone(), 131.072, 1e-4);
  work.queries = 128;
  work.heads = 100;  // one wave
  EXPECT_NEAR(alone(), 131.072, 1e-4);
  work.heads = 120;  // 1.2 waves and .75 of the .8 that the second lacks: 1.8
  EXPECT_NEAR(alone(), 1.8 * 131.072, 1e-4);
  // TensorRT-LLM's op writes a cache first: memory's time comes on top, elsewhere the longer of the two counts. 2 * (120 * 128 + 1000) *
  // 128 * 2 B at .1 TB/s: 83.7632 us.
  gpu.fit.attention.front().memory = 0.1;
  EXPECT_NEAR(alone(), 1.8 * 131.072, 1e-4);
  gpu.fit.attention.front().kernel = work.kernel = 3;
  EXPECT_NEAR(alone(), 1.8 * 131.072 + 83.7632, 1e-4);
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

TEST(CollectiveCost, TheQuickerProtocolCounts) {
  GpuSpec gpu = round_gpu();
  const ClusterSpec cluster = round_cluster();
  gpu.fit.all_reduce.quick_fixed = std::chrono::microseconds(2);
  gpu.fit.all_reduce.quick_per_rank = std::chrono::microseconds(1);
  gpu.fit.all_reduce.quick_bus = 0.1;
  const auto time = [&](std::int64_t bytes, std::int32_t ranks) {
    return us(collective_time(gpu, cluster, {.kind = CollectiveKind::kAllReduce, .message = Bytes(bytes), .ranks = ranks}));
  };
  // 2 ranks send M bytes: 2 + 1 us + M / 10 GB/s against 10 + 1 us + M / 50 GB/s: alike where M .08 us/kB = 8 us, at 100 kB.
  EXPECT_NEAR(time(50'000, 2), 3 + 5, 1e-5);
  EXPECT_NEAR(time(100'000, 2), 13, 1e-5);
  EXPECT_NEAR(time(200'000, 2), 11 + 4, 1e-5);
  // 8 ranks in two domains of 4 send 87.5 kB, their four NICs a quarter each: 2.1875 us. Quick: 2 + 3 + 8.75 us, streamed: 10 + 3 us and
  // the network's 2.1875 rather than 1.75 us; two hops of 5 us.
  EXPECT_NEAR(time(50'000, 8), 13.75 + 10, 1e-5);
}

TEST(CollectiveCost, ExpertLibrariesWithinAndAcrossDomains) {
  GpuSpec gpu = round_gpu();
  const ClusterSpec cluster = round_cluster();
  ExpertExchange exchange{.library = CollectiveLibrary::kHybridEp, .fixed = std::chrono::microseconds(7), .sms = 32, .rates = {}};
  exchange.rates = {{2, BytesPerSecond(50e9), BytesPerSecond(40e9)}, {4, BytesPerSecond(30e9), BytesPerSecond(20e9)}};
  gpu.fit.expert_exchanges = {exchange};
  Collective work{.kind = CollectiveKind::kDispatch, .message = Bytes(120'000'000), .ranks = 2, .library = CollectiveLibrary::kHybridEp};
  const auto time = [&] { return us(collective_time(gpu, cluster, work)); };
  EXPECT_NEAR(time(), 7 + 2400, 1e-5);
  EXPECT_DOUBLE_EQ(collective_cost(gpu, cluster, work).sm, 0.32);
  EXPECT_DOUBLE_EQ(collective_cost(gpu, cluster, work).nvlink_out, 0.25);  // half of the bytes leave the GPU, in 2400 us at 100 GB/s
  work.ranks = 3;                                                          // halfway: 40 GB/s
  EXPECT_NEAR(time(), 7 + 3000, 1e-5);
  work.kind = CollectiveKind::kCombine;  // 30 GB/s
  EXPECT_NEAR(time(), 7 + 4000, 1e-5);
  work.kind = CollectiveKind::kDispatch;
  work.ranks = 8;  // two domains: half of the bytes at the NIC's 10 GB/s, one hop of 5 us; 30 GB/s within them
  EXPECT_NEAR(time(), 7 + 5 + 6000, 1e-5);
  EXPECT_EQ(collective_cost(gpu, cluster, work).bound, Bound::kNetwork);
  // 2 of 8 experts, one a rank: a token's two copies are for 2 x 11/14 domains, of which it crosses to the other: 120 MB x 11/14 / 2.
  work.routing = {.experts = 8, .choices = 2};
  EXPECT_NEAR(time(), 7 + 5 + 6000 * 11.0 / 14, 1e-5);
  work.routing = {};
  // Without rates of the library: NCCL's all-to-all. 3/4 of the bytes at 50 GB/s, 10 + 3 us.
  work.ranks = 4;
  work.library = CollectiveLibrary::kDeepEp;
  EXPECT_NEAR(time(), 1800 + 13, 1e-5);
  work.library = CollectiveLibrary::kNccl;
  EXPECT_NEAR(time(), 1800 + 13, 1e-5);
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
