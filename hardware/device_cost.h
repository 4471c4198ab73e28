// What a kernel, copy or collective costs on one device, before the resources have ids. Shares are of the device's own resources.
#pragma once

#include <cstdint>

#include "sim/units.h"

namespace stepsim {

// Feed: operands on their way to the tensor cores; waves: tiles that do not fill the SMs; link: between GPUs of a node.
enum class Bound { kLatency, kCompute, kFeed, kWaves, kMemory, kLink, kNetwork, kHostLink };

struct DeviceCost {
  Duration fixed{}, alone{}, issue{};
  Bound bound = Bound::kLatency;                                       // what sets `alone`
  double sm = 0, hbm = 0, link_in = 0, link_out = 0, host_memory = 0;  // while `alone` runs, in [0, 1]
  double nvlink_in = 0, nvlink_out = 0, network_in = 0, network_out = 0;
  // Of a host copy: link and root port where both directions share, and weights in the proportion in which they then do; the weight of
  // its link goes for host memory too.
  double link_both = 0, root_in = 0, root_out = 0, root_both = 0;
  std::uint16_t link_weight = 1, root_weight = 1;
  bool spins = false;  // holds its SMs while it waits for its peers
};

// Nearest picosecond. InputError where one op takes above 10^6 s: a job of that size is a mistake, and time is counted in 64 bits.
Duration op_duration(double seconds);

// part / whole, 0 where the whole is 0, at most 1.
double share(double part, double whole);

}  // namespace stepsim
