// Operands of one call of the CUDA kernels, in host memory of exactly their sizes, and what tests compare them with. Calls that the CPU's
// kernels know too are run by those as well: both must give the same.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "hardware/backends/cpu/attention_softmax.h"
#include "hardware/backends/cpu/bias.h"
#include "hardware/backends/cpu/dropout.h"
#include "hardware/backends/cpu/elementwise.h"
#include "hardware/backends/cpu/embedding.h"
#include "hardware/backends/cpu/heads.h"
#include "hardware/backends/cpu/loss.h"
#include "hardware/backends/cpu/norm.h"
#include "hardware/backends/cpu/residual.h"
#include "hardware/backends/cuda/bf16.h"
#include "hardware/backends/cuda/kernels.cuh"
#include "hardware/backends/cuda/launch_shim.h"
#include "hardware/backends/cuda/scratch.h"
#include "hardware/backends/kernel_calls.h"

namespace stepsim::cuda {

// How a call is tried: with which types, and with operands where packs of 16 bytes can be loaded or one element off.
struct KernelVariant {
  DType elements = DType::kFp32, gradients = DType::kFp32;
  bool aligned = true;
};

// Calls body(variant) for fp32 and bf16 elements, aligned and not; with gradients of both types if there are any.
template <class Body>
void for_kernel_variants(bool with_gradients, const Body& body) {
  for (const DType elements : {DType::kFp32, DType::kBf16}) {
    for (const DType gradients : {DType::kFp32, DType::kBf16}) {
      if (!with_gradients && gradients != DType::kFp32) continue;
      for (const bool aligned : {true, false}) {
        SCOPED_TRACE(std::string(elements == DType::kFp32 ? "fp32" : "bf16") + (gradients == DType::kFp32 ? ", fp32" : ", bf16") +
                     " gradients" + (aligned ? "" : ", not aligned"));
        body(KernelVariant{elements, gradients, aligned});
      }
    }
  }
}

class CallOperands {
 public:
  explicit CallOperands(bool aligned = true) : aligned_(aligned) {}

  // Uniform in [-2, 2), rounded to the type; the same numbers in every run.
  Tensor random(std::int64_t count, DType type) {
    const Tensor tensor = blank(count, type);
    for (std::int64_t i = 0; i < count; ++i) set(tensor, type, i, static_cast<float>(generator_() >> 8) * 0x1p-22F - 2);
    return tensor;
  }
  Tensor blank(std::int64_t count, DType type) { return blank_elements(count, type); }  // NaN
  Tensor blank_mask(std::int64_t count) { return blank_elements(count, DType::kUint8); }
  Tensor blank_integers(std::int64_t count) { return blank_elements(count, DType::kInt64); }
  Tensor integers(const std::vector<std::int64_t>& values) {
    const Tensor tensor = blank_integers(static_cast<std::int64_t>(values.size()));
    std::memcpy(address(tensor), values.data(), values.size() * sizeof(std::int64_t));
    return tensor;
  }

  void set(const Tensor& tensor, DType type, std::int64_t i, float value) {
    if (type == DType::kFp32) {
      addresses_.of<float>(tensor)[i] = value;
    } else {
      addresses_.of<Bf16>(tensor)[i] = rounded<Bf16>(value);
    }
  }

  std::vector<double> values(const Tensor& tensor, DType type) const {
    const std::int64_t count = tensor.size.value / (type == DType::kFp32 ? 4 : 2);
    std::vector<double> result;
    for (std::int64_t i = 0; i < count; ++i) {
      result.push_back(type == DType::kFp32 ? double{addresses_.of<float>(tensor)[i]} : double{widened(addresses_.of<Bf16>(tensor)[i])});
    }
    return result;
  }
  std::vector<std::uint8_t> mask(const Tensor& tensor) const {
    const auto* const from = addresses_.of<std::uint8_t>(tensor);
    return {from, from + tensor.size.value};
  }
  std::vector<std::int64_t> integers(const Tensor& tensor) const {
    const auto* const from = addresses_.of<std::int64_t>(tensor);
    return {from, from + tensor.size.value / 8};
  }

  // Calls run(addresses, scratch, stream) twice, with threads and blocks in opposite orders: not a bit may differ.
  template <class Run>
  void run(std::size_t scratch_bytes, const Run& run) {
    const std::vector<std::vector<std::byte>> before = memory_;
    run_once(scratch_bytes, false, run);
    const std::vector<std::vector<std::byte>> once = memory_;
    for (std::size_t i = 0; i < before.size(); ++i) std::copy(before[i].begin(), before[i].end(), memory_[i].begin());
    run_once(scratch_bytes, true, run);
    EXPECT_TRUE(once == memory_) << "the order of threads shows in the results";
  }
  template <class Call>
  void run_call(const Call& call) {
    const std::vector<std::vector<std::byte>> before = memory_;
    run(0, [&](const StorageAddresses& addresses, Scratch, Stream stream) { cuda::run(call, addresses, stream); });
    run_on_cpu(call, before);
  }
  template <class Call>
  void run_call_with_scratch(const Call& call) {
    const std::vector<std::vector<std::byte>> before = memory_;
    run(scratch_bytes(call),
        [&](const StorageAddresses& addresses, Scratch scratch, Stream stream) { cuda::run(call, addresses, scratch, stream); });
    run_on_cpu(call, before);
  }

