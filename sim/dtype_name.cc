#include "sim/dtype_name.h"

#include "sim/check.h"

namespace stepsim {

std::string dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return "fp32";
    case DType::kTf32:
      return "tf32";
    case DType::kBf16:
      return "bf16";
    case DType::kFp16:
      return "fp16";
    case DType::kFp8:
      return "fp8";
    case DType::kMxFp8:
      return "mxfp8";
    case DType::kNvFp4:
      return "nvfp4";
    case DType::kInt64:
      return "int64";
    case DType::kInt32:
      return "int32";
    case DType::kUint8:
      return "uint8";
  }
  check_failed("dtype", __FILE__, __LINE__);
}

}  // namespace stepsim
