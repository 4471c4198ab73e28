// Bytes that casting an operand to 8 or 4 bits moves, by recipe of Transformer Engine. Knows no layer and no machine.
#pragma once

#include <cstdint>

#include "sim/op_work.h"

namespace stepsim {

// Current scaling reads the tensor once more for its largest value; delayed takes that of earlier steps; MXFP8 has a scale for each 32
// elements, NVFP4 for each 16.
enum class QuantizeRecipe : std::uint8_t { kFp8Current, kFp8Delayed, kMxFp8, kNvFp4 };

struct Quantization {
  QuantizeRecipe recipe = QuantizeRecipe::kFp8Current;
  double source_bytes = 2;   // of an element before: 2 or 4
  bool orientations = true;  // written by rows and by columns; false: as one product wants it
};

struct ElementBytes {
  double read = 0, written = 0;
  double total() const { return read + written; }
};

// Of one element. Delayed scaling writes both orientations in any case, NVFP4 was measured with both.
ElementBytes element_bytes(const Quantization& quantization);

// What training does on a GPU: MXFP8 and NVFP4 write both orientations, as their scales run along one; tensor-wise FP8 writes both on
// Hopper, whose products take one layout only.
Quantization training_quantization(QuantizeRecipe recipe, std::int32_t compute_capability);

// All of an operand; saturates instead of overflowing.
MemoryBound quantize_work(const Quantization& quantization, std::int64_t elements);

}  // namespace stepsim
