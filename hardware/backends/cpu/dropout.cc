#include "hardware/backends/cpu/dropout.h"

#include "hardware/backends/cpu/fp32_only.h"
#include "hardware/backends/cpu/philox.h"

namespace stepsim::cpu {

namespace {

void scale_kept(const float* __restrict input, const std::uint8_t* __restrict mask, std::int64_t count, float scale,
                float* __restrict output) {
  for (std::int64_t i = 0; i < count; ++i) output[i] = kept_value(input[i] * scale, mask[i]);
}

}  // namespace

void run(const DropoutCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  auto* const mask = addresses.of<std::uint8_t>(call.mask);
  fill_mask(call.draw, call.count, mask);
  scale_kept(addresses.of<float>(call.input), mask, call.count, kept_scale(call.draw.probability), addresses.of<float>(call.output));
}

void run(const DropoutBackwardCall& call, const StorageAddresses& addresses) {
  check_fp32(call.elements);
  scale_kept(addresses.of<float>(call.gradient), addresses.of<std::uint8_t>(call.mask), call.count, kept_scale(call.probability),
             addresses.of<float>(call.output));
}

}  // namespace stepsim::cpu
