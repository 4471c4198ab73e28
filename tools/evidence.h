// What is measured of jobs like this one: published steps near it, steps behind its software stack, kernels behind its machine's file.
// Simulates nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/job.h"

namespace stepsim {

// One source that says how far a job like this may be trusted.
struct EvidenceRow {
  std::string of{};  // "measured step B0932", "stack nemo-24.07-h100", "kernels: gemm"
  std::string source{}, conditions{};
  std::int64_t rows = 0;
  std::optional<double> error{}, bias{};  // mean absolute error and mean error on rows that were not fitted; none: all were
  std::optional<double> fitted_error{};   // mean absolute error of those that were
};
// Of measured steps within a factor of 2 (nearest_steps.h), at most three, of the job's stack, then of its machine's kernels, in the order
// of the files.
std::vector<EvidenceRow> evidence_rows(const Job& job);

// "nearest measured: llama3-8b on 8 x h100-sxm-80gb, fp8 (NeMo 24.07): +1.2 %; stack h100-fp8-nemo: 12 measured rows, each 4.4 % off where
// the others fit (source); kernels held out: gemm 4.6 %", or what is not known.
std::string evidence_text(const Job& job);

}  // namespace stepsim
