// Measured attention kernels: what a fit takes, wherever the rows were read from. Knows no file.
#pragma once

#include <cstdint>

#include "sim/op_work.h"

namespace stepsim {

enum class AttentionPass : std::uint8_t { kForward, kBackward, kBoth };

struct MeasuredAttention {
  Attention work;  // of the forward pass; `kernel` is the one that was measured
  AttentionPass pass = AttentionPass::kForward;
  double measured_s = 0;
  bool held_out = false;
  int line = 0;  // of the file that it was read from
};

}  // namespace stepsim
