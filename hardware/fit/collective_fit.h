// Constants of collectives within an NVLink domain from measured ones. Knows no file.
//
// Machines of one generation are fitted together: few have been measured with 2, 4 and 8 ranks in every operation, so what grows with the
// ranks (per_rank, small_group, quick_per_rank) is found from the rows of all of them, and the other constants from each one's own rows.
// nccl-tests says it with `message` the full tensor. Rows in 8-bit types are not what training sends: NCCL reduces them more slowly, so a
// caller that has both passes those of 16 bits.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hardware/fit/measured_collective.h"
#include "hardware/machine_spec.h"

namespace stepsim {

struct MeasuredCollectives {  // of one machine
  GpuSpec gpu;
  ClusterSpec cluster;
  std::vector<MeasuredCollective> rows;
};

// None: fewer than kLeastCollectiveShapes shapes (operation, ranks, bytes), which leave what the machine has.
struct FittedCollectives {
  std::optional<CollectiveFit> all_reduce, gather, all_to_all;
  std::string fewer;  // which parameters too few shapes leave to the machine; "": none
};

// With fewer than kLeastCollectiveCurveShapes only latency and bandwidth are found.
inline constexpr std::size_t kLeastCollectiveShapes = 3, kLeastCollectiveCurveShapes = 10;

// In the order of `generation`; digits as machine files carry them. Fitted on rows from 1 KiB that are not held out and stay within one
// domain: mean of absolute log errors of the medians of each shape, those from 1 MiB count twice.
std::vector<FittedCollectives> fit_collectives(std::span<const MeasuredCollectives> generation);

void use(const FittedCollectives& fit, KernelFit& kernels);

double simulated_s(const GpuSpec& gpu, const ClusterSpec& cluster, const MeasuredCollective& row);

}  // namespace stepsim
