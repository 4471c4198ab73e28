#include "hardware/kernel_explanation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "hardware/gemm_cost.h"
#include "hardware/work_cost.h"
#include "sim/check.h"
#include "sim/dtype_name.h"

namespace stepsim {

namespace {

std::string bound_name(const DeviceCost& cost) {
  if (cost.fixed >= cost.alone) return "latency";
  switch (cost.bound) {
    case Bound::kLatency:
      return "latency";
    case Bound::kCompute:
      return "compute";
    case Bound::kFeed:
      return "feed";
    case Bound::kWaves:
      return "waves";
    case Bound::kMemory:
      return "memory";
    case Bound::kLink:
      return "link";
    case Bound::kNetwork:
      return "network";
    case Bound::kHostLink:
      return "host link";
  }
  check_failed("bound", __FILE__, __LINE__);
}

std::string rate_text(BytesPerSecond rate) {
  return rate.value >= 1e12 ? fmt::format("{:.4g} TB/s", rate.value * 1e-12) : fmt::format("{:.4g} GB/s", rate.value * 1e-9);
}

std::string percent(double fraction) { return fmt::format("{:.0f} %", 100 * fraction); }

// Explains one kind of work after the other; `cost` is that of the whole op, alone on its device.
class Explainer {
 public:
  Explainer(const GpuSpec& gpu, const ClusterSpec& cluster, const OpWork& work)
      : gpu_(gpu), cluster_(cluster), cost_(work_cost(gpu, cluster, work)), total_s_(seconds(cost_.fixed + cost_.alone)) {}

  KernelExplanation explained(const OpWork& work) const {
    KernelExplanation result = std::visit(*this, work);
    result.bound_by = bound_name(cost_);
    if (const double slowdown = sustained_slowdown(gpu_, work); slowdown != 1) {
      result.detail += fmt::format("{}x {:.3g} sustained", result.detail.empty() ? "" : ", ", slowdown);
    }
    return result;
  }

  KernelExplanation operator()(const Marker&) const { return {}; }
  KernelExplanation operator()(const Given&) const { return {}; }
  KernelExplanation operator()(const Gemm& work) const {
    KernelExplanation result = of_peak(arithmetic(work), work.dtype);
    if (const std::optional<GemmTiling> tiling = gemm_tiling(gpu_, work)) {
      result.detail = fmt::format("{}x{} tiles, {:.3g} waves, {} SMs", tiling->tile_m, tiling->tile_n, tiling->waves, gpu_.sms);
      if (tiling->split > 1) result.detail += fmt::format(", k in {} parts", tiling->split);
    } else {
      result.detail = "roofline";
    }
    if (work.in_flight > 0) result.detail += fmt::format(", {} kernels, {} at a time", work.batch, work.in_flight);
    return with_memory(result);
  }
  KernelExplanation operator()(const Attention& work) const {
    constexpr std::array<const char*, 6> kKernels = {"flash 2", "flash 3", "cuDNN", "TensorRT-LLM", "flash 1 in Triton", "flash 4"};
    KernelExplanation result = of_peak(arithmetic(work), work.dtype);
    const auto kernel = static_cast<std::size_t>(work.kernel);
    result.detail = fmt::format("{} {}", kernel < kKernels.size() ? kKernels[kernel] : "attention", work.backward ? "backward" : "forward");
    if (cost_.sm < 1) result.detail += fmt::format(", blocks on {} of the SMs", percent(cost_.sm));
    return with_memory(result);
  }
  KernelExplanation operator()(const MemoryBound& work) const {
    if (work.kernel == MemoryKernel::kHostUpdate) {
      return {.bound_by = {},
              .efficiency = reached(cost_.host_memory),
              .of = rate_text(cluster_.host_memory_bandwidth) + " host memory",
              .detail = "on the host"};
    }
    constexpr std::array<const char*, 7> kKernels = {"fused elementwise", "norm", "softmax", "unfused", "gather", "quantise", "top-k"};
    KernelExplanation result = of_memory();
    result.detail = kKernels[static_cast<std::size_t>(work.kernel)];
    if (work.launches > 1) result.detail += fmt::format(", {} kernels", work.launches);
    return result;
  }
  KernelExplanation operator()(const Collective& work) const {
    KernelExplanation result = of_link();
    const double links = std::max({cost_.nvlink_in, cost_.link_in, cost_.link_out});
    const bool network = cost_.bound == Bound::kNetwork || links == 0;
    if (network && cost_.network_in > 0) {
      result.efficiency = reached(cost_.network_in);
      result.of = rate_text(cluster_.network_per_gpu) + " network";
    }
    result.detail = fmt::format("{} ranks, latency {:.1f} us", work.ranks, seconds(cost_.fixed) * 1e6);
    return result;
  }
  KernelExplanation operator()(const Copy& work) const {
    if (work.direction == CopyDirection::kDeviceToDevice) return of_memory();
    const bool in = work.direction == CopyDirection::kHostToDevice;
    return {.bound_by = {},
            .efficiency = reached(in ? cost_.link_in : cost_.link_out),
            .of = rate_text(in ? gpu_.host_to_device : gpu_.device_to_host) + " host link",
            .detail = std::string(work.pinned ? "pinned" : "pageable") + (in ? ", in" : ", out")};
  }

 private:
  // A share of a resource while `alone` runs, over all the op's time.
  double reached(double share) const { return total_s_ > 0 ? share * seconds(cost_.alone) / total_s_ : 0; }

  KernelExplanation of_peak(Flops flops, DType dtype) const {
    const FlopsPerSecond rate = peak(gpu_, dtype);
    return {.bound_by = {},
            .efficiency = total_s_ > 0 ? flops.value / (total_s_ * rate.value) : 0,
            .of = fmt::format("{:.4g} TFLOP/s {}", rate.value * 1e-12, dtype_name(dtype)),
            .detail = {}};
  }
  KernelExplanation of_memory() const {
    return {.bound_by = {}, .efficiency = reached(cost_.hbm), .of = rate_text(gpu_.hbm) + " HBM", .detail = {}};
  }
  // NVLink; on GPUs without it collectives go over the host link.
  KernelExplanation of_link() const {
    const bool nvlink = gpu_.nvlink_per_direction.value > 0;
    const BytesPerSecond rate = nvlink ? gpu_.nvlink_per_direction : std::min(gpu_.host_to_device, gpu_.device_to_host);
    const double share = nvlink ? cost_.nvlink_in : std::max(cost_.link_in, cost_.link_out);
    return {.bound_by = {}, .efficiency = reached(share), .of = rate_text(rate) + (nvlink ? " NVLink" : " host link"), .detail = {}};
  }
  // What a product or attention takes of HBM, where that is what bounds it.
  KernelExplanation with_memory(KernelExplanation result) const {
    if (cost_.bound == Bound::kMemory) result.detail += fmt::format(", {} of {} HBM", percent(reached(cost_.hbm)), rate_text(gpu_.hbm));
    return result;
  }

  const GpuSpec& gpu_;
  const ClusterSpec& cluster_;
  DeviceCost cost_;
  double total_s_;
};

}  // namespace

KernelExplanation kernel_explanation(const GpuSpec& gpu, const ClusterSpec& cluster, const OpWork& work) {
  return Explainer(gpu, cluster, work).explained(work);
}

}  // namespace stepsim
