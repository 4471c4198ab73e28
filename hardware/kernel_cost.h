// Attention, kernels bound by memory and copies.
#pragma once

#include "hardware/device_cost.h"
#include "hardware/machine_spec.h"
#include "sim/op_work.h"

namespace stepsim {

// fixed + bytes / (fraction * bandwidth): kernels.md 2.3.
DeviceCost memory_bound_cost(const GpuSpec&, const MemoryBound&);

// Over the host link: fixed + bytes / rate, pinned or pageable; a pinned buffer that is allocated for the copy costs host time. Within the
// device: both ends at 0.9 of bandwidth.
DeviceCost copy_cost(const GpuSpec&, const ClusterSpec&, const Copy&);

// fixed + max(FLOPs / (rate(S) * occupancy * peak), bytes / (memory fraction * bandwidth)), rate(S) = e / (1 + S0 / S): kernels.md 2.2.
// e and S0 are interpolated between the head dimensions of the table; outside them the nearest counts. S is the number of keys.
DeviceCost attention_cost(const GpuSpec&, const Attention&);

}  // namespace stepsim
