#include "hardware/fit/gemm_fit.h"

#include <cmath>
#include <map>
#include <tuple>

#include "hardware/fit/curve_fit.h"
#include "hardware/fit/measured_gemm.h"
#include "hardware/fit/nelder_mead.h"
#include "hardware/gemm_cost.h"
#include "sim/check.h"

namespace stepsim {

namespace {

double simulated_s(const GpuSpec& gpu, const Gemm& work) {
  const DeviceCost cost = gemm_cost(gpu, work);
  return seconds(cost.fixed + cost.alone);
}

// At most `most` of the rows, evenly spread.
std::vector<MeasuredGemm> spread(const std::vector<MeasuredGemm>& rows, std::size_t most) {
  const std::size_t count = std::min(most, rows.size());
  std::vector<MeasuredGemm> result;
  for (std::size_t i = 0; i < count; ++i) result.push_back(rows[i * rows.size() / count]);
  return result;
}

// kernels.md 2: 2,500 of the rows that are not held out, half of them of training size.
std::vector<MeasuredGemm> fitted_rows(const std::vector<MeasuredGemm>& rows) {
  std::vector<MeasuredGemm> training, others;
  for (const MeasuredGemm& row : rows) {
    if (!row.held_out) (row.training_size() ? training : others).push_back(row);
  }
  constexpr std::size_t kHalf = 1250;
  std::vector<MeasuredGemm> result = spread(training, kHalf);
  for (const MeasuredGemm& row : spread(others, kHalf)) result.push_back(row);
  return result;
}

// Logarithms, so that a step is a factor; the strength of waves, which may be 0 or 1, is bounded.
GemmTileFit constants(const std::vector<double>& x) {
  return {.fixed = op_duration(std::exp(x[0]) * 1e-6),
          .compute = std::min(1.0, std::exp(x[1])),
          .memory = std::min(1.0, std::exp(x[2])),
          .feed = BytesPerSecond(std::exp(x[3]) * 1e9),
          .waves = bounded(x[4], 1)};
}

// Mean |log(simulated / measured)|; constants that no machine has are far from any minimum.
double loss(GpuSpec& gpu, const std::vector<MeasuredGemm>& rows, const std::vector<double>& x) {
  constexpr double kWorst = 1e3;
  if (std::abs(x[0]) > 10 || std::abs(x[1]) > 5 || std::abs(x[2]) > 5 || std::abs(x[3]) > 12) return kWorst;
  gpu.fit.gemm_tile = constants(x);
  double sum = 0;
  for (const MeasuredGemm& row : rows) sum += std::abs(std::log(simulated_s(gpu, row.work) / row.measured_s));
  return sum / static_cast<double>(rows.size());
}

// The loss has several minima: feed and compute can stand for one another. Short runs on a fifth of the rows find the best of them.
GemmTileFit fit_gpu(GpuSpec& gpu, const std::vector<MeasuredGemm>& rows) {
  const std::vector<MeasuredGemm> few = spread(rows, rows.size() / 5);
  const auto loss_of = [&](const std::vector<MeasuredGemm>& some) {
    return [&](const std::vector<double>& x) { return loss(gpu, some, x); };
  };
  constexpr double kStep = 0.1;
  std::vector<double> best;
  double best_loss = 0;
  for (const double feed : {30, 60, 120, 240}) {  // GB/s of an SM
    for (const double waves : {0.15, 0.87}) {
      const std::vector<double> start = {std::log(3), std::log(0.75), std::log(0.8), std::log(feed), bounded_parameter(waves, 1)};
      const std::vector<double> x = simplex_minimum(loss_of(few), start, kStep, 80);
      const double value = loss(gpu, few, x);
      if (!best.empty() && value >= best_loss) continue;
      best = x;
      best_loss = value;
    }
  }
  return constants(simplex_minimum(loss_of(rows), best, kStep, 250));
}

// Digits that the machine file carries, so that errors are those of the catalog.
GemmTileFit rounded(GemmTileFit fit) {
  const auto round_to = [](double value, double digit) { return std::round(value / digit) * digit; };
  fit.fixed = op_duration(round_to(seconds(fit.fixed), 1e-9));
  fit.compute = round_to(fit.compute, 1e-4);
  fit.memory = round_to(fit.memory, 1e-4);
  fit.feed = BytesPerSecond(round_to(fit.feed.value, 1e8));
  fit.waves = round_to(fit.waves, 1e-3);
  return fit;
}

FitErrors errors_of(const GpuSpec& gpu, const std::vector<MeasuredGemm>& rows, const std::string& group, bool training) {
  FitErrors errors{.group = group, .fitted = {}, .held_out = {}};
  for (const MeasuredGemm& row : rows) {
    if (training && !row.training_size()) continue;
    (row.held_out ? errors.held_out : errors.fitted).push_back(simulated_s(gpu, row.work) / row.measured_s - 1);
  }
  return errors;
}

double median(std::vector<double> values) {
  STEPSIM_CHECK(!values.empty());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

FittedWeightGradient fit_weight_gradient(GpuSpec gpu, const std::string& name, const std::vector<MeasuredGemm>& rows) {
  if (gpu.fit.gemm_tile) gpu.fit.gemm_tile->weight_gradient = 1;
  std::vector<double> over[2][2];  // by weight gradient, held out
  for (const MeasuredGemm& row : rows) {
    over[row.weight_gradient() ? 1 : 0][row.held_out ? 1 : 0].push_back(row.measured_s / simulated_s(gpu, row.work));
  }
  return {.gpu = name,
          .ratio = median(over[1][0]) / median(over[0][0]),
          .held_out_ratio = median(over[1][1]) / median(over[0][1]),
          .rows = over[1][0].size()};
}

}  // namespace

std::optional<GemmFits> fit_gemms(const std::string& data) {
  GemmFits fits;
  std::map<std::string, GpuSpec> fitted;  // by machine
  for (const auto& [name, machine] : gemm_gpus()) {
    const std::string file = std::string("kernels/gemm_aic_") + name + ".csv";
    const auto table = read_measured_table(data + "/" + file);
    if (!table) return std::nullopt;
    const std::vector<MeasuredGemm> rows = measured_gemms(*table);
    GpuSpec gpu = load_gpu(machine);
    const GemmTileFit fit = rounded(fit_gpu(gpu, fitted_rows(rows)));
    gpu.fit.gemm_tile = fit;
    const FitErrors all = errors_of(gpu, rows, std::string(name) + " all shapes", false);
    const FitErrors training = errors_of(gpu, rows, std::string(name) + " m, n, k >= 1024", true);
    fits.kernels.push_back({.machine = machine,
                            .file = file,
                            .fit = fit,
                            .held_out = summary(all.held_out).mean,
                            .held_out_training = summary(training.held_out).mean});
    fits.errors.push_back(all);
    fits.errors.push_back(training);
    fitted[machine] = gpu;
  }
  const auto table = read_measured_table(data + "/kernels/simumax_efficiency.csv");
  if (!table) return std::nullopt;
  for (const auto& [name, card, machine] : {std::tuple{"A100-PCIe", "a100-pcie-80gb", "a100-sxm-80gb"}, {"B200", "b200", "b200"}}) {
    GpuSpec gpu = load_gpu(card);
    gpu.fit.gemm_tile = fitted.at(machine).fit.gemm_tile;
    fits.weight_gradients.push_back(fit_weight_gradient(gpu, name, simumax_gemms(*table, name)));
  }
  return fits;
}

}  // namespace stepsim
