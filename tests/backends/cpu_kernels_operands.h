// Operands of one call of the CPU's kernels, in memory of exactly their sizes, and what tests compare results with.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <random>
#include <utility>
#include <vector>

#include "hardware/backends/kernel_calls.h"

namespace stepsim::cpu {

// Each operand lies behind a multiple of 64 bytes: the first by `shift` elements, each further one by an odd number of times that, so that
// operands differ in alignment and shifts 0 to 15 give each of them every one that an fp32 can have.
class CpuOperands {
 public:
  explicit CpuOperands(std::int64_t shift = 0) : shift_(shift) {}

  Tensor floats(const std::vector<float>& values) { return filled(values); }
  Tensor integers(const std::vector<std::int64_t>& values) { return filled(values); }
  Tensor bytes(const std::vector<std::uint8_t>& values) { return filled(values); }
  Tensor random(std::int64_t count, float low = -2, float high = 2) {  // uniform, the same numbers in every run
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = low + (high - low) * (static_cast<float>(generator_() >> 8) * 0x1p-24F);
    return filled(values);
  }
  // NaN: what a kernel reads before it writes shows.
  Tensor blank(std::int64_t count) {
    return filled(std::vector<float>(static_cast<std::size_t>(count), std::numeric_limits<float>::quiet_NaN()));
  }
  Tensor blank_bytes(std::int64_t count) { return filled(std::vector<std::uint8_t>(static_cast<std::size_t>(count), 0xFF)); }
  Tensor blank_integers(std::int64_t count) { return filled(std::vector<std::int64_t>(static_cast<std::size_t>(count), -1)); }

  const StorageAddresses& addresses() const { return addresses_; }
  template <class Element>
  std::vector<Element> values(const Tensor& tensor) const {
    std::vector<Element> found(static_cast<std::size_t>(tensor.size.value) / sizeof(Element));
    std::memcpy(found.data(), addresses_.of<Element>(tensor), found.size() * sizeof(Element));
    return found;
  }
  std::vector<double> doubles(const Tensor& tensor) const {
    const std::vector<float> found = values<float>(tensor);
    return {found.begin(), found.end()};
  }
  std::vector<std::byte> contents(const std::vector<Tensor>& tensors) const {
    std::vector<std::byte> found;
    for (const Tensor& tensor : tensors) {
      const std::byte* const from = addresses_.of<std::byte>(tensor);
      found.insert(found.end(), from, from + tensor.size.value);
    }
    return found;
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* block) const { ::operator delete(block, kAlignment); }
  };

  template <class Element>
  Tensor filled(const std::vector<Element>& values) {
    const auto place = static_cast<std::int64_t>(blocks_.size());
    const std::size_t offset = static_cast<std::size_t>(shift_ * (2 * place + 1) % 16) * sizeof(Element);
    const std::size_t size = values.size() * sizeof(Element);
    blocks_.emplace_back(static_cast<std::byte*>(::operator new(offset + size, kAlignment)));
    if (size > 0) std::memcpy(blocks_.back().get() + offset, values.data(), size);
    addresses_.base.push_back(blocks_.back().get());
    return {StorageId{static_cast<std::int32_t>(place)}, Bytes(static_cast<std::int64_t>(offset)), Bytes(static_cast<std::int64_t>(size))};
  }

  std::int64_t shift_;
  std::mt19937 generator_{5489};  // the engine's default seed
  std::vector<std::unique_ptr<std::byte, Free>> blocks_{};
  StorageAddresses addresses_{};
};

// Each value within `relative` of itself or, for those that are small differences of larger ones, of their root mean square.
inline void expect_close(const std::vector<double>& found, const std::vector<double>& wanted, double relative) {
  ASSERT_EQ(found.size(), wanted.size());
  double squares = 0;
  for (const double value : wanted) squares += value * value;
  const double typical = std::sqrt(squares / static_cast<double>(std::max<std::size_t>(wanted.size(), 1)));
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_LE(std::abs(found[i] - wanted[i]), relative * std::max(std::abs(wanted[i]), typical))
        << "element " << i << ": found " << found[i] << ", wanted " << wanted[i];
  }
}

// Central differences of objective(values), each with a step of 1e-5: their error is about 1e-10 of the third derivative, and 1e-11 of the
// objective by cancellation.
template <class Objective>
std::vector<double> central_differences(const Objective& objective, std::vector<double> values) {
  constexpr double kStep = 1e-5;
  std::vector<double> slopes;
  for (double& value : values) {
    const double middle = std::exchange(value, value + kStep);
    const double above = objective(values);
    value = middle - kStep;
    slopes.push_back((above - objective(values)) / (2 * kStep));
    value = middle;
  }
  return slopes;
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// results(operands) runs a kernel on operands that it makes and gives what the kernel wrote, byte by byte: the same wherever the operands
// lie, and when it runs again.
template <class Results>
void expect_same_bits_at_any_address(const Results& results) {
  CpuOperands aligned;
  const std::vector<std::byte> wanted = results(aligned);
  ASSERT_FALSE(wanted.empty());
  for (std::int64_t shift = 0; shift < 16; ++shift) {
    CpuOperands operands(shift);
    EXPECT_TRUE(results(operands) == wanted) << "operands " << shift << " elements off";
  }
}

}  // namespace stepsim::cpu
