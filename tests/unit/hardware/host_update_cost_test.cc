// Adam on the host's processor: its rate, what it shares, and the steps that Megatron-LM's users measured with it.
#include <gtest/gtest.h>

#include "hardware/kernel_cost.h"
#include "hardware/work_cost.h"

namespace stepsim {
namespace {

// p, m and v read and written, g read: 28 B a parameter of fp32.
MemoryBound adam(std::int64_t parameters) {
  return {.read = Bytes(16 * parameters), .written = Bytes(12 * parameters), .kernel = MemoryKernel::kHostUpdate};
}

// ZeRO-Offload's own measurement: 10^10 parameters in 2.57 s on a DGX-2 (two sockets of 8 GPUs, 128 GB/s each): 0.625 x 10^9 a GPU.
TEST(HostUpdateCost, IsDeepSpeedsOnItsMachine) {
  ClusterSpec cluster;
  cluster.gpus_per_host_memory = 8;
  cluster.host_memory_bandwidth = BytesPerSecond(128e9);
  const DeviceCost cost = host_update_cost(cluster, adam(625'000'000));
  EXPECT_NEAR(seconds(cost.fixed + cost.alone), 2.57, 0.03);
  EXPECT_EQ(seconds(cost.issue), 0);
}

TEST(HostUpdateCost, LoadsHostMemoryAlone) {
  ClusterSpec cluster;
  cluster.gpus_per_host_memory = 4;
  cluster.host_memory_bandwidth = BytesPerSecond(300e9);
  const DeviceCost cost = host_update_cost(cluster, adam(1'000'000));
  EXPECT_EQ(cost.sm, 0);
  EXPECT_EQ(cost.hbm, 0);
  EXPECT_NEAR(cost.host_memory * 4, 0.43, 1e-9);  // all four together
  // A quarter of the GPUs has a quarter of the processor: twice the GPUs, twice the time.
  cluster.gpus_per_host_memory = 8;
  EXPECT_NEAR(seconds(host_update_cost(cluster, adam(1'000'000)).alone), 2 * seconds(cost.alone), 1e-9);
}

// A stack's slowdown is that of the GPU's kernels.
TEST(HostUpdateCost, IsNoKernelOfTheGpu) {
  GpuSpec gpu = load_gpu("h100-sxm-80gb");
  const ClusterSpec cluster = usual_cluster(gpu);
  const Duration bare = work_cost(gpu, cluster, adam(1'000'000), TransferSide::kBoth).alone;
  gpu.fit.sustained.memory = 2;
  EXPECT_EQ(work_cost(gpu, cluster, adam(1'000'000), TransferSide::kBoth).alone, bare);
  EXPECT_GT(work_cost(gpu, cluster, MemoryBound{.read = Bytes(1 << 20)}, TransferSide::kBoth).alone.count(), 0);
}

// Qwen3-30B-A3B over 16 H100 (Megatron Bridge, spec published_measurements.md 4.9): 1871, 2484, 3187 and 4189 ms a step with 25, 50, 75 and
// 100 % of the optimizer on the host: 773 ms more for each further quarter of a rank's 30.53e9 / 16 parameters. The update's bytes at
// DeepSpeed's rate are 404 ms of it and the copies of 4 + 2 B a parameter, at 55 GB/s, 52: what is left is torch's slower Adam and the
// casts around it, so the model is to be below and above a third.
TEST(HostUpdateCost, IsMostOfWhatAnOffloadedQuarterTakes) {
  const GpuSpec gpu = load_gpu("h100-sxm-80gb");
  const ClusterSpec cluster = usual_cluster(gpu);
  const std::int64_t quarter = 30'530'000'000 / 16 / 4;
  const auto took = [&](const OpWork& work) { return seconds(work_cost(gpu, cluster, work, TransferSide::kBoth).alone); };
  const double update = took(adam(quarter));
  const double copies = took(Copy{.bytes = Bytes(4 * quarter), .direction = CopyDirection::kDeviceToHost}) +
                        took(Copy{.bytes = Bytes(2 * quarter), .direction = CopyDirection::kHostToDevice});
  const double measured = (4.189 - 1.871) / 3;
  EXPECT_NEAR(update, 0.404, 0.004);
  EXPECT_LT(update + copies, measured);
  EXPECT_GT(update + copies, measured / 3);
  EXPECT_GT(update, 4 * copies);  // "CPU Adam, not the copies, is the bottleneck"
}

}  // namespace
}  // namespace stepsim
