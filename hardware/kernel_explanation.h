// Why an op takes as long as it does: what bounds it, and how much of that the cost model takes for reachable. For reports; knows no graph.
#pragma once

#include <string>

#include "hardware/machine_spec.h"
#include "sim/op_work.h"

namespace stepsim {

struct KernelExplanation {
  // "compute" (tensor cores, or those of the dtype), "feed" (operands on their way to them), "waves" (tiles that do not fill the SMs),
  // "memory" (HBM), "latency" (its fixed part is the larger), "link" (between the GPUs of a node), "network", "host link"
  std::string bound_by;
  double efficiency = 0;  // of the rate in `of`, over the whole time of the op alone, its fixed part included
  std::string of;         // "989.5 TFLOP/s bf16", "3.35 TB/s HBM", "450 GB/s NVLink"; of what bounds it where that is a link or network
  std::string detail;     // "256x128 tiles, 3.2 waves, 132 SMs"
};

// Products and attention: FLOPs against the dense peak; memory kernels: bytes against HBM; collectives: what each GPU sends over the
// slowest link (nccl-tests's bus bandwidth) against it; copies: bytes against the host link.
KernelExplanation kernel_explanation(const GpuSpec&, const ClusterSpec&, const OpWork&);

}  // namespace stepsim
