// Constants of one attention kernel, measured forward with full and causal masks over many shapes: TensorRT-LLM's in the public data.
// Knows no file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hardware/fit/measured_attention.h"
#include "hardware/machine_spec.h"

namespace stepsim {

struct InferenceAttentionFit {
  AttentionFit fit;
  std::vector<std::string> sources;  // of each rate: what of it was derived, such as "rate of causal rows"; "": measured
  std::string fewer;                 // which parameters too few rows leave to the machine; "": none
};

inline constexpr std::size_t kLeastAttentionRows = 3, kLeastAttentionShapeRows = 12;

// Holds out rows where floor(log2 batch) + floor(log2 keys) is odd.
void hold_out_checkerboard(std::vector<MeasuredAttention>& rows);

// Of forward rows of `kernel` that are not held out. With fewer than kLeastAttentionShapeRows rows of a mask only its rates are found; the
// fixed part, the memory fraction and half lengths stay those of the machine's entry for the kernel. None: fewer than kLeastAttentionRows.
// Backward is 0.87 of forward (kernels.md 2.2).
std::optional<InferenceAttentionFit> fit_inference_attention(GpuSpec gpu, std::int8_t kernel, const std::vector<MeasuredAttention>& rows);

double simulated_s(const GpuSpec& gpu, const MeasuredAttention& row);

}  // namespace stepsim
