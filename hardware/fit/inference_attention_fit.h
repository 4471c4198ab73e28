// Constants of TensorRT-LLM's attention (Attention::kernel 3) from kernels/attn_aic_<gpu>.csv: bf16 forward, 512 keys and more, head
// dimensions up to 256. Fitted where floor(log2 batch) + floor(log2 keys) is even, the other fields of that checkerboard are held out.
#pragma once

#include "hardware/fit/flash_attention_fit.h"

namespace stepsim {

// `data` holds kernels/ and papers/. None where a file is absent. Errors by GPU and mask, of rows from 2048 keys on.
std::optional<AttentionFits> fit_inference_attention(const std::string& data);

}  // namespace stepsim
