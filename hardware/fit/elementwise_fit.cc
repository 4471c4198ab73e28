#include "hardware/fit/elementwise_fit.h"

#include <algorithm>
#include <cmath>

#include "hardware/fit/curve_fit.h"
#include "hardware/kernel_cost.h"
#include "sim/check.h"

namespace stepsim {

double& memory_fraction(KernelFit& kernels, MemoryKernel kernel) {
  switch (kernel) {
    case MemoryKernel::kFusedElementwise:
      return kernels.memory_fused;
    case MemoryKernel::kNorm:
      return kernels.memory_norm;
    case MemoryKernel::kSoftmax:
      return kernels.memory_softmax;
    case MemoryKernel::kUnfused:
      return kernels.memory_unfused;
    case MemoryKernel::kGather:
      return kernels.memory_gather;
    case MemoryKernel::kQuantize:
      return kernels.memory_quantize;
    case MemoryKernel::kTopK:
      return kernels.memory_top_k;
    case MemoryKernel::kHostUpdate:
      break;  // no kernel of the GPU's
  }
  check_failed("memory kernel", __FILE__, __LINE__);
}

double simulated_s(const GpuSpec& gpu, const FittedMemory& fit, const MeasuredMemory& row) {
  GpuSpec fitted = gpu;
  memory_fraction(fitted.fit, fit.kernel) = fit.fraction;
  if (fit.launch) fitted.fit.memory_fixed = *fit.launch;
  const DeviceCost cost = memory_bound_cost(fitted, row.work);
  return seconds(cost.fixed + cost.alone);
}

std::optional<FittedMemory> fit_memory(const GpuSpec& gpu, MemoryKernel kernel, std::span<const MeasuredMemory> rows) {
  const auto fitted =
      std::count_if(rows.begin(), rows.end(), [&](const MeasuredMemory& row) { return !row.held_out && row.work.kernel == kernel; });
  if (static_cast<std::size_t>(fitted) < kLeastMemoryRows) return std::nullopt;
  const bool launch = static_cast<std::size_t>(fitted) >= kLeastLaunchRows;
  const double fixed_s = seconds(gpu.fit.memory_fixed);
  std::vector<std::vector<double>> terms;  // over the measured time: relative errors
  std::vector<double> targets;
  for (const MeasuredMemory& row : rows) {
    if (row.held_out || row.work.kernel != kernel) continue;
    const double over_bandwidth = static_cast<double>(memory_traffic(row.work).value) / gpu.hbm.value / row.measured_s;
    terms.push_back(launch ? std::vector<double>{over_bandwidth, 1 / row.measured_s} : std::vector<double>{over_bandwidth});
    targets.push_back(launch ? 1 : 1 - fixed_s / row.measured_s);
  }
  const std::vector<double> x = linear_fit(terms, targets);
  constexpr double kLeast = 0.01;
  const double fraction = x[0] > 0 ? std::clamp(1 / x[0], kLeast, 1.0) : 1;
  FittedMemory fit{.kernel = kernel, .fraction = std::round(fraction * 1e3) * 1e-3, .launch = {}};
  if (launch) fit.launch = op_duration(std::round(std::max(x[1], 0.0) * 1e9) * 1e-9);
  return fit;
}

}  // namespace stepsim
