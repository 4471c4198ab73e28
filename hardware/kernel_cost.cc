#include "hardware/kernel_cost.h"

#include <algorithm>

#include "sim/check.h"

namespace stepsim {

namespace {

double as_double(std::int64_t value) { return static_cast<double>(value); }
double blocks(std::int64_t length, std::int64_t tile) { return as_double(length / tile + (length % tile != 0 ? 1 : 0)); }

double compute_fraction(const GpuSpec& gpu, DType dtype) {
  switch (dtype) {
    case DType::kFp8:
    case DType::kMxFp8:
    case DType::kNvFp4:
      return gpu.fit.gemm_compute_fp8;
    case DType::kFp32:
      return gpu.fit.gemm_compute_fp32;
    default:
      return gpu.fit.gemm_compute;
  }
}

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
  }
  check_failed("memory kernel", __FILE__, __LINE__);
}

}  // namespace

DeviceCost gemm_cost(const GpuSpec& gpu, const Gemm& work) {
  const double bytes = as_double(memory_traffic(work).value);
  const double compute = arithmetic(work).value / (compute_fraction(gpu, work.dtype) * peak(gpu, work.dtype).value);
  const double memory = bytes / (gpu.fit.gemm_memory * gpu.hbm.value);
  const double alone = std::max(compute, memory);
  const double tiles = blocks(work.m, 128) * blocks(work.n, 128) * as_double(work.batch);  // cuBLAS's usual tile, kernels.md 2.1
  return {.fixed = gpu.fit.gemm_fixed,
          .alone = op_duration(alone),
          .issue = gpu.fit.kernel_issue,
          .bound = compute >= memory ? Bound::kCompute : Bound::kMemory,
          .sm = share(tiles, gpu.sms),
          .hbm = share(bytes, alone * gpu.hbm.value)};
}

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
