#include "hardware/kernel_cost.h"

#include "sim/check.h"

namespace stepsim {

namespace {

double as_double(std::int64_t value) { return static_cast<double>(value); }

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
  }
  check_failed("memory kernel", __FILE__, __LINE__);
}

}  // namespace

DeviceCost memory_bound_cost(const GpuSpec& gpu, const MemoryBound& work) {
  const double bytes = as_double(memory_traffic(work).value);
  const double fraction = memory_fraction(gpu.fit, work.kernel);
  // A block of 256 threads that move 16 B each: 4 KiB.
  return {.fixed = gpu.fit.memory_fixed,
          .alone = op_duration(bytes / (fraction * gpu.hbm.value)),
          .issue = gpu.fit.kernel_issue,
          .bound = Bound::kMemory,
          .sm = share(bytes / 4096, gpu.sms),
          .hbm = bytes > 0 ? fraction : 0};
}

}  // namespace stepsim
