// Matrix products: the tiles of a library's kernels on the SMs where a machine has such a fit, else a roofline of three constants
// (kernels.md 2.1). Knows no layer.
#pragma once

#include <cstdint>
#include <optional>

#include "hardware/device_cost.h"
#include "hardware/machine_spec.h"
#include "sim/op_work.h"

namespace stepsim {

// Tiles: t0 + the least, over 14 tile shapes and 5 ways to split k, of max(tc, tm) (1 + (min / max)^2.5)^(1 / 2.5) with
//   tc = waves (64 ceil(k / 64 s) max(FLOPs of a tile and k / (compute peak / SMs), its operands / feed) + 0.05 us),
//   tm = bytes / (memory bandwidth),
// a split of k costs 1 us and 8 bytes a part and element of C. A weight gradient (NT) takes weight_gradient times tc. fp8 and fp4 compute
// at compute times gemm_compute_fp8 / gemm_compute. Products in fp32, which no tile fit has seen, and machines without one: roofline3,
// fixed + max(FLOPs / (compute peak), bytes / (memory bandwidth)).
// Bound: memory where tm is larger; else waves where more than a quarter of the tile slots stay empty, feed or compute.
DeviceCost gemm_cost(const GpuSpec&, const Gemm&);

// The tiles that it takes.
struct GemmTiling {
  std::int64_t tile_m = 0, tile_n = 0, split = 1;
  double waves = 0;  // tiles over SMs
};
// None where the product is costed by roofline3.
std::optional<GemmTiling> gemm_tiling(const GpuSpec&, const Gemm&);

}  // namespace stepsim
