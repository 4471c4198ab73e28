#include "hardware/gemm_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace stepsim {

namespace {

double blocks(std::int64_t length, std::int64_t tile) { return as_double(length / tile + (length % tile != 0 ? 1 : 0)); }

bool eight_bits_or_less(DType dtype) { return dtype == DType::kFp8 || dtype == DType::kMxFp8 || dtype == DType::kNvFp4; }

// kernels.md 2.1: tile shapes of cuBLAS, ways to split k, latency of a wave, of a split.
constexpr int kEdges = 5;
constexpr std::array<std::int64_t, kEdges> kEdge = {16, 32, 64, 128, 256};
struct TileShape {
  std::size_t m, n;  // indices of kEdge
};
constexpr std::array<TileShape, 14> kTileShapes = {
    {{4, 3}, {3, 4}, {3, 3}, {4, 2}, {2, 4}, {3, 2}, {2, 3}, {2, 2}, {3, 1}, {1, 3}, {2, 1}, {1, 2}, {0, 2}, {2, 0}}};
constexpr std::array<std::int64_t, 5> kSplits = {1, 2, 4, 8, 16};
constexpr std::int64_t kLeastSplit = 128, kStep = 64;  // of k
constexpr double kWaveS = 0.05e-6, kSplitS = 1e-6;

// x^0.4, 1 <= x <= 2: Newton's iteration for y^5 = x^2 from the tangent at 1, which lies above; 4 steps reach the last bit.
double two_fifths_power(double x) {
  double y = 1 + 0.4 * (x - 1);
  for (int i = 0; i < 4; ++i) {
    const double square = y * y;
    y = 0.2 * (4 * y + x * x / (square * square));
  }
  return y;
}

// (a^2.5 + b^2.5)^(1 / 2.5): two parts of a kernel that overlap, though not fully.
double overlapped(double a, double b) {
  const double larger = std::max(a, b), ratio = std::min(a, b) / larger;
  return larger * two_fifths_power(1 + ratio * ratio * std::sqrt(ratio));
}

struct Rates {
  double flops_per_s, feed_bytes_per_s;  // of one SM
  double memory_bytes_per_s;
  double sms, waves;
};

struct TiledTime {
  double alone_s = 0, split_s = 0;
  double blocks = 0, bytes = 0;
  Bound bound = Bound::kLatency;
  GemmTiling tiling{};
};

Bound bound_of(double tiles_s, double memory_s, double used_waves, double waves, bool feed) {
  if (memory_s > tiles_s) return Bound::kMemory;
  if (3 * waves > 4 * used_waves) return Bound::kWaves;  // a quarter of the tile slots stay empty
  return feed ? Bound::kFeed : Bound::kCompute;
}

TiledTime tiled_time(const Rates& rates, const Gemm& work) {
  const double bytes = as_double(memory_traffic(work).value), element = as_double(bits_of(work.dtype)) / 8;
  std::array<double, kEdges> rows{}, columns{};
  for (std::size_t i = 0; i < kEdges; ++i) {
    rows[i] = blocks(work.m, kEdge[i]) * as_double(work.batch);
    columns[i] = blocks(work.n, kEdge[i]);
  }
  TiledTime best;
  double best_s = std::numeric_limits<double>::infinity();
  for (const std::int64_t split : kSplits) {
    if (split > 1 && work.k / split < kLeastSplit) break;
    const double parts = split > 1 ? 8 * as_double(split) * as_double(work.m) * as_double(work.n) * as_double(work.batch) : 0;
    const double split_s = split > 1 ? kSplitS : 0, memory_s = (bytes + parts) / rates.memory_bytes_per_s;
    if (memory_s + split_s >= best_s) break;  // parts only grow
    const double steps = as_double(kStep) * blocks(work.k, kStep * split);
    for (const TileShape& shape : kTileShapes) {
      const double tile_m = as_double(kEdge[shape.m]), tile_n = as_double(kEdge[shape.n]);
      const double tiles = rows[shape.m] * columns[shape.n] * as_double(split), used_waves = tiles / rates.sms;
      const double waves = std::max(1.0, rates.waves * std::ceil(used_waves) + (1 - rates.waves) * used_waves);
      const double tensor_s = 2 * tile_m * tile_n / rates.flops_per_s, feed_s = element * (tile_m + tile_n) / rates.feed_bytes_per_s;
      const double tiles_s = waves * (std::max(tensor_s, feed_s) * steps + kWaveS);
      if (std::max(tiles_s, memory_s) + split_s >= best_s) continue;
      const double alone_s = overlapped(tiles_s, memory_s);
      if (alone_s + split_s >= best_s) continue;
      best_s = alone_s + split_s;
      best = {.alone_s = alone_s,
              .split_s = split_s,
              .blocks = tiles,
              .bytes = bytes + parts,
              .bound = bound_of(tiles_s, memory_s, used_waves, waves, feed_s > tensor_s),
              .tiling = {.tile_m = kEdge[shape.m], .tile_n = kEdge[shape.n], .split = split, .waves = used_waves}};
    }
  }
  return best;
}

// What products are a share of. The 4-bit peak of B300 and GB300 (6 times bf16) is not reached: Transformer Engine's are 2 times as fast as
// in fp8, casts aside (accuracy.md C.3 and C.5: count 4 times bf16).
double product_peak(const GpuSpec& gpu, DType dtype) {
  const double datasheet = peak(gpu, dtype).value;
  const bool unreached = dtype == DType::kNvFp4 && gpu.compute_capability == 103 && gpu.peak_tflops.count("bf16") > 0;
  return unreached ? std::min(datasheet, 4 * peak(gpu, DType::kBf16).value) : datasheet;
}

TiledTime tiled_time(const GpuSpec& gpu, const GemmTileFit& fit, const Gemm& work) {
  const double eight_bit = eight_bits_or_less(work.dtype) ? gpu.fit.gemm_compute_fp8 / gpu.fit.gemm_compute : 1;
  const double slower = work.transpose_b && !work.transpose_a ? fit.weight_gradient : 1;
  const double compute = std::min(1.0, fit.compute * eight_bit) / slower;
  const Rates rates{.flops_per_s = compute * product_peak(gpu, work.dtype) / gpu.sms,
                    .feed_bytes_per_s = fit.feed.value / slower,
                    .memory_bytes_per_s = fit.memory * gpu.hbm.value,
                    .sms = static_cast<double>(gpu.sms),
                    .waves = fit.waves};
  const bool empty = work.m == 0 || work.n == 0 || work.batch == 0;
  return empty ? TiledTime{} : tiled_time(rates, work);
}

DeviceCost tiled_cost(const GpuSpec& gpu, const GemmTileFit& fit, const Gemm& work) {
  const TiledTime time = tiled_time(gpu, fit, work);
  return {.fixed = fit.fixed + op_duration(time.split_s),
          .alone = op_duration(time.alone_s),
          .issue = gpu.fit.kernel_issue,
          .bound = time.bound,
          .sm = share(time.blocks, gpu.sms),
          .hbm = share(time.bytes, time.alone_s * gpu.hbm.value)};
}

double roofline_compute(const GpuSpec& gpu, DType dtype) {
  if (eight_bits_or_less(dtype)) return gpu.fit.gemm_compute_fp8;
  return dtype == DType::kFp32 ? gpu.fit.gemm_compute_fp32 : gpu.fit.gemm_compute;
}

DeviceCost roofline_cost(const GpuSpec& gpu, const Gemm& work) {
  const double bytes = as_double(memory_traffic(work).value);
  const double compute = arithmetic(work).value / (roofline_compute(gpu, work.dtype) * product_peak(gpu, work.dtype));
  const double memory = bytes / (gpu.fit.gemm_memory * gpu.hbm.value);
  const double alone = std::max(compute, memory);
  const double tiles = blocks(work.m, 128) * blocks(work.n, 128) * as_double(work.batch);  // cuBLAS's usual tile, kernels.md 2.1
  return {.fixed = gpu.fit.gemm_fixed,
          .alone = op_duration(alone),
          .issue = gpu.fit.kernel_issue,
          .bound = compute >= memory ? Bound::kCompute : Bound::kMemory,
          .sm = share(tiles, gpu.sms),
          .hbm = share(bytes, alone * gpu.hbm.value)};
}

}  // namespace

