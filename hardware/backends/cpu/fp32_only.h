// The CPU's kernels work in fp32.
#pragma once

#include "sim/check.h"
#include "sim/op_work.h"

namespace stepsim::cpu {

inline void check_fp32(DType type) { STEPSIM_CHECK(type == DType::kFp32); }

}  // namespace stepsim::cpu
