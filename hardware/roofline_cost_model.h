// The first cost model: tiles or roofline3 for matrix products, T(S) for attention, bytes for the rest, latency + bandwidth for
// collectives. Constants come from GpuSpec (sources in hardware/data). Scope, limits and measured errors: hardware/README.md.
#pragma once

#include <memory>

#include "hardware/kernel_explanation.h"
#include "hardware/machine_spec.h"
#include "sim/cost_model.h"
#include "sim/machine.h"

namespace stepsim {

// `devices` representative GPUs of the kind with their resources: per device sm, hbm, link in, link out, link both (where it
// loses by it), nvlink in and out, network in and out; per host its memory
// and, where GPUs share one, its root port (in, out, both). Resources are full loads of one GPU; the GPUs beside it are peers of its loads.
Machine make_machine(const GpuSpec&, const ClusterSpec&, std::int32_t devices);

class RooflineCostModel : public CostModel {
 public:
  // The machine must be make_machine(gpu, cluster, n).
  RooflineCostModel(const GpuSpec&, const ClusterSpec&, const Machine&);
  ~RooflineCostModel() override;
  // Remembered: asked again it neither locks nor allocates. Any number of threads may ask.
  Cost cost(const OpWork& work, DeviceId device, TransferSide side = TransferSide::kBoth) const override;
  KernelExplanation explained(const OpWork& work) const;

 private:
  Cost first_cost(const OpWork& work, DeviceId device, TransferSide side) const;

  struct Tables;
  std::unique_ptr<Tables> tables_;
};

// Time of a collective over `ranks` GPUs: latency + bytes on the slowest link over its achievable bandwidth (nccl-tests conventions).
Duration collective_time(const GpuSpec&, const ClusterSpec&, const Collective&);

}  // namespace stepsim
