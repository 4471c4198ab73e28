// Rates of one training attention kernel, e and S0 of each pass, mask and head dimension, from measured forward and backward passes: those
// of the published FlashAttention tables. Knows no file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hardware/fit/measured_attention.h"
#include "hardware/machine_spec.h"

namespace stepsim {

struct FlashAttentionFit {
  AttentionFit fit;                  // by (causal, head_dim); digits as machine files carry them
  std::vector<std::string> sources;  // of each rate: what of it was derived; "": all measured
  std::string fewer;                 // which parameters too few rows leave to the machine; "": none
};

// Rate of a backward pass over that of its forward pass, where no backward pass was measured.
struct BackwardRatio {
  double full = 0.87, causal = 0.87;  // kernels.md 2.2: 0.85-0.89
  std::string source = "kernels.md 2.2";
};

// Of each pass, mask and head dimension every second length from the shortest is fitted, the others are held out. Forward and backward
// together are fitted only where backward was not measured alone; else they are held out.
void hold_out_second_lengths(std::vector<MeasuredAttention>& rows);

// From the rows of `kernel` that are not held out; fixed part and memory fraction are those of the machine's entry for the kernel, or of
// its first. A mask and head dimension without forward rows has no rate. Least squares of log errors; with one length S0 stays the
// machine's. Where backward was not measured it is derived from the same kernel's nearest head dimension without a mask, else by the ratio.
// None: no forward rows.
std::optional<FlashAttentionFit> fit_flash_attention(GpuSpec gpu, std::int8_t kernel, std::vector<MeasuredAttention> rows,
                                                     const BackwardRatio& ratio = {});

// The kernel on a GPU on which only `ratio` is known: times the FLOP/s that it has on `from`.
FlashAttentionFit scaled_attention(const FlashAttentionFit& fit, const GpuSpec& from, const GpuSpec& to, double ratio);

}  // namespace stepsim
