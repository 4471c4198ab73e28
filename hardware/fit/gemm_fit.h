// Constants of matrix products from measured ones: tiles where there are many rows, a roofline where there are few. Fitted are the rows
// that are not held out. Knows no file.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "hardware/fit/measured_gemm.h"
#include "hardware/machine_spec.h"

namespace stepsim {

// roofline3; without `fixed` that of the machine stands.
struct RooflineFit {
  std::optional<Duration> fixed{};
  double compute = 0, memory = 0;
};

// One of the two.
struct FittedGemm {
  std::optional<GemmTileFit> tiles{};
  std::optional<RooflineFit> roofline{};
  std::string fewer;  // which parameters too few rows leave to the machine; "": none
};

// Fitted rows that each form needs. Of 60 measured rows, half of them fitted, tiles foretell the other shapes of all seven measured GPUs
// better than a roofline does (hardware/README.md, Fits).
inline constexpr std::size_t kLeastTileRows = 24, kLeastRooflineRows = 12, kLeastGemmRows = 4;

// `progress` is called with the part that is done, from 0 to 1.
using FitProgress = std::function<void(double)>;

// Rows in bf16 and fp16 with the machine's peaks, SMs and memory bandwidth. None: fewer than kLeastGemmRows rows are not held out.
std::optional<FittedGemm> fit_gemm(GpuSpec gpu, std::span<const MeasuredGemm> rows, const FitProgress& progress = {});

// Fraction of the fp32 peak: the median over the rows in fp32 that are not held out, by the roofline of the machine. None: fewer than
// kLeastGemmRows of them.
std::optional<double> fit_fp32_compute(const GpuSpec& gpu, std::span<const MeasuredGemm> rows);

// GemmTileFit::weight_gradient with which the median weight gradient is as far from the machine's time as the median other product: of rows
// that are not held out, and of those that are. The machine has tiles. None: fewer than kLeastGemmRows weight gradients or other products.
struct WeightGradientFit {
  double ratio = 1, held_out_ratio = 1;
  std::size_t rows = 0, held_out_rows = 0;  // weight gradients that count
};
std::optional<WeightGradientFit> fit_weight_gradient(GpuSpec gpu, std::span<const MeasuredGemm> rows);

void use(const FittedGemm& fit, KernelFit& kernels);

double simulated_s(const GpuSpec& gpu, const MeasuredGemm& row);

}  // namespace stepsim
