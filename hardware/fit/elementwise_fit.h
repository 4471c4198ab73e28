// Fraction of memory bandwidth that elementwise kernels reach, from kernels/neusight_vec_fp32.csv: latency = launch + bytes / (f HBM),
// linear least squares on relative errors. Fitted on every second row of a GPU, the others are held out.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hardware/fit/error_summary.h"

namespace stepsim {

struct FittedElementwise {
  std::string machine;   // catalog file that carries the fraction
  double fraction = 0;   // memory_kernels.fused
  double launch_us = 0;  // of the framework that measured; not part of a machine
};

struct ElementwiseFits {
  std::vector<FittedElementwise> machines;
  std::vector<FitErrors> errors;  // by GPU
};

// Tensors that an operation of the file reads and writes; 0: not elementwise, or bound by arithmetic.
// "u" is an operation with a scalar.
inline int elementwise_tensors(const std::string& operation) {
  static const std::map<std::string, int> kCount = {{"add", 3},  {"mul", 3},  {"div", 3},  {"addu", 2}, {"mulu", 2},
                                                    {"divu", 2}, {"relu", 2}, {"gelu", 2}, {"tanh", 2}};
  const auto found = kCount.find(operation);
  return found == kCount.end() ? 0 : found->second;
}

// `data` holds kernels/ and papers/. None where the file is absent.
std::optional<ElementwiseFits> fit_elementwise(const std::string& data);

}  // namespace stepsim
