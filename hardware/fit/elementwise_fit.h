// Fractions of memory bandwidth that kernels bound by it reach: latency = launch + bytes / (f HBM), linear least squares on relative errors
// of the rows that are not held out. Knows no file.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hardware/fit/measured_memory.h"
#include "hardware/machine_spec.h"

namespace stepsim {

struct FittedMemory {
  MemoryKernel kernel = MemoryKernel::kFusedElementwise;
  double fraction = 0;
  std::optional<Duration> launch{};  // found with it; none: too few rows, the machine's fixed part was taken
};

inline constexpr std::size_t kLeastMemoryRows = 3, kLeastLaunchRows = 5;

// Of the rows of one kernel. None: fewer than kLeastMemoryRows are not held out.
std::optional<FittedMemory> fit_memory(const GpuSpec& gpu, MemoryKernel kernel, std::span<const MeasuredMemory> rows);

// The field of KernelFit that a kernel's fraction stands in.
double& memory_fraction(KernelFit& kernels, MemoryKernel kernel);

// By the model, with the launch that was found (it may be a framework's) in place of the machine's fixed part.
double simulated_s(const GpuSpec& gpu, const FittedMemory& fit, const MeasuredMemory& row);

// Tensors that an operation of NeuSight's reads and writes; 0: not elementwise, or bound by arithmetic. "u" is an operation with a scalar.
inline int elementwise_tensors(const std::string& operation) {
  static const std::map<std::string, int> kCount = {{"add", 3},  {"mul", 3},  {"div", 3},  {"addu", 2}, {"mulu", 2},
                                                    {"divu", 2}, {"relu", 2}, {"gelu", 2}, {"tanh", 2}};
  const auto found = kCount.find(operation);
  return found == kCount.end() ? 0 : found->second;
}

}  // namespace stepsim
