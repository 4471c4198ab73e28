// What a graph runs on, as plain data: shared resources, memory capacities, which host memory a device has. Knows no model and no GPU name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/units.h"

namespace stepsim {

struct Resource {
  std::string name;            // "gpu0 sm"; unique
  std::string kind;            // a word of the cost model: "sm", "hbm", "link in", "nvlink out"
  DeviceId device{};           // none: shared by several
  BytesPerSecond bandwidth{};  // of a full load, to report bytes moved; 0 for sm
};

struct Machine {
  std::vector<Resource> resources{};                    // by ResourceId
  std::vector<std::optional<Bytes>> device_capacity{};  // by DeviceId; none: unlimited
  std::vector<std::optional<Bytes>> host_capacity{};    // by host
  std::vector<std::int32_t> host_of_device{};           // by DeviceId
};

// n devices with one host each, unlimited memory, no resources: for graphs whose costs carry no loads.
Machine plain_machine(std::int32_t devices);

}  // namespace stepsim
