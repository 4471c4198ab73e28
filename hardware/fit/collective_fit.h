// Constants of collectives within an NVLink domain from kernels/nccl_aic.csv: 2 to 8 GPUs, 1 MiB and above. One set a generation; fitted on
// messages of an even power of two, the odd powers are held out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hardware/fit/error_summary.h"
#include "hardware/machine_spec.h"

namespace stepsim {

struct FittedCollectives {
  std::vector<std::string> machines;  // catalog files that carry the set
  CollectiveFit all_reduce, gather, all_to_all;
};

struct CollectiveFits {
  std::vector<FittedCollectives> sets;
  std::vector<FitErrors> errors;  // by GPU and operation
};

// `data` holds kernels/ and papers/. None where the file is absent.
std::optional<CollectiveFits> fit_collectives(const std::string& data);

}  // namespace stepsim
