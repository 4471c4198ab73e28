// What a GPU, its node and its network are, with the source of every number; and the Machine and cost model made from it. Knows no Transformer.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/machine.h"
#include "sim/op_work.h"
#include "sim/units.h"

namespace stepsim {

// Fitted constants of the first cost model, per GPU (spec: roofline3 for matrix products, T(S) for attention). Fractions of datasheet peaks.
struct KernelFit {
  Duration gemm_fixed{};            // t0
  double gemm_compute = 0;          // ec
  double gemm_memory = 0;           // em
  Duration attention_fixed{};
  double attention_forward_d64 = 0, attention_forward_d128 = 0, attention_forward_d256 = 0;  // e_d, of dense peak
  double attention_half_length_full = 0, attention_half_length_causal = 0;                    // S0, tokens
  double attention_backward = 0;    // efficiency of backward over forward
  Duration memory_fixed{};          // t0 of memory-bound kernels
  double memory_fused = 0, memory_unfused = 0;  // fraction of HBM bandwidth
};

struct GpuSpec {
  std::string name;                    // catalog name: "h100-sxm-80gb"
  std::vector<std::string> aliases;
  std::map<std::string, double> peak_tflops;  // dense, by dtype name: "bf16", "fp16", "fp8", "tf32", "fp32", "fp4"
  double sparse_factor = 1;            // 2 where the datasheet doubles with 2:4 sparsity
  BytesPerSecond hbm;
  Bytes memory;                        // as the driver reports it to programs
  std::int32_t sms = 0;
  std::int32_t compute_capability = 0; // 80, 90, 100
  BytesPerSecond host_to_device, device_to_host;  // alone, achievable
  BytesPerSecond nvlink_per_direction; // 0: none
  std::string host_link;               // "PCIe5 x16", "NVLink-C2C"
  Bytes library_workspace;             // cuBLAS handles of main and autograd thread
  KernelFit fit;
  std::vector<std::string> assumptions;  // derived or unsourced numbers, each a sentence for the user
};

struct ClusterSpec {
  std::string name;
  std::int32_t gpus_per_node = 8;
  BytesPerSecond network_per_gpu;      // each direction
  Bytes host_memory;                   // of a node
  std::vector<std::string> assumptions;
};

// A catalog name, an alias, or a .textproto. InputError with the nearest name.
GpuSpec load_gpu(const std::string& name_or_file);
ClusterSpec load_cluster(const std::string& name_or_file);
ClusterSpec usual_cluster(const GpuSpec&);
std::vector<std::string> gpu_names();
std::vector<std::string> cluster_names();

// Dense peak for a dtype; InputError ("--precision: found fp8, wanted one of ...") if the GPU has none.
FlopsPerSecond peak(const GpuSpec&, DType);
std::string dtype_name(DType);

}  // namespace stepsim
