// Attention, kernels bound by memory and copies.
#pragma once

#include "hardware/device_cost.h"
#include "hardware/machine_spec.h"
#include "sim/op_work.h"

namespace stepsim {

// fixed + bytes / (fraction * bandwidth): kernels.md 2.3.
// Not of kHostUpdate, which no GPU runs.
DeviceCost memory_bound_cost(const GpuSpec&, const MemoryBound&);

// An update on the host's processor: bytes / what one of the GPUs that share a host memory has of it while all of them update. Costs no
// launch on a GPU's stream.
DeviceCost host_update_cost(const ClusterSpec&, const MemoryBound&);

// Over the host link: fixed + bytes / rate, pinned or pageable; a pinned buffer that is allocated for the copy costs host time. Within the
// device: both ends at 0.9 of bandwidth.
DeviceCost copy_cost(const GpuSpec&, const ClusterSpec&, const Copy&);

// fixed + max(waves * FLOPs of a block of 128 queries / (rate(S) * peak / SMs), bytes / (memory fraction * bandwidth)), their sum for
// TensorRT-LLM's op; rate(S) = e / (1 + S0 / S), waves = blocks / SMs and 0.75 of what the last one lacks, at least 1: kernels.md 2.2, with
// waves in place of its occupancy. e and S0 are interpolated between the head dimensions of the table; outside them the nearest counts. S
// is the number of keys.
DeviceCost attention_cost(const GpuSpec&, const Attention&);

}  // namespace stepsim