static bool is_tiled(const GpuSpec& gpu, const Gemm& work) { return gpu.fit.gemm_tile.has_value() && work.dtype != DType::kFp32; }

std::optional<GemmTiling> gemm_tiling(const GpuSpec& gpu, const Gemm& work) {
  if (!is_tiled(gpu, work)) return std::nullopt;
  Gemm kernels = work;  // that run together
  if (work.in_flight > 0) kernels.batch = std::min<std::int64_t>(work.batch, work.in_flight);
  return tiled_time(gpu, *gpu.fit.gemm_tile, kernels).tiling;
}

static DeviceCost kernel_cost(const GpuSpec& gpu, const Gemm& work) {
  return is_tiled(gpu, work) ? tiled_cost(gpu, *gpu.fit.gemm_tile, work) : roofline_cost(gpu, work);
}

// Kernels on several streams: `in_flight` of them fill the SMs together, as one kernel of so many products would; a stream's own are one
// behind the other, each with its fixed time.
static DeviceCost streams_cost(const GpuSpec& gpu, const Gemm& work) {
  const std::int64_t in_flight = std::min<std::int64_t>(work.in_flight, work.batch), rounds = (work.batch - 1) / in_flight + 1;
  Gemm part = work;
  part.batch = in_flight;
  DeviceCost cost = kernel_cost(gpu, part);
  part.batch = 1;
  const DeviceCost single = kernel_cost(gpu, part);
  cost.alone = op_duration(seconds(cost.alone) * as_double(work.batch) / as_double(in_flight));
  const double stream_s = as_double(rounds) * seconds(single.fixed + single.alone);
  cost.fixed = op_duration(std::max(seconds(cost.fixed), stream_s - seconds(cost.alone)));
  cost.issue = op_duration(seconds(cost.issue) * as_double(work.batch));
  return cost;
}

DeviceCost gemm_cost(const GpuSpec& gpu, const Gemm& work) {
  return work.in_flight > 0 && work.batch > 0 ? streams_cost(gpu, work) : kernel_cost(gpu, work);
}

}  // namespace stepsim
