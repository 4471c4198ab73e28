#include <algorithm>
#include <cmath>

#include "hardware/kernel_cost.h"
#include "sim/check.h"

namespace stepsim {

namespace {

// Of the kernel's 8-bit products if these are some and it has them, else of its 16-bit ones, else the first.
const AttentionFit& fit_of(const GpuSpec& gpu, const Attention& work) {
  STEPSIM_CHECK(!gpu.fit.attention.empty());
  const AttentionFit* found = nullptr;
  for (const AttentionFit& fit : gpu.fit.attention) {
    if (fit.kernel != work.kernel) continue;
    if (fit.low && bits_of(work.dtype) == 8) return fit;
    if (!fit.low && found == nullptr) found = &fit;
  }
  return found != nullptr ? *found : gpu.fit.attention.front();
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

// What TensorRT-LLM measures as one op begins with a pass of its own, rotary embedding and write of the cache: its memory time comes on
// top.
constexpr std::int8_t kTensorRt = 3;

// Blocks of 128 queries, each on an SM of its own (kernels.md 2.2). A wave that is filled in part takes part of the time that it lacks to a
// full one: 0.75 of it. Fitted to each GPU and mask of kernels/attn_aic_*.csv apart, that share is 0.40 to 1.00; one for all costs no group
// more than 0.4 points of its error.
constexpr std::int64_t kQueryTile = 128;
constexpr double kEmptySlots = 0.75;

double waves_of(double blocks, std::int32_t sms) {
  const double waves = blocks / sms;
  return std::max(1.0, waves + kEmptySlots * (std::ceil(waves) - waves));
}

}  // namespace

DeviceCost attention_cost(const GpuSpec& gpu, const Attention& work) {
  const AttentionFit& fit = fit_of(gpu, work);
  DeviceCost cost{.fixed = fit.fixed, .issue = gpu.fit.kernel_issue};
  const double flops = arithmetic(work).value, bytes = as_double(memory_traffic(work).value);
  if (!(flops > 0)) return cost;
  const double tiles = as_double((work.queries - 1) / kQueryTile + 1);
  const double blocks = tiles * as_double(work.batch) * as_double(work.heads);
  const double block_flops = flops * (tiles * kQueryTile / as_double(work.queries)) / blocks;  // of whole tiles
  const Rate at = rate(fit, work);
  const double efficiency = at.efficiency / (1 + at.half_length / as_double(work.keys));
  const DType products = bits_of(work.dtype) == 8 && !fit.low ? DType::kBf16 : work.dtype;
  const double compute = waves_of(blocks, gpu.sms) * block_flops / (efficiency * peak(gpu, products).value / gpu.sms);
  const double memory = bytes / (fit.memory * gpu.hbm.value);
  const double alone = fit.kernel == kTensorRt ? compute + memory : std::max(compute, memory);
  cost.alone = op_duration(alone);
  cost.sm = share(blocks, gpu.sms);
  cost.bound = compute < memory ? Bound::kMemory : cost.sm < 0.5 ? Bound::kWaves : Bound::kCompute;
  cost.hbm = share(bytes, alone * gpu.hbm.value);
  return cost;
}

}  // namespace stepsim
