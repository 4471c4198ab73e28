// What an op computes or moves, in words for a reader: "gemm m=4096 n=12288 k=4096 bf16". Knows no file format.
#pragma once

#include <string>
#include <string_view>

#include "sim/op_work.h"

namespace stepsim {

// "" for markers and given costs, which say nothing of their work.
std::string work_text(const OpWork&);

std::string_view class_text(OpClass);  // "compute", "copy to host", ...

}  // namespace stepsim
