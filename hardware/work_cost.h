// What any work costs on a device: the kernels' own costs, longer by what a software stack's sustained training takes.
#pragma once

#include "hardware/device_cost.h"
#include "hardware/machine_spec.h"
#include "sim/op_work.h"

namespace stepsim {

DeviceCost work_cost(const GpuSpec&, const ClusterSpec&, const OpWork&, TransferSide = TransferSide::kBoth);

// Of the time that the machine's file gives it; 1 on the bare machine.
double sustained_slowdown(const GpuSpec&, const OpWork&);

}  // namespace stepsim
