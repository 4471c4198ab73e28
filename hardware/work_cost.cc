#include "hardware/work_cost.h"

#include <algorithm>

#include "hardware/collective_cost.h"
#include "hardware/gemm_cost.h"
#include "hardware/kernel_cost.h"
#include "sim/check.h"
#include "sim/dtype_name.h"

namespace stepsim {

namespace {

// A kernel that takes longer moves as many bytes in more time.
DeviceCost slowed(DeviceCost cost, double factor) {
  if (factor == 1) return cost;
  cost.alone = op_duration(seconds(cost.alone) * factor);
  for (double* used : {&cost.hbm, &cost.nvlink_in, &cost.nvlink_out, &cost.network_in, &cost.network_out, &cost.link_in, &cost.link_out}) {
    *used = std::min(1.0, *used / factor);
  }
  return cost;
}

// What the host's processor does; a stack's slowdown is the GPU's.
bool is_host_update(const OpWork& work) {
  const auto* kernel = std::get_if<MemoryBound>(&work);
  return kernel != nullptr && kernel->kernel == MemoryKernel::kHostUpdate;
}

DeviceCost bare_cost(const GpuSpec& gpu, const ClusterSpec& cluster, const OpWork& work, TransferSide side) {
  if (const auto* gemm = std::get_if<Gemm>(&work)) return gemm_cost(gpu, *gemm);
  if (const auto* attention = std::get_if<Attention>(&work)) return attention_cost(gpu, *attention);
  if (is_host_update(work)) return host_update_cost(cluster, std::get<MemoryBound>(work));
  if (const auto* kernel = std::get_if<MemoryBound>(&work)) return memory_bound_cost(gpu, *kernel);
  if (const auto* collective = std::get_if<Collective>(&work)) return collective_cost(gpu, cluster, *collective, side);
  if (const auto* copy = std::get_if<Copy>(&work)) return copy_cost(gpu, cluster, *copy);
  STEPSIM_CHECK(std::holds_alternative<Marker>(work));  // given costs belong to GivenCostModel
  return {};
}

}  // namespace

double sustained_slowdown(const GpuSpec& gpu, const OpWork& work) {
  const SustainedSlowdown& sustained = gpu.fit.sustained;
  if (const auto* gemm = std::get_if<Gemm>(&work)) {
    if (sustained.gemm.empty()) return 1;
    const auto found = sustained.gemm.find(dtype_name(gemm->dtype));
    return found != sustained.gemm.end() ? found->second : 1;
  }
  if (std::holds_alternative<Attention>(work)) return sustained.attention;
  if (std::holds_alternative<MemoryBound>(work)) return is_host_update(work) ? 1 : sustained.memory;
  if (std::holds_alternative<Collective>(work)) return sustained.collective;
  return 1;
}

DeviceCost work_cost(const GpuSpec& gpu, const ClusterSpec& cluster, const OpWork& work, TransferSide side) {
  return slowed(bare_cost(gpu, cluster, work, side), sustained_slowdown(gpu, work));
}

}  // namespace stepsim
