#include "hardware/fit/flash_attention_fit.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "hardware/fit/curve_fit.h"
#include "hardware/fit/inference_attention_fit.h"
#include "sim/check.h"

namespace stepsim {

namespace {

using Rows = std::vector<MeasuredAttention>;

std::vector<const MeasuredAttention*> fitted_rows(const Rows& rows, const AttentionRate& rate, AttentionPass pass) {
  std::vector<const MeasuredAttention*> chosen;
  for (const MeasuredAttention& row : rows) {
    const bool fits = row.work.head_dim == rate.head_dim && row.work.causal == rate.causal && row.pass == pass;
    if (fits && !row.held_out) chosen.push_back(&row);
  }
  return chosen;
}

// What the machine has for the kernel, without its rates.
AttentionFit of_machine(const GpuSpec& gpu, std::int8_t kernel) {
  STEPSIM_CHECK(!gpu.fit.attention.empty());
  AttentionFit fit = gpu.fit.attention.front();
  for (const AttentionFit& entry : gpu.fit.attention) {
    if (entry.kernel == kernel && !entry.low) fit = entry;
  }
  fit.kernel = kernel;
  fit.low = false;
  fit.rates.clear();
  return fit;
}

// Of the machine, where one length says nothing of it: that of the mask whose head dimension is nearest.
double half_length(const GpuSpec& gpu, const AttentionRate& rate, bool backward) {
  const AttentionRate* nearest = nullptr;
  const auto distance = [&](const AttentionRate& other) {
    return std::abs(other.head_dim - rate.head_dim) + (other.causal == rate.causal ? 0 : 10000);
  };
  for (const AttentionRate& other : gpu.fit.attention.front().rates) {
    if (nearest == nullptr || distance(other) < distance(*nearest)) nearest = &other;
  }
  if (nearest == nullptr) return 0;
  return backward ? nearest->backward_half_length : nearest->forward_half_length;
}

std::size_t lengths(const std::vector<const MeasuredAttention*>& rows) {
  std::set<std::int64_t> all;
  for (const MeasuredAttention* row : rows) all.insert(row->work.keys);
  return all.size();
}

// Rates of one kernel on one GPU.
class RateFit {
 public:
  RateFit(GpuSpec gpu, std::int8_t kernel) : machine_(gpu), gpu_(std::move(gpu)) { gpu_.fit.attention = {of_machine(gpu_, kernel)}; }
  const AttentionFit& kernel() const { return gpu_.fit.attention.front(); }
  // Sets e and S0 of one pass; false: S0 stays the machine's.
  bool fit(AttentionRate& rate, bool backward, const std::vector<const MeasuredAttention*>& rows);

