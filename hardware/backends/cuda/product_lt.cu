#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "hardware/backends/cuda/product_lt.h"

namespace stepsim::cuda {

// Rows of a stored matrix lie `row` elements apart, matrices of a batch `matrix`.
struct ProductDistances {
  std::int64_t row = 0, matrix = 0;
  friend auto operator<=>(const ProductDistances&, const ProductDistances&) = default;
};

// All that the choice of an algorithm depends on.
struct ProductShape {
  std::int64_t m = 0, n = 0, k = 0, batch = 0;
  std::array<ProductDistances, 3> distances{};  // a, b, c
  std::array<std::uint32_t, 3> alignments{};    // of the addresses, in bytes
  bool transpose_a = false, transpose_b = false, accumulate = false;
  DType elements = DType::kFp32, output = DType::kFp32;
  std::size_t workspace = 0;
  friend auto operator<=>(const ProductShape&, const ProductShape&) = default;
};

namespace {

void check_lt(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) throw std::runtime_error(std::string(what) + ": " + cublasLtGetStatusString(status));
}

template <class Handle, cublasStatus_t (*destroy)(Handle)>
struct Destroyed {
  void operator()(Handle handle) const { destroy(handle); }
};
template <class Handle, cublasStatus_t (*destroy)(Handle)>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroyed<Handle, destroy>>;
using Library = Owned<cublasLtHandle_t, cublasLtDestroy>;
using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

constexpr std::uint32_t kMostAlignment = 256;  // what cudaMalloc gives (CUDA C++ Programming Guide, "Device Memory Accesses")

struct Plan {
  Description description;
  Layout a, b, c;
  cublasLtMatmulAlgo_t algorithm{};
};

cudaDataType_t data_type(DType type) {
  STEPSIM_CHECK(type == DType::kFp32 || type == DType::kBf16);
  return type == DType::kFp32 ? CUDA_R_32F : CUDA_R_16BF;
}

struct Stored {
  std::int64_t rows = 0, columns = 0;
};

// cuBLASLt counts by columns: to it a stored matrix is its transpose, [columns, rows].
Layout layout_of(Stored stored, DType type, ProductDistances distances, std::int64_t batch) {
  cublasLtMatrixLayout_t made = nullptr;
  check_lt(cublasLtMatrixLayoutCreate(&made, data_type(type), static_cast<std::uint64_t>(stored.columns),
                                      static_cast<std::uint64_t>(stored.rows), distances.row),
           "cublasLtMatrixLayoutCreate");
  Layout layout(made);
  const auto count = static_cast<std::int32_t>(batch);
  check_lt(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)), "batch count");
  check_lt(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &distances.matrix, sizeof(distances.matrix)),
           "batch offset");
  return layout;
}

Description description_of(const ProductShape& shape) {
  cublasLtMatmulDesc_t made = nullptr;
  check_lt(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  Description description(made);
  // The transpose of C is that of op(B) times that of op(A): B is the first operand.
  const cublasOperation_t first = shape.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, second = shape.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  check_lt(cublasLtMatmulDescSetAttribute(made, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first)), "transpose");
  check_lt(cublasLtMatmulDescSetAttribute(made, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second)), "transpose");
  return description;
}

Preference preference_of(const ProductShape& shape) {
  cublasLtMatmulPreference_t made = nullptr;
  check_lt(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
  Preference preference(made);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check_lt(cublasLtMatmulPreferenceSetAttribute(made, attribute, &value, sizeof(value)), "cublasLtMatmulPreferenceSetAttribute");
  };
  const auto [of_a, of_b, of_c] = shape.alignments;
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, shape.workspace);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, of_b);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, of_a);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, of_c);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, of_c);
  return preference;
}

Plan plan_of(cublasLtHandle_t library, const ProductShape& shape) {
  const Stored a = shape.transpose_a ? Stored{shape.k, shape.m} : Stored{shape.m, shape.k};
  const Stored b = shape.transpose_b ? Stored{shape.n, shape.k} : Stored{shape.k, shape.n};
  Plan plan{.description = description_of(shape),
            .a = layout_of(a, shape.elements, shape.distances[0], shape.batch),
            .b = layout_of(b, shape.elements, shape.distances[1], shape.batch),
            .c = layout_of({shape.m, shape.n}, shape.output, shape.distances[2], shape.batch)};
  const Preference preference = preference_of(shape);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  check_lt(cublasLtMatmulAlgoGetHeuristic(library, plan.description.get(), plan.b.get(), plan.a.get(), plan.c.get(), plan.c.get(),
                                          preference.get(), 1, &found, &count),
           "cublasLtMatmulAlgoGetHeuristic");
  if (count == 0) throw std::runtime_error("cublasLtMatmulAlgoGetHeuristic: no algorithm for this product");
  plan.algorithm = found.algo;
  return plan;
}

