#include "hardware/fit/gemm_fit.h"

#include <algorithm>
#include <cmath>

#include "hardware/fit/curve_fit.h"
#include "hardware/fit/nelder_mead.h"
#include "hardware/gemm_cost.h"
#include "sim/check.h"

namespace stepsim {

double simulated_s(const GpuSpec& gpu, const MeasuredGemm& row) {
  const DeviceCost cost = gemm_cost(gpu, row.work);
  return seconds(cost.fixed + cost.alone);
}

void use(const FittedGemm& fit, KernelFit& kernels) {
  kernels.gemm_tile = fit.tiles;
  if (!fit.roofline) return;
  if (fit.roofline->fixed) kernels.gemm_fixed = *fit.roofline->fixed;
  kernels.gemm_compute = fit.roofline->compute;
  kernels.gemm_memory = fit.roofline->memory;
}

namespace {

// At most `most` of the rows, evenly spread.
std::vector<MeasuredGemm> spread(const std::vector<MeasuredGemm>& rows, std::size_t most) {
  const std::size_t count = std::min(most, rows.size());
  std::vector<MeasuredGemm> result;
  for (std::size_t i = 0; i < count; ++i) result.push_back(rows[i * rows.size() / count]);
  return result;
}

// kernels.md 2: at most 2,500 of the rows that are not held out, half of them of training size.
std::vector<MeasuredGemm> fitted_rows(std::span<const MeasuredGemm> rows) {
  std::vector<MeasuredGemm> training, others;
  for (const MeasuredGemm& row : rows) {
    if (!row.held_out && row.work.dtype != DType::kFp32) (row.training_size() ? training : others).push_back(row);
  }
  constexpr std::size_t kHalf = 1250;
  std::vector<MeasuredGemm> result = spread(training, kHalf);
  for (const MeasuredGemm& row : spread(others, kHalf)) result.push_back(row);
  return result;
}

// Digits that the machine file carries, so that errors are those of the file.
Duration whole_nanoseconds(Duration duration) { return op_duration(round_to(seconds(duration), 1e-9)); }

FittedGemm rounded(FittedGemm fit) {
  if (fit.tiles) {
    GemmTileFit& tiles = *fit.tiles;
    tiles.fixed = whole_nanoseconds(tiles.fixed);
    tiles.compute = round_to(tiles.compute, 1e-4);
    tiles.memory = round_to(tiles.memory, 1e-4);
    tiles.feed = BytesPerSecond(round_to(tiles.feed.value, 1e8));
    tiles.waves = round_to(tiles.waves, 1e-3);
  }
  if (fit.roofline) {
    RooflineFit& roofline = *fit.roofline;
    if (roofline.fixed) roofline.fixed = whole_nanoseconds(*roofline.fixed);
    roofline.compute = round_to(roofline.compute, 1e-4);
    roofline.memory = round_to(roofline.memory, 1e-4);
  }
  return fit;
}

// Logarithms, so that a step is a factor; the strength of waves, which may be 0 or 1, is bounded.
FittedGemm tiles(const std::vector<double>& x) {
  return {.tiles = GemmTileFit{.fixed = op_duration(std::exp(x[0]) * 1e-6),
                               .compute = std::min(1.0, std::exp(x[1])),
                               .memory = std::min(1.0, std::exp(x[2])),
                               .feed = BytesPerSecond(std::exp(x[3]) * 1e9),
                               .waves = bounded(x[4], 1)},
          .roofline = {},
          .fewer = ""};
}

FittedGemm roofline(const std::vector<double>& x) {
  RooflineFit fit{.fixed = {}, .compute = std::min(1.0, std::exp(x[0])), .memory = std::min(1.0, std::exp(x[1]))};
  if (x.size() > 2) fit.fixed = op_duration(std::exp(x[2]) * 1e-6);
  return {.tiles = {}, .roofline = fit, .fewer = ""};
}

using Form = FittedGemm (*)(const std::vector<double>&);

// Mean |log(simulated / measured)|; constants that no machine has are far from any minimum.
double loss(GpuSpec& gpu, Form form, const std::vector<MeasuredGemm>& rows, const std::vector<double>& x) {
  constexpr double kWorst = 1e3, kMostLogarithm = 12;
  for (const double parameter : x) {
    if (std::abs(parameter) > kMostLogarithm) return kWorst;
  }
  const FittedGemm fit = form(x);
  use(fit, gpu.fit);
  double sum = 0;
  for (const MeasuredGemm& row : rows) sum += std::abs(std::log(simulated_s(gpu, row) / row.measured_s));
  return sum / static_cast<double>(rows.size());
}

// The loss has several minima: feed and compute can stand for one another. Short runs on a fifth of the rows find the best of them.
FittedGemm fit_form(GpuSpec& gpu, Form form, const std::vector<MeasuredGemm>& rows, const std::vector<std::vector<double>>& starts,
                    const FitProgress& progress) {
  constexpr std::size_t kLeastFew = 200;
  const std::vector<MeasuredGemm> few = spread(rows, std::max(rows.size() / 5, kLeastFew));
  const auto loss_of = [&](const std::vector<MeasuredGemm>& some) {
    return [&gpu, form, &some](const std::vector<double>& x) { return loss(gpu, form, some, x); };
  };
  constexpr double kStep = 0.1;
  std::vector<double> best;
  double best_loss = 0;
  const double stages = static_cast<double>(starts.size()) + 2;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const std::vector<double> x = simplex_minimum(loss_of(few), starts[i], kStep, 80);
    const double value = loss(gpu, form, few, x);
    if (progress) progress(static_cast<double>(i + 1) / stages);
    if (!best.empty() && value >= best_loss) continue;
    best = x;
    best_loss = value;
  }
  const FittedGemm fit = form(simplex_minimum(loss_of(rows), best, kStep, 250));
  if (progress) progress(1);
  return fit;
}

std::vector<std::vector<double>> tile_starts() {
  std::vector<std::vector<double>> starts;
  for (const double feed : {30, 60, 120, 240}) {  // GB/s of an SM
    for (const double waves : {0.15, 0.87}) {
      starts.push_back({std::log(3), std::log(0.75), std::log(0.8), std::log(feed), bounded_parameter(waves, 1)});
    }
  }
  return starts;
}

double median(std::vector<double> values) {
  STEPSIM_CHECK(!values.empty());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::optional<FittedGemm> fit_gemm(GpuSpec gpu, std::span<const MeasuredGemm> rows, const FitProgress& progress) {
  const std::vector<MeasuredGemm> fitted = fitted_rows(rows);
  if (fitted.size() < kLeastGemmRows) return std::nullopt;
  if (fitted.size() >= kLeastTileRows) return rounded(fit_form(gpu, tiles, fitted, tile_starts(), progress));
  const bool fixed = fitted.size() >= kLeastRooflineRows;
  std::vector<double> start = {std::log(0.7), std::log(0.75)};
  if (fixed) start.push_back(std::log(3));
  FittedGemm fit = rounded(fit_form(gpu, roofline, fitted, {start}, progress));
  fit.fewer =
      fixed ? "a roofline of fixed, compute and memory; tiles need " + std::to_string(kLeastTileRows) + " fitted rows"
            : "compute and memory of a roofline; its fixed part, the base's, needs " + std::to_string(kLeastRooflineRows) + " fitted rows";
  return fit;
}

std::optional<double> fit_fp32_compute(const GpuSpec& gpu, std::span<const MeasuredGemm> rows) {
  std::vector<double> fractions;
  for (const MeasuredGemm& row : rows) {
    if (row.held_out || row.work.dtype != DType::kFp32) continue;
    const double alone_s = row.measured_s - seconds(gpu.fit.gemm_fixed);
    if (alone_s > 0) fractions.push_back(arithmetic(row.work).value / (alone_s * peak(gpu, DType::kFp32).value));
  }
  if (fractions.size() < kLeastGemmRows) return std::nullopt;
  return round_to(std::min(1.0, median(fractions)), 1e-4);
}

std::optional<WeightGradientFit> fit_weight_gradient(GpuSpec gpu, std::span<const MeasuredGemm> rows) {
  STEPSIM_CHECK(gpu.fit.gemm_tile.has_value());
  // Median of measured over simulated time, of weight gradients simulated with the factor, or of other products.
  const auto over = [&](bool weight_gradients, bool held_out, double factor) {
    gpu.fit.gemm_tile->weight_gradient = factor;
    std::vector<double> ratios;
    for (const MeasuredGemm& row : rows) {
      if (row.weight_gradient() == weight_gradients && row.held_out == held_out) ratios.push_back(row.measured_s / simulated_s(gpu, row));
    }
    return median(ratios);
  };
  const auto count = [&](bool weight_gradients, bool held_out) {
    return static_cast<std::size_t>(std::count_if(rows.begin(), rows.end(), [&](const MeasuredGemm& row) {
      return row.weight_gradient() == weight_gradients && row.held_out == held_out;
    }));
  };
  if (count(false, false) < kLeastGemmRows || count(true, false) < kLeastGemmRows || count(false, true) == 0 || count(true, true) == 0) {
    return std::nullopt;
  }
  // The factor slows the tensor cores and their feed alone, so it is found through the model: with more of it weight gradients take longer.
  const auto factor_of = [&](bool held_out) {
    const double wanted = over(false, held_out, 1);
    double less = 0.5, more = 4;
    constexpr int kHalvings = 40;
    for (int i = 0; i < kHalvings; ++i) {
      const double middle = (less + more) / 2;
      (over(true, held_out, middle) > wanted ? less : more) = middle;
    }
    return (less + more) / 2;
  };
  return WeightGradientFit{.ratio = round_to(factor_of(false), 1e-3),
                           .held_out_ratio = factor_of(true),
                           .rows = count(true, false),
                           .held_out_rows = count(true, true)};
}

}  // namespace stepsim
