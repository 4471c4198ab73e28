#include "sim/machine.h"

#include "sim/check.h"

namespace stepsim {

Machine plain_machine(std::int32_t devices) {
  STEPSIM_CHECK(devices >= 0);
  Machine machine;
  machine.device_capacity.resize(static_cast<std::size_t>(devices));
  machine.host_capacity.resize(static_cast<std::size_t>(devices));
  for (std::int32_t device = 0; device < devices; ++device) machine.host_of_device.push_back(device);
  return machine;
}

}  // namespace stepsim
