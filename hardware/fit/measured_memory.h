// Measured kernels that are bound by memory: what a fit takes, wherever the rows were read from. Knows no file.
#pragma once

#include "sim/op_work.h"

namespace stepsim {

struct MeasuredMemory {
  MemoryBound work;
  double measured_s = 0;
  bool held_out = false;
  int line = 0;  // of the file that it was read from
};

}  // namespace stepsim
