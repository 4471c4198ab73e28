#include <algorithm>

#include "hardware/kernel_cost.h"
#include "sim/check.h"

namespace stepsim {

namespace {

double as_double(std::int64_t value) { return static_cast<double>(value); }

const AttentionFit& fit_of(const GpuSpec& gpu, std::int8_t kernel) {
  STEPSIM_CHECK(!gpu.fit.attention.empty());
  for (const AttentionFit& fit : gpu.fit.attention) {
    if (fit.kernel == kernel) return fit;
  }
  return gpu.fit.attention.front();
}

struct Rate {
  double efficiency = 0, half_length = 0;
};

Rate rate_of(const AttentionRate& row, bool backward) {
  if (backward) return {row.backward, row.backward_half_length};
  return {row.forward, row.forward_half_length};
}

// Linear between the rows of the two nearest head dimensions; rows are ordered by (causal, head_dim).
Rate rate(const AttentionFit& fit, const Attention& work) {
  const AttentionRate* below = nullptr;
  const AttentionRate* above = nullptr;
  for (const AttentionRate& row : fit.rates) {
    if (row.causal != work.causal) continue;
    if (row.head_dim <= work.head_dim) below = &row;
    if (row.head_dim >= work.head_dim && above == nullptr) above = &row;
  }
  if (below == nullptr && above == nullptr) {  // a file may give one kind of mask only
    Attention other = work;
    other.causal = fit.rates.front().causal;
    return rate(fit, other);
  }
  if (below == nullptr) return rate_of(*above, work.backward);
  if (above == nullptr || above->head_dim == below->head_dim) return rate_of(*below, work.backward);
  const double t = as_double(work.head_dim - below->head_dim) / (above->head_dim - below->head_dim);
  const Rate a = rate_of(*below, work.backward), b = rate_of(*above, work.backward);
  return {a.efficiency + t * (b.efficiency - a.efficiency), a.half_length + t * (b.half_length - a.half_length)};
}

}  // namespace

DeviceCost attention_cost(const GpuSpec& gpu, const Attention& work) {
  const AttentionFit& fit = fit_of(gpu, work.kernel);
  DeviceCost cost{.fixed = fit.fixed, .issue = gpu.fit.kernel_issue};
  const double flops = arithmetic(work).value, bytes = as_double(memory_traffic(work).value);
  if (!(flops > 0)) return cost;
  constexpr std::int64_t kQueryTile = 128;  // kernels.md 2.2: occupancy = min(1, ceil(S / 128) batch heads / SMs)
  const double blocks = as_double((work.queries - 1) / kQueryTile + 1) * as_double(work.batch) * as_double(work.heads);
  const double occupancy = share(blocks, gpu.sms);
  const Rate at = rate(fit, work);
  const double efficiency = at.efficiency / (1 + at.half_length / as_double(work.keys));
  const double compute = flops / (efficiency * occupancy * peak(gpu, work.dtype).value);
  const double memory = bytes / (fit.memory * gpu.hbm.value);
  const double alone = std::max(compute, memory);
  cost.alone = op_duration(alone);
  cost.bound = compute >= memory ? Bound::kCompute : Bound::kMemory;
  cost.sm = occupancy;
  cost.hbm = share(bytes, alone * gpu.hbm.value);
  return cost;
}

}  // namespace stepsim
