// All kernels of the CUDA backend but matrix products (product_lt.h): run(call, addresses, ..., stream) for each kind of call, and
// scratch_bytes(call) for those that need scratch memory. Knows no graph and no streams' order.
#pragma once

#include "hardware/backends/cuda/activation.cuh"
#include "hardware/backends/cuda/adamw.cuh"
#include "hardware/backends/cuda/bias.cuh"
#include "hardware/backends/cuda/cross_entropy.cuh"
#include "hardware/backends/cuda/dropout.cuh"
#include "hardware/backends/cuda/elementwise.cuh"
#include "hardware/backends/cuda/embedding.cuh"
#include "hardware/backends/cuda/gradient_norm.cuh"
#include "hardware/backends/cuda/heads.cuh"
#include "hardware/backends/cuda/norm.cuh"
#include "hardware/backends/cuda/residual.cuh"
#include "hardware/backends/cuda/rotary.cuh"
#include "hardware/backends/cuda/softmax.cuh"

namespace stepsim::cuda {

template <class Call>
std::size_t scratch_bytes(const Call&) {
  return 0;
}

}  // namespace stepsim::cuda
