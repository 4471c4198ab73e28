#include "hardware/fit/inference_attention_fit.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "hardware/fit/curve_fit.h"
#include "hardware/kernel_cost.h"
#include "sim/check.h"

namespace stepsim {

static int log2_of(std::int64_t value) {
  int log = 0;
  for (; value > 1; value /= 2) ++log;
  return log;
}

void hold_out_checkerboard(std::vector<MeasuredAttention>& rows) {
  for (MeasuredAttention& row : rows) row.held_out = (log2_of(row.work.batch) + log2_of(row.work.keys)) % 2 == 1;
}

double simulated_s(const GpuSpec& gpu, const MeasuredAttention& row) {
  Attention work = row.work;
  double time_s = 0;
  for (const bool backward : {false, true}) {
    if (row.pass == (backward ? AttentionPass::kForward : AttentionPass::kBackward)) continue;
    work.backward = backward;
    const DeviceCost cost = attention_cost(gpu, work);
    time_s += seconds(cost.fixed + cost.alone);
  }
  return time_s;
}

namespace {

using Rows = std::vector<MeasuredAttention>;

bool fitted(const MeasuredAttention& row, bool causal) {
  return !row.held_out && row.work.causal == causal && row.pass == AttentionPass::kForward;
}

std::size_t fitted_count(const Rows& rows, bool causal) {
  return static_cast<std::size_t>(std::count_if(rows.begin(), rows.end(), [&](const auto& row) { return fitted(row, causal); }));
}

std::vector<std::int32_t> head_dims(const Rows& rows, bool causal) {
  std::set<std::int32_t> dims;
  for (const MeasuredAttention& row : rows) {
    if (fitted(row, causal)) dims.insert(static_cast<std::int32_t>(row.work.head_dim));
  }
  return {dims.begin(), dims.end()};
}

double half_length(const AttentionFit& fit, bool causal) {
  for (const AttentionRate& rate : fit.rates) {
    if (rate.causal == causal) return rate.forward_half_length;
  }
  return 0;
}

AttentionRate inference_rate(std::int32_t head_dim, bool causal, double efficiency, double half) {
  constexpr double kBackward = 0.87;  // backward over forward: kernels.md 2.2
  return {.head_dim = head_dim,
          .causal = causal,
          .forward = efficiency,
          .forward_half_length = half,
          .backward = kBackward * efficiency,
          .backward_half_length = half};
}

// What the rows of one mask are fitted for.
struct Mask {
  bool causal = false;
  bool shape = false;   // S0 is found, not only the rate of each head dimension
  bool kernel = false;  // and the fixed part and the memory fraction: of the first mask
  double half = 0;      // S0 where it is not found
  std::vector<std::int32_t> dims{};
};

AttentionFit constants(AttentionFit fit, const Mask& mask, const std::vector<double>& x) {
  std::size_t next = 0;
  if (mask.kernel) {
    fit.fixed = op_duration(not_negative(x[next++]) * 1e-6);
    fit.memory = bounded(x[next++], 1);
  }
  const double half = mask.shape ? not_negative(x[next++]) : mask.half;
  for (const std::int32_t head_dim : mask.dims) fit.rates.push_back(inference_rate(head_dim, mask.causal, bounded(x[next++], 1), half));
  return fit;
}

// Adds the rates of one mask to `fit`.
AttentionFit fit_mask(GpuSpec& gpu, const AttentionFit& fit, const Rows& rows, const Mask& mask) {
  const auto residuals = [&](const std::vector<double>& x) {
    gpu.fit.attention = {constants(fit, mask, x)};
    std::vector<double> logs;
    for (const MeasuredAttention& row : rows) {
      if (fitted(row, mask.causal)) logs.push_back(std::log(simulated_s(gpu, row) / row.measured_s));
    }
    return logs;
  };
  std::vector<double> start;  // ordinary values: 20 us, 0.25 of memory bandwidth, 300 or 1000 keys, half of the peak
  if (mask.kernel) start = {not_negative_parameter(20), bounded_parameter(0.25, 1)};
  if (mask.shape) start.push_back(not_negative_parameter(mask.causal ? 1000 : 300));
  start.resize(start.size() + mask.dims.size(), bounded_parameter(0.5, 1));
  return constants(fit, mask, fitted_parameters(residuals, start, Loss::kAbsolute));
}

// What the machine says of the kernel, without its rates: where rows are too few to find it.
AttentionFit of_machine(const GpuSpec& gpu, std::int8_t kernel, Mask& full, Mask& causal) {
  STEPSIM_CHECK(!gpu.fit.attention.empty());
  AttentionFit fit = gpu.fit.attention.front();
  for (const AttentionFit& entry : gpu.fit.attention) {
    if (entry.kernel == kernel && !entry.low) fit = entry;
  }
  full.half = half_length(fit, false);
  causal.half = half_length(fit, true);
  fit.kernel = kernel;
  fit.low = false;
  fit.rates.clear();
  return fit;
}

// Digits that the machine file carries.
void round_digits(AttentionFit& fit) {
  fit.fixed = op_duration(round_to(seconds(fit.fixed), 1e-9));
  fit.memory = round_to(fit.memory, 1e-4);
  for (AttentionRate& rate : fit.rates) {
    for (double* const fraction : {&rate.forward, &rate.backward}) *fraction = round_to(*fraction, 1e-4);
    for (double* const length : {&rate.forward_half_length, &rate.backward_half_length}) *length = round_to(*length, 0.1);
  }
}

}  // namespace

// The mask with more rows first, causal where both have as many: it finds the fixed part and the memory fraction. Head dimensions without
// rows of the other mask take its rate.
std::optional<InferenceAttentionFit> fit_inference_attention(GpuSpec gpu, std::int8_t kernel, const Rows& rows) {
  const std::size_t causal_rows = fitted_count(rows, true), full_rows = fitted_count(rows, false);
  if (std::max(causal_rows, full_rows) < kLeastAttentionRows) return std::nullopt;
  Mask first{.causal = causal_rows >= full_rows}, second{.causal = !first.causal};
  AttentionFit fit = of_machine(gpu, kernel, first.causal ? second : first, first.causal ? first : second);
  InferenceAttentionFit result;
  for (Mask* const mask : {&first, &second}) {
    mask->dims = head_dims(rows, mask->causal);
    mask->shape = fitted_count(rows, mask->causal) >= kLeastAttentionShapeRows + mask->dims.size();
    mask->kernel = mask->shape && mask == &first;
  }
  if (!first.shape) result.fewer = "rates only; fixed part, memory fraction and half lengths of the base";
  fit = fit_mask(gpu, fit, rows, first);
  const AttentionFit of_first = fit;
  if (fitted_count(rows, second.causal) >= kLeastAttentionRows) {
    fit = fit_mask(gpu, fit, rows, second);
  } else {
    second.dims.clear();
  }
  const double half = second.dims.empty() ? half_length(of_first, first.causal) : half_length(fit, second.causal);
  for (const AttentionRate& rate : of_first.rates) {
    if (std::find(second.dims.begin(), second.dims.end(), rate.head_dim) != second.dims.end()) continue;
    fit.rates.push_back(inference_rate(rate.head_dim, second.causal, rate.forward, half));
  }
  std::sort(fit.rates.begin(), fit.rates.end(), [](const AttentionRate& a, const AttentionRate& b) {
    return std::pair(a.causal, a.head_dim) < std::pair(b.causal, b.head_dim);
  });
  round_digits(fit);
  for (const AttentionRate& rate : fit.rates) {
    const std::vector<std::int32_t>& measured = rate.causal == first.causal ? first.dims : second.dims;
    const bool own = std::find(measured.begin(), measured.end(), rate.head_dim) != measured.end();
    result.sources.push_back((own            ? ""
                              : first.causal ? "rate of causal rows; "
                                             : "rate of full rows; ") +
                             std::string("backward 0.87 of forward (kernels.md 2.2)"));
  }
  result.fit = fit;
  return result;
}

}  // namespace stepsim
