// Matrix products through cuBLASLt, without TF32: fp32 accumulation of fp32 or bf16 operands. For nvcc only. Knows no graph.
#pragma once

#include <memory>

#include "hardware/backends/cuda/launch_shim.h"
#include "hardware/backends/cuda/scratch.h"
#include "hardware/backends/kernel_calls.h"

namespace stepsim::cuda {

// Of one device, the current one when it is made; used by one thread at a time.
class ProductLt {
 public:
  ProductLt();  // throws std::runtime_error with what cuBLASLt says, as run() does
  ~ProductLt();
  ProductLt(ProductLt&&) noexcept;
  ProductLt& operator=(ProductLt&&) noexcept;

  // The algorithm is chosen once for products of equal sizes, distances, types and alignment, among those that the workspace is enough for
  // (recommended: 32 MiB on Hopper, cuBLAS documentation, "cublasSetWorkspace"), and kept. The workspace is aligned to 256 bytes.
  // STEPSIM_CHECK: elements and output are fp32 or bf16, the output is fp32 where the elements are, k > 0.
  void run(const ProductCall&, const StorageAddresses&, Scratch workspace, Stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stepsim::cuda
