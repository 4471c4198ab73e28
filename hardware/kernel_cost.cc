#include "hardware/kernel_cost.h"

#include "sim/check.h"

namespace stepsim {

namespace {

double memory_fraction(const KernelFit& fit, MemoryKernel kernel) {
  switch (kernel) {
    case MemoryKernel::kFusedElementwise:
      return fit.memory_fused;
    case MemoryKernel::kNorm:
      return fit.memory_norm;
    case MemoryKernel::kSoftmax:
      return fit.memory_softmax;
    case MemoryKernel::kUnfused:
      return fit.memory_unfused;
    case MemoryKernel::kGather:
      return fit.memory_gather;
    case MemoryKernel::kQuantize:
      return fit.memory_quantize;
    case MemoryKernel::kTopK:
      return fit.memory_top_k;
    case MemoryKernel::kHostUpdate:
      break;
  }
  check_failed("memory kernel", __FILE__, __LINE__);
}

}  // namespace

DeviceCost memory_bound_cost(const GpuSpec& gpu, const MemoryBound& work) {
  const double bytes = as_double(memory_traffic(work).value);
  const double fraction = memory_fraction(gpu.fit, work.kernel);
  // A block of 256 threads that move 16 B each: 4 KiB.
  const std::int32_t launches = work.launches;
  return {.fixed = gpu.fit.memory_fixed * launches,
          .alone = op_duration(bytes / (fraction * gpu.hbm.value)),
          .issue = gpu.fit.kernel_issue * launches,
          .bound = Bound::kMemory,
          .sm = share(bytes / launches / 4096, gpu.sms),
          .hbm = bytes > 0 ? fraction : 0};
}

// DeepSpeed's CPU-Adam: 10^9 x 10 parameters in 2.57 s on both sockets of a DGX-2 (arXiv 2101.06840 table 4, from memory, unverified): 28 B
// each, 109 of 2 x 128 GB/s.
constexpr double kHostUpdateFraction = 0.43;

DeviceCost host_update_cost(const ClusterSpec& cluster, const MemoryBound& work) {
  STEPSIM_CHECK(work.kernel == MemoryKernel::kHostUpdate);
  STEPSIM_CHECK(cluster.gpus_per_host_memory >= 1);
  const double bytes = as_double(memory_traffic(work).value), fraction = kHostUpdateFraction / cluster.gpus_per_host_memory;
  return {.fixed = {},
          .alone = op_duration(bytes / (fraction * cluster.host_memory_bandwidth.value)),
          .issue = {},
          .bound = Bound::kMemory,
          .host_memory = bytes > 0 ? fraction : 0};
}

}  // namespace stepsim
