// Laws of the cost models over random shapes: more work or more ranks never take less time, loads are fractions, absurd sizes are refused
// and never overflow, and the same question has the same answer.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <random>

#include "hardware/collective_cost.h"
#include "hardware/gemm_cost.h"
#include "hardware/kernel_cost.h"
#include "sim/input_error.h"

namespace stepsim {
namespace {

constexpr unsigned kSeed = 20261130;

const std::vector<std::string>& machines() {
  static const std::vector<std::string> kMachines = {"a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200",     "b300",
                                                     "gb200-nvl72",   "gb300-nvl72",   "h800-sxm-80gb",  "rtx-4090", "v100-sxm-32gb"};
  return kMachines;
}

Duration total(const DeviceCost& cost) { return cost.fixed + cost.alone; }

void expect_fractions(const DeviceCost& cost, const std::string& what) {
  for (const double load : {cost.sm, cost.hbm, cost.link_in, cost.link_out, cost.host_memory, cost.nvlink_in, cost.nvlink_out,
                            cost.network_in, cost.network_out, cost.link_both, cost.root_in, cost.root_out, cost.root_both}) {
    EXPECT_GE(load, 0) << what;
    EXPECT_LE(load, 1) << what;
  }
  EXPECT_GE(cost.fixed.count(), 0) << what;
  EXPECT_GE(cost.alone.count(), 0) << what;
}

class Shapes {
 public:
  explicit Shapes(unsigned seed) : random_(seed) {}
  // From 1 to 2^most, alike in every power of two.
  std::int64_t size(int most) {
    const int power = static_cast<int>(uniform() * most);
    return 1 + static_cast<std::int64_t>(std::ldexp(uniform(), power));
  }
  std::int64_t one_of(std::initializer_list<std::int64_t> all) {
    return all.begin()[static_cast<std::size_t>(uniform() * static_cast<double>(all.size()))];
  }

