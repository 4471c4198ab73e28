#include "hardware/backends/cpu/product.h"

#include <cblas.h>

#include <limits>

#include "hardware/backends/cpu/fp32_only.h"

// OpenBLAS's, where the CBLAS that is linked is that: the compute thread is one core.
extern "C" void openblas_set_num_threads(int threads) __attribute__((weak));

namespace stepsim::cpu {

namespace {

void use_one_thread() {
  static const bool once = [] {
    if (openblas_set_num_threads != nullptr) openblas_set_num_threads(1);
    return true;
  }();
  static_cast<void>(once);
}

blasint blas_size(std::int64_t size) {
  STEPSIM_CHECK(size >= 0);
  STEPSIM_CHECK(size <= std::numeric_limits<int>::max());
  return static_cast<blasint>(size);
}

}  // namespace

void run(const ProductCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  check_fp32(call.output);
  use_one_thread();
  const auto* const a = addresses.of<float>(call.a.tensor);
  const auto* const b = addresses.of<float>(call.b.tensor);
  auto* const c = addresses.of<float>(call.c.tensor);
  for (std::int64_t i = 0; i < call.outer; ++i) {
    for (std::int64_t j = 0; j < call.inner; ++j) {
      cblas_sgemm(CblasRowMajor, call.transpose_a ? CblasTrans : CblasNoTrans, call.transpose_b ? CblasTrans : CblasNoTrans,
                  blas_size(call.m), blas_size(call.n), blas_size(call.k), 1.0F, a + i * call.a.outer + j * call.a.inner,
                  blas_size(call.a.row), b + i * call.b.outer + j * call.b.inner, blas_size(call.b.row), call.accumulate ? 1.0F : 0.0F,
                  c + i * call.c.outer + j * call.c.inner, blas_size(call.c.row));
    }
  }
}

}  // namespace stepsim::cpu
