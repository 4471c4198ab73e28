#include "hardware/machine_spec.h"

#include "hardware/roofline_cost_model.h"
#include "sim/check.h"
#include "sim/input_error.h"

namespace stepsim {

// The unit that computes in a dtype: both 8-bit formats run on the fp8 cores.
static std::string unit_of(DType dtype) {
  if (dtype == DType::kMxFp8) return "fp8";
  if (dtype == DType::kNvFp4) return "fp4";
  return dtype_name(dtype);
}

FlopsPerSecond peak(const GpuSpec& gpu, DType dtype) {
  const auto found = gpu.peak_tflops.find(unit_of(dtype));
  if (found != gpu.peak_tflops.end()) return FlopsPerSecond(found->second * 1e12);
  std::string names;
  for (const auto& [name, tflops] : gpu.peak_tflops) names += (names.empty() ? "" : ", ") + name;
  throw InputError({"--precision"}, "found " + dtype_name(dtype) + ", wanted one of " + names + ", which " + gpu.name + " computes in");
}

// What a GPU shares with GPUs beside it, which are peers of its loads.
static void add_host_resources(const ClusterSpec& cluster, std::int32_t host, Machine& machine) {
  const auto add = [&](const std::string& kind, const std::string& name, BytesPerSecond bandwidth) {
    machine.resources.push_back({.name = "host" + std::to_string(host) + name, .kind = kind, .device = {}, .bandwidth = bandwidth});
  };
  const RootPort& port = cluster.root_port;
  if (port.gpus > 1) {
    add("root port in", " root port in", port.host_to_device);
    add("root port out", " root port out", port.device_to_host);
    const BytesPerSecond both = port.both_host_to_device + port.both_device_to_host;
    if (both.value > 0) add("root port both", " root port both", both);
  }
  // Where reads and writes have limits of their own, a load says nothing of bytes.
  const bool one_limit = cluster.host_memory_read.value <= 0 && cluster.host_memory_write.value <= 0;
  add("host memory", " memory", one_limit ? cluster.host_memory_bandwidth : BytesPerSecond{});
}

Machine make_machine(const GpuSpec& gpu, const ClusterSpec& cluster, std::int32_t devices) {
  STEPSIM_CHECK(devices >= 1);
  STEPSIM_CHECK(cluster.gpus_per_node >= 1);
  Machine machine;
  for (std::int32_t i = 0; i < devices; ++i) {
    const DeviceId device{i};
    const std::string name = "gpu" + std::to_string(i) + " ";
    const auto add = [&](const char* kind, BytesPerSecond bandwidth) {
      machine.resources.push_back({.name = name + kind, .kind = kind, .device = device, .bandwidth = bandwidth});
    };
    add("sm", {});
    add("hbm", gpu.hbm);
    add("link in", gpu.host_to_device);
    add("link out", gpu.device_to_host);
    if (gpu.both_host_to_device.value > 0) add("link both", gpu.both_host_to_device + gpu.both_device_to_host);
    if (gpu.nvlink_per_direction.value > 0) {
      add("nvlink in", gpu.nvlink_per_direction);
      add("nvlink out", gpu.nvlink_per_direction);
    }
    add("network in", cluster.network_per_gpu);
    add("network out", cluster.network_per_gpu);
    machine.device_capacity.push_back(gpu.memory);
    // Each representative GPU sees its share of the node's host memory; the GPUs beside it are the peers of its loads.
    machine.host_capacity.push_back(Bytes(cluster.host_memory.value / cluster.gpus_per_node));
    machine.host_of_device.push_back(i);
  }
  for (std::int32_t i = 0; i < devices; ++i) add_host_resources(cluster, i, machine);
  return machine;
}

}  // namespace stepsim