 private:
  double uniform() { return static_cast<double>(random_()) / 4294967296.0; }
  std::mt19937 random_;
};

constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                                     CollectiveKind::kAllToAll,  CollectiveKind::kBroadcast, CollectiveKind::kDispatch,
                                     CollectiveKind::kCombine};

TEST(KernelCostProperties, CollectivesGrowWithMessageAndRanks) {
  std::printf("seed %u\n", kSeed);
  Shapes shapes(kSeed);
  for (const std::string& name : machines()) {
    const GpuSpec gpu = load_gpu(name);
    const ClusterSpec cluster = usual_cluster(gpu);
    for (int trial = 0; trial < 60; ++trial) {
      for (const CollectiveKind kind : kKinds) {
        Collective work{.kind = kind,
                        .message = Bytes(shapes.size(34)),
                        .ranks = static_cast<std::int32_t>(shapes.size(9)),
                        .stride = static_cast<std::int32_t>(shapes.one_of({1, 1, 1, 2, 8})),
                        .library = shapes.one_of({0, 1}) == 0 ? CollectiveLibrary::kHybridEp : CollectiveLibrary::kDeepEp};
        const std::string what = name + " kind " + std::to_string(static_cast<int>(kind)) + " bytes " + std::to_string(work.message.value) +
                                 " ranks " + std::to_string(work.ranks) + " stride " + std::to_string(work.stride);
        const DeviceCost cost = collective_cost(gpu, cluster, work);
        expect_fractions(cost, what);
        EXPECT_EQ(total(cost), total(collective_cost(gpu, cluster, work))) << what;
        Collective larger = work;
        larger.message = Bytes(work.message.value + 1 + shapes.size(20));
        EXPECT_GE(total(collective_cost(gpu, cluster, larger)), total(cost)) << what << " to " << larger.message.value;
        Collective wider = work;
        wider.ranks = work.ranks + static_cast<std::int32_t>(shapes.size(6));
        // A domain with few members of the group is the bottleneck of their NICs: only groups that fill their domains grow.
        const std::int32_t local = std::max(1, cluster.nvlink_domain / work.stride), part = std::max(1, cluster.segment / work.stride);
        const auto fills = [&](std::int32_t ranks) { return ranks <= local || ranks % (cluster.segment > 0 ? part : local) == 0; };
        if (!fills(work.ranks) || !fills(wider.ranks)) continue;
        EXPECT_GE(total(collective_cost(gpu, cluster, wider)), total(cost)) << what << " to " << wider.ranks;
      }
    }
  }
}

// A hundredth more bytes is at most a fiftieth more time: protocols meet where they take as long.
TEST(KernelCostProperties, CollectivesHaveNoJumpInTheMessage) {
  for (const std::string& name : machines()) {
    const GpuSpec gpu = load_gpu(name);
    const ClusterSpec cluster = usual_cluster(gpu);
    for (const CollectiveKind kind : kKinds) {
      for (const std::int32_t ranks : {2, 3, 8, 9, 16, 64, 72, 100}) {
        Duration before{};
        for (double bytes = 1 << 10; bytes < 4e9; bytes *= 1.01) {
          const Collective work{.kind = kind, .message = Bytes(static_cast<std::int64_t>(bytes)), .ranks = ranks};
          const Duration now = total(collective_cost(gpu, cluster, work));
          if (before.count() > 0) {
            EXPECT_LE(seconds(now), 1.02 * seconds(before)) << name << " " << ranks << " ranks, " << bytes << " B";
          }
          before = now;
        }
      }
    }
  }
}

TEST(KernelCostProperties, AttentionGrowsWithEveryDimension) {
  Shapes shapes(kSeed + 1);
  for (const std::string& name : machines()) {
    const GpuSpec gpu = load_gpu(name);
    if (gpu.peak_tflops.count("fp16") == 0) continue;
    for (int trial = 0; trial < 400; ++trial) {
      const Attention work{.batch = shapes.size(8),
                           .heads = shapes.size(7),
                           .kv_heads = 1,
                           .queries = shapes.size(16),
                           .keys = shapes.size(16),
                           .head_dim = shapes.one_of({64, 128, 256}),
                           .dtype = DType::kFp16,
                           .causal = shapes.one_of({0, 1}) == 1,
                           .backward = shapes.one_of({0, 1}) == 1,
                           .kernel = static_cast<std::int8_t>(shapes.one_of({0, 1, 2, 3, 4, 5}))};
      const DeviceCost cost = attention_cost(gpu, work);
      const std::string what = name + " kernel " + std::to_string(work.kernel) + " " + std::to_string(work.batch) + "x" +
                               std::to_string(work.heads) + " " + std::to_string(work.queries) + "x" + std::to_string(work.keys);
      expect_fractions(cost, what);
      for (std::int64_t Attention::*dimension :
           {&Attention::batch, &Attention::heads, &Attention::kv_heads, &Attention::queries, &Attention::keys}) {
        Attention larger = work;
        larger.*dimension += shapes.size(7);
        EXPECT_GE(total(attention_cost(gpu, larger)), total(cost)) << what;
      }
    }
  }
}

TEST(KernelCostProperties, MemoryKernelsGrowWithBytes) {
  Shapes shapes(kSeed + 2);
  for (const std::string& name : machines()) {
    const GpuSpec gpu = load_gpu(name);
    for (int kernel = 0; kernel <= static_cast<int>(MemoryKernel::kTopK); ++kernel) {
      for (int trial = 0; trial < 100; ++trial) {
        const MemoryBound work{
            .read = Bytes(shapes.size(36)), .written = Bytes(shapes.size(36)), .kernel = static_cast<MemoryKernel>(kernel)};
        MemoryBound larger = work;
        larger.read = Bytes(work.read.value + shapes.size(30));
        expect_fractions(memory_bound_cost(gpu, work), name);
        EXPECT_GE(total(memory_bound_cost(gpu, larger)), total(memory_bound_cost(gpu, work))) << name << " kernel " << kernel;
      }
    }
  }
}

// Of one layout: the number of tiles, and with it the best tile, follows the shape.
TEST(KernelCostProperties, ProductsGrowWithDepthAndBatch) {
  Shapes shapes(kSeed + 3);
  for (const std::string& name : machines()) {
    const GpuSpec gpu = load_gpu(name);
    if (gpu.peak_tflops.count("fp16") == 0) continue;
    for (int trial = 0; trial < 300; ++trial) {
      const Gemm work{.m = shapes.size(14), .n = shapes.size(14), .k = shapes.size(14), .batch = shapes.size(4), .dtype = DType::kFp16};
      const DeviceCost cost = gemm_cost(gpu, work);
      const std::string what = name + " " + std::to_string(work.m) + " " + std::to_string(work.n) + " " + std::to_string(work.k);
      expect_fractions(cost, what);
      for (std::int64_t Gemm::*dimension : {&Gemm::m, &Gemm::n, &Gemm::k, &Gemm::batch}) {
        Gemm larger = work;
        larger.*dimension += shapes.size(8);
        EXPECT_GE(total(gemm_cost(gpu, larger)), total(cost)) << what << " x " << work.batch;
      }
    }
  }
}

// A time or a refusal, never an overflow (undefined-behaviour sanitizer) and never a negative duration.
template <class Cost>
void expect_time_or_refusal(const Cost& cost) {
  try {
    const DeviceCost found = cost();
    expect_fractions(found, "absurd size");
  } catch (const InputError&) {
  }
}

TEST(KernelCostProperties, AbsurdSizesNeverOverflow) {
  const std::int64_t sizes[] = {0, 1, 1'000'000'000'000, std::int64_t{1} << 62, std::numeric_limits<std::int64_t>::max()};
  int asked = 0;
  for (const std::string& name : machines()) {
    const GpuSpec gpu = load_gpu(name);
    const ClusterSpec cluster = usual_cluster(gpu);
    for (const std::int64_t size : sizes) {
      for (const CollectiveKind kind : kKinds) {
        for (const std::int32_t ranks : {1, 2, 72, 1 << 20, std::numeric_limits<std::int32_t>::max()}) {
          expect_time_or_refusal([&] { return collective_cost(gpu, cluster, {.kind = kind, .message = Bytes(size), .ranks = ranks}); });
          ++asked;
        }
      }
      for (const bool backward : {false, true}) {
        Attention work{
            .batch = size, .heads = size, .kv_heads = size, .queries = size, .keys = size, .head_dim = 128, .dtype = DType::kFp16};
        work.backward = backward;
        if (gpu.peak_tflops.count("fp16") > 0) expect_time_or_refusal([&] { return attention_cost(gpu, work); });
      }
      expect_time_or_refusal([&] { return memory_bound_cost(gpu, {.read = Bytes(size), .written = Bytes(0)}); });
      expect_time_or_refusal(
          [&] { return memory_bound_cost(gpu, {.read = Bytes(size), .written = Bytes(size), .kernel = MemoryKernel::kQuantize}); });
    }
  }
  EXPECT_EQ(asked, 10 * 5 * 7 * 5);
}

}  // namespace
}  // namespace stepsim
