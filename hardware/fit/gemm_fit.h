// Constants of tiled matrix products from kernels/gemm_aic_*.csv (bf16), and how much longer weight gradients take from
// kernels/simumax_efficiency.csv. Half of the (n, k) pairs are fitted, the other half is held out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hardware/fit/error_summary.h"
#include "hardware/machine_spec.h"

namespace stepsim {

struct FittedGemm {
  std::string machine, file;
  GemmTileFit fit;
  double held_out = 0, held_out_training = 0;  // mean error: of all shapes, of m, n, k >= 1024
};

// Time of weight gradients over the model's, over the same of other products: medians, on every second row of either.
struct FittedWeightGradient {
  std::string gpu;
  double ratio = 1, held_out_ratio = 1;
  std::size_t rows = 0;  // weight gradients that count in `ratio`
};

struct GemmFits {
  std::vector<FittedGemm> kernels;
  std::vector<FittedWeightGradient> weight_gradients;
  std::vector<FitErrors> errors;  // by GPU: all shapes, then m, n, k >= 1024
};

// `data` holds kernels/. None where a file is absent.
std::optional<GemmFits> fit_gemms(const std::string& data);

}  // namespace stepsim
