#include "hardware/quantize_bytes.h"

#include <algorithm>

#include "sim/check.h"

namespace stepsim {

ElementBytes element_bytes(const Quantization& quantization) {
  const double source = quantization.source_bytes, copies = quantization.orientations ? 2 : 1;
  switch (quantization.recipe) {
    case QuantizeRecipe::kFp8Current:
      return {.read = 2 * source, .written = copies};  // accuracy.md C.3: 5 B with one copy (largest value 2, read 2, write 1)
    case QuantizeRecipe::kFp8Delayed:
      return {.read = source, .written = 2};  // accuracy.md C.3: 4 B, no pass for the largest value
    case QuantizeRecipe::kMxFp8:
      return {.read = source,
              .written = copies * (1 + 1.0 / 32)};  // accuracy.md C.3: 4.07 B with both copies (read 2, write 1 + 1, scales)
    case QuantizeRecipe::kNvFp4:
      return {.read = 2 * source, .written = 1.6};  // accuracy.md C.3: 5.6 B
  }
  check_failed("quantize recipe", __FILE__, __LINE__);
}

Quantization training_quantization(QuantizeRecipe recipe, std::int32_t compute_capability) {
  const bool hopper = compute_capability < 100;  // accuracy.md C.3: Hopper also writes the transpose (from memory that Blackwell does not)
  const bool block_scales = recipe == QuantizeRecipe::kMxFp8 || recipe == QuantizeRecipe::kNvFp4;
  return {.recipe = recipe, .source_bytes = 2, .orientations = hopper || block_scales};
}

MemoryBound quantize_work(const Quantization& quantization, std::int64_t elements) {
  STEPSIM_CHECK(elements >= 0);
  const ElementBytes bytes = element_bytes(quantization);
  const auto whole = [&](double per_element) {
    const double all = per_element * static_cast<double>(elements);
    return Bytes(static_cast<std::int64_t>(std::min(all, 4e18)));  // read and written together stay below 2^63
  };
  return {.read = whole(bytes.read), .written = whole(bytes.written), .kernel = MemoryKernel::kQuantize};
}

}  // namespace stepsim
