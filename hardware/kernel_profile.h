// Measured kernels of one GPU: what they are and how long each took. Knows no cost model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hardware/machine_spec.h"
#include "sim/op_work.h"

namespace stepsim {

struct MeasuredKernel {
  OpWork work;      // a product, attention, a memory kernel or a collective; each once
  Duration time{};  // above 0; alone on the device, from start to end
};

struct KernelProfile {
  std::string file;
  std::vector<MeasuredKernel> kernels;
};

// The text or JSON form of profile.proto. InputError with the place of a machine that is not `gpu`, a latency that is no time above 0, a
// size that is missing or not above 0, a kernel that stands twice; and for a profile without kernels.
KernelProfile parse_kernel_profile(std::string_view text, const std::string& file, const GpuSpec& gpu);

}  // namespace stepsim
