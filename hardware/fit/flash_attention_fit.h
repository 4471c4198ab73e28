// Rates of training attention from the published FlashAttention tables: kernels/flash_attention_tables.csv and, for the passes on an A100
// apart, papers/flashattention_tflops.csv. e and S0 of each pass, mask and head dimension are fitted on every second sequence length.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hardware/fit/error_summary.h"
#include "hardware/machine_spec.h"

namespace stepsim {

struct FittedAttention {
  std::vector<std::string> machines;  // catalog files that carry the kernel
  AttentionFit fit;
  std::vector<std::string> sources;  // of each rate
};

struct AttentionFits {
  std::vector<FittedAttention> kernels;
  std::vector<FitErrors> errors;
};

// `data` holds kernels/ and papers/. None where a file is absent. Errors by GPU, kernel and pass.
std::optional<AttentionFits> fit_flash_attention(const std::string& data);

}  // namespace stepsim
