// What the matrix products of measured steps took, as rows that `stepsim calibrate` reads.
#pragma once

#include <span>
#include <string>

#include "tools/backend_validation.h"

namespace stepsim {

// CSV with the head op,dtype,m,n,k,gpu,latency_us,source: each shape of single products that write what they were given room for (forward
// and input gradients) once, with the median over all of its runs. `machine` names the GPU.
std::string product_table(std::span<const BackendCase> cases, const std::string& machine);

}  // namespace stepsim