// One operand of the products of a call: where the first batch starts, and how far apart batches are.
struct Batches {
  std::byte* first = nullptr;
  std::int64_t step_bytes = 0;
  ProductDistances distances{};
  // Largest power of two, up to kMostAlignment, that divides the address of every matrix.
  std::uint32_t alignment(DType type) const {
    const auto matrix_bytes = static_cast<std::uintptr_t>(size_of(distances.matrix, type).value);
    const auto bits = reinterpret_cast<std::uintptr_t>(first) | static_cast<std::uintptr_t>(step_bytes) | matrix_bytes | kMostAlignment;
    return static_cast<std::uint32_t>(bits & (~bits + 1));
  }
};

Batches batches_of(const ProductCall::Operand& operand, DType type, const StorageAddresses& addresses, std::int64_t inner) {
  // Where there is one inner product the outer ones are the batch.
  return {.first = addresses.of<std::byte>(operand.tensor),
          .step_bytes = size_of(operand.outer, type).value,
          .distances = {operand.row, inner == 1 ? operand.outer : operand.inner}};
}

// Whether all products are one batch: outer ones follow behind inner ones at the same distance.
bool one_batch(const ProductCall& call) {
  const auto follows = [&](const ProductCall::Operand& operand) { return operand.outer == call.inner * operand.inner; };
  return call.outer == 1 || call.inner == 1 || (follows(call.a) && follows(call.b) && follows(call.c));
}

}  // namespace

struct ProductLt::State {
  Library library;
  std::map<ProductShape, Plan> plans;
};

ProductLt::ProductLt() : state_(std::make_unique<State>()) {
  cublasLtHandle_t made = nullptr;
  check_lt(cublasLtCreate(&made), "cublasLtCreate");
  state_->library.reset(made);
}
ProductLt::~ProductLt() = default;
ProductLt::ProductLt(ProductLt&&) noexcept = default;
ProductLt& ProductLt::operator=(ProductLt&&) noexcept = default;

void ProductLt::run(const ProductCall& call, const StorageAddresses& addresses, Scratch workspace, Stream stream) {
  STEPSIM_CHECK(call.elements == DType::kBf16 || call.output == DType::kFp32);
  STEPSIM_CHECK(call.k > 0);
  if (call.m == 0 || call.n == 0 || call.outer == 0 || call.inner == 0) return;
  const bool merged = one_batch(call);
  const Batches a = batches_of(call.a, call.elements, addresses, call.inner), b = batches_of(call.b, call.elements, addresses, call.inner);
  const Batches c = batches_of(call.c, call.output, addresses, call.inner);
  const ProductShape shape{.m = call.m,
                           .n = call.n,
                           .k = call.k,
                           .batch = merged ? call.outer * call.inner : call.inner,
                           .distances = {a.distances, b.distances, c.distances},
                           .alignments = {a.alignment(call.elements), b.alignment(call.elements), c.alignment(call.output)},
                           .transpose_a = call.transpose_a,
                           .transpose_b = call.transpose_b,
                           .accumulate = call.accumulate,
                           .elements = call.elements,
                           .output = call.output,
                           .workspace = workspace.bytes};
  auto found = state_->plans.find(shape);
  if (found == state_->plans.end()) found = state_->plans.emplace(shape, plan_of(state_->library.get(), shape)).first;
  const Plan& plan = found->second;
  const float alpha = 1, beta = call.accumulate ? 1 : 0;
  for (std::int64_t i = 0; i < (merged ? 1 : call.outer); ++i) {
    void* const output = c.first + i * c.step_bytes;
    check_lt(cublasLtMatmul(state_->library.get(), plan.description.get(), &alpha, b.first + i * b.step_bytes, plan.b.get(),
                            a.first + i * a.step_bytes, plan.a.get(), &beta, output, plan.c.get(), output, plan.c.get(), &plan.algorithm,
                            workspace.memory, workspace.bytes, stream),
             "cublasLtMatmul");
  }
}

}  // namespace stepsim::cuda
