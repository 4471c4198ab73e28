#include "hardware/device_cost.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/input_error.h"

namespace stepsim {

Duration op_duration(double seconds) {
  if (!(seconds < 1e6)) throw InputError({"job"}, fmt::format("found an op of {:.3g} s, wanted less than 1e6 s: check the sizes", seconds));
  return duration_from_seconds(seconds);
}

double share(double part, double whole) { return whole > 0 ? std::min(1.0, part / whole) : 0; }

}  // namespace stepsim
