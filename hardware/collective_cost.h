// Collectives by latency and bandwidth, in the conventions of nccl-tests; across NVLink domains the network's share counts too.
#pragma once

#include "hardware/device_cost.h"
#include "hardware/machine_spec.h"
#include "sim/op_work.h"

namespace stepsim {

// Bytes that each GPU sends, of a message M over n ranks: all-reduce 2 (n-1)/n M, all-gather, reduce-scatter and all-to-all (n-1)/n M,
// broadcast and send M. For an all-to-all M is the buffer of one rank. It receives as many, so both directions of a link are loaded alike;
// a side of a transfer loads one direction, and memory by M. The time is that of either side.
DeviceCost collective_cost(const GpuSpec&, const ClusterSpec&, const Collective&, TransferSide = TransferSide::kBoth);

}  // namespace stepsim