 private:
  std::byte* address(const Tensor& tensor) { return addresses_.of<std::byte>(tensor); }

  Tensor blank_elements(std::int64_t count, DType type) {
    types_.push_back(type);
    const std::int64_t element_bytes = bits_of(type) / 8;
    const std::int64_t offset = aligned_ ? 0 : element_bytes;
    const StorageId storage{static_cast<std::int32_t>(memory_.size())};
    memory_.emplace_back(static_cast<std::size_t>(offset + count * element_bytes), std::byte{0xFF});
    addresses_.base.push_back(memory_.back().data());
    return {storage, Bytes(offset), Bytes(count * element_bytes)};
  }

  // The CPU's kernel on what the memory held before: it leaves what the CUDA kernel left, fp32 to rounding.
  template <class Call>
  void run_on_cpu(const Call& call, const std::vector<std::vector<std::byte>>& before) {
    if constexpr (requires { cpu::run(call, addresses_); }) {
      if constexpr (requires { call.elements; }) {
        if (call.elements != DType::kFp32) return;
      }
      if constexpr (requires { call.gradients; }) {
        if (call.gradients != DType::kFp32) return;
      }
      const std::vector<std::vector<std::byte>> on_cuda = memory_;
      for (std::size_t i = 0; i < before.size(); ++i) std::copy(before[i].begin(), before[i].end(), memory_[i].begin());
      cpu::run(call, addresses_);
      for (std::size_t i = 0; i < memory_.size(); ++i) expect_alike(i, on_cuda[i]);
      for (std::size_t i = 0; i < on_cuda.size(); ++i) std::copy(on_cuda[i].begin(), on_cuda[i].end(), memory_[i].begin());
    }
  }

  void expect_alike(std::size_t storage, const std::vector<std::byte>& on_cuda) const {
    if (types_[storage] != DType::kFp32) {
      EXPECT_TRUE(memory_[storage] == on_cuda) << "the CPU's kernel leaves other masks or integers in storage " << storage;
      return;
    }
    const std::vector<float> wanted = floats_of(on_cuda), found = floats_of(memory_[storage]);
    double squares = 0;
    for (const float value : wanted) squares += std::isfinite(value) ? double{value} * double{value} : 0;
    const double typical = std::sqrt(squares / static_cast<double>(std::max<std::size_t>(wanted.size(), 1)));
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (std::isnan(wanted[i]) && std::isnan(found[i])) continue;  // not written
      ASSERT_LE(std::abs(double{found[i]} - double{wanted[i]}), 2e-5 * std::max(std::abs(double{wanted[i]}), typical))
          << "the CPU's kernel, storage " << storage << ", element " << i << ": found " << found[i] << ", wanted " << wanted[i];
    }
  }

  static std::vector<float> floats_of(const std::vector<std::byte>& bytes) {
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
    return values;
  }

  template <class Run>
  void run_once(std::size_t scratch_bytes, bool descending, const Run& run) {
    std::vector<std::byte> scratch(scratch_bytes, std::byte{0xFF});
    const HostStream stream{.descending = descending};
    run(std::as_const(addresses_), Scratch{scratch.data(), scratch.size()}, &stream);
  }

  bool aligned_;
  std::mt19937 generator_{5489};  // the engine's default seed
  std::vector<std::vector<std::byte>> memory_{};
  std::vector<DType> types_{};  // by storage
  StorageAddresses addresses_{};
};

// To the rounding of the type, of each value or, for those near zero that are differences of larger ones, of their root mean square.
inline void expect_close(const std::vector<double>& found, const std::vector<double>& wanted, DType type) {
  ASSERT_EQ(found.size(), wanted.size());
  double squares = 0;
  for (const double value : wanted) squares += value * value;
  const double typical = std::sqrt(squares / static_cast<double>(std::max<std::size_t>(wanted.size(), 1)));
  const double tolerance = type == DType::kFp32 ? 1e-5 : 0x1p-8;  // fp32: sums of a few hundred terms
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_LE(std::abs(found[i] - wanted[i]), tolerance * std::max(std::abs(wanted[i]), typical))
        << "element " << i << ": found " << found[i] << ", wanted " << wanted[i];
  }
}

}  // namespace stepsim::cuda