 private:
  GpuSpec machine_, gpu_;
};

bool RateFit::fit(AttentionRate& rate, bool backward, const std::vector<const MeasuredAttention*>& rows) {
  double& efficiency = backward ? rate.backward : rate.forward;
  double& half = backward ? rate.backward_half_length : rate.forward_half_length;
  const bool shape = lengths(rows) > 1;
  if (!shape) half = half_length(machine_, rate, backward);
  const auto apply = [&](const std::vector<double>& x) {
    efficiency = bounded(x[0], 1);
    if (shape) half = not_negative(x[1]);
    gpu_.fit.attention.front().rates = {rate};
  };
  const auto residuals = [&](const std::vector<double>& x) {
    apply(x);
    std::vector<double> logs;
    for (const MeasuredAttention* row : rows) logs.push_back(std::log(simulated_s(gpu_, *row) / row->measured_s));
    return logs;
  };
  // From lengths on both sides of the ones that are found.
  std::vector<double> best;
  double least = 0;
  for (const double start : {100, 300, 1000, 2000}) {
    std::vector<double> from = {bounded_parameter(0.6, 1)};
    if (shape) from.push_back(not_negative_parameter(start));
    const std::vector<double> x = fitted_parameters(residuals, from, Loss::kSquares);
    const std::vector<double> logs = residuals(x);
    const double loss = std::inner_product(logs.begin(), logs.end(), logs.begin(), 0.0);
    if (!best.empty() && loss >= least) continue;
    best = x;
    least = loss;
  }
  apply(best);
  return shape;
}

// Where no backward pass was measured; says how.
std::string derive_backward(AttentionRate& rate, const std::vector<AttentionRate>& measured, const BackwardRatio& ratio) {
  const AttentionRate* nearest = nullptr;
  for (const AttentionRate& other : measured) {
    if (other.causal) continue;
    if (nearest == nullptr || std::abs(other.head_dim - rate.head_dim) <= std::abs(nearest->head_dim - rate.head_dim)) nearest = &other;
  }
  if (nearest == nullptr) {
    const double part = rate.causal ? ratio.causal : ratio.full;
    rate.backward = part * rate.forward;
    rate.backward_half_length = rate.forward_half_length;
    char text[32];
    std::snprintf(text, sizeof text, "backward %.3g of forward", part);
    return text + std::string(": ") + ratio.source;
  }
  rate.backward = std::min(1.0, rate.forward * nearest->backward / nearest->forward);
  rate.backward_half_length = std::max(0.0, rate.forward_half_length + nearest->backward_half_length - nearest->forward_half_length);
  return "backward derived from head_dim " + std::to_string(nearest->head_dim) + ", not causal";
}

// Digits that the machine file carries.
void round_digits(AttentionRate& rate) {
  const auto round_to = [](double& value, double digit) { value = std::round(value / digit) * digit; };
  for (double* const fraction : {&rate.forward, &rate.backward}) round_to(*fraction, 1e-4);
  for (double* const length : {&rate.forward_half_length, &rate.backward_half_length}) round_to(*length, 0.1);
}

std::set<std::pair<bool, std::int32_t>> masks_and_head_dims(const Rows& rows) {
  std::set<std::pair<bool, std::int32_t>> all;
  for (const MeasuredAttention& row : rows) all.insert({row.work.causal, static_cast<std::int32_t>(row.work.head_dim)});
  return all;
}

}  // namespace

void hold_out_second_lengths(Rows& rows) {
  std::map<std::tuple<AttentionPass, bool, std::int64_t>, std::set<std::int64_t>> lengths;
  for (const MeasuredAttention& row : rows) lengths[{row.pass, row.work.causal, row.work.head_dim}].insert(row.work.keys);
  for (MeasuredAttention& row : rows) {
    const std::set<std::int64_t>& of_group = lengths.at({row.pass, row.work.causal, row.work.head_dim});
    const bool second = std::distance(of_group.begin(), of_group.find(row.work.keys)) % 2 == 1;
    const bool known =
        row.pass == AttentionPass::kBoth && lengths.count({AttentionPass::kBackward, row.work.causal, row.work.head_dim}) > 0;
    row.held_out = second || known;
  }
}

std::optional<FlashAttentionFit> fit_flash_attention(GpuSpec gpu, std::int8_t kernel, Rows rows, const BackwardRatio& ratio) {
  std::erase_if(rows, [&](const MeasuredAttention& row) { return row.work.kernel != kernel; });
  RateFit model(std::move(gpu), kernel);
  FlashAttentionFit result{.fit = model.kernel(), .sources = {}, .fewer = {}};
  std::vector<AttentionRate> measured;
  bool shapes = true;
  for (const auto& [causal, head_dim] : masks_and_head_dims(rows)) {  // full masks first: causal ones are derived from them
    AttentionRate rate{.head_dim = head_dim, .causal = causal};
    const std::vector<const MeasuredAttention*> forward = fitted_rows(rows, rate, AttentionPass::kForward);
    if (forward.empty()) continue;
    shapes = model.fit(rate, false, forward) && shapes;
    std::vector<const MeasuredAttention*> backward = fitted_rows(rows, rate, AttentionPass::kBackward);
    if (backward.empty()) backward = fitted_rows(rows, rate, AttentionPass::kBoth);
    std::string source;
    if (backward.empty()) {
      source = derive_backward(rate, measured, ratio);
    } else {
      shapes = model.fit(rate, true, backward) && shapes;
      measured.push_back(rate);
    }
    round_digits(rate);
    result.fit.rates.push_back(rate);
    result.sources.push_back(source);
  }
  if (result.fit.rates.empty()) return std::nullopt;
  if (!shapes) result.fewer = "half lengths of the base where one length was measured";
  return result;
}

FlashAttentionFit scaled_attention(const FlashAttentionFit& fit, const GpuSpec& from, const GpuSpec& to, double ratio) {
  FlashAttentionFit scaled = fit;
  const double factor = ratio * peak(from, DType::kBf16).value / peak(to, DType::kBf16).value;
  for (std::size_t i = 0; i < scaled.fit.rates.size(); ++i) {
    AttentionRate& rate = scaled.fit.rates[i];
    for (double* const fraction : {&rate.forward, &rate.backward}) *fraction = std::min(1.0, *fraction * factor);
    round_digits(rate);
    char text[32];
    std::snprintf(text, sizeof text, "%.3g times the rate on ", ratio);
    std::string& source = scaled.sources[i];
    source += (source.empty() ? "" : "; ") + std::string(text) + from.name;
  }
  return scaled;
}

}  // namespace stepsim
