// Measured kernels from the files that people have of them: profile.proto, or the layouts of `stepsim calibrate`.
#pragma once

#include <string>

#include "hardware/kernel_profile.h"

namespace stepsim {

// The output of nccl-tests by its content; else .textproto, .txt and .json are profile.proto, everything else is a CSV table. Of a table
// with several GPUs the rows of `gpu` count; of a collective that was measured several times the median does (of an even number the smaller
// of the two in the middle). InputError with the place of what is wrong; "--profile" where the file has no kernel of the GPU.
KernelProfile load_kernel_profile(const std::string& file, const GpuSpec& gpu);

}  // namespace stepsim
