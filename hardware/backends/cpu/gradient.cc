#include "hardware/backends/cpu/gradient.h"

#include "hardware/backends/cpu/fp32_only.h"
#include "hardware/backends/cpu/lanes.h"

namespace stepsim::cpu {

namespace {

std::int64_t fp32_count(const Tensor& tensor) { return tensor.size.value / static_cast<std::int64_t>(sizeof(float)); }

}  // namespace

double squared_norm(const GradientNormCall& call, const StorageAddresses& addresses) {
  check_fp32(call.type);
  double sum = 0;
  for (const Tensor& tensor : call.gradients) {
    const auto* const gradient = addresses.of<float>(tensor);
    sum += lane_sum<double>(fp32_count(tensor), [&](std::int64_t i) {
      const auto each = static_cast<double>(gradient[i]);
      return each * each;
    });
  }
  return sum;
}

void clip(const GradientClipCall& call, const StorageAddresses& addresses, double norm) {
  check_fp32(call.type);
  const double wanted = static_cast<double>(call.most) / (norm + 1e-6);  // torch.nn.utils.clip_grad_norm_
  const auto factor = static_cast<float>(wanted > 1 ? 1.0 : wanted);     // a norm that is NaN shows
  for (const Tensor& tensor : call.gradients) {
    auto* const gradient = addresses.of<float>(tensor);
    for (std::int64_t i = 0; i < fp32_count(tensor); ++i) gradient[i] *= factor;
  }
}

}  // namespace stepsim::cpu
