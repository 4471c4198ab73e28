// What a GPU, its node and its network are, with the source of every number; and the Machine and cost model made from it. Knows no
// Transformer.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/dtype_name.h"
#include "sim/machine.h"
#include "sim/op_work.h"
#include "sim/units.h"

namespace stepsim {

// Rate of an attention kernel at length S, as a fraction of the dense peak: efficiency / (1 + half_length / S).
struct AttentionRate {
  std::int32_t head_dim = 0;
  bool causal = false;
  double forward = 0, forward_half_length = 0;
  double backward = 0, backward_half_length = 0;
};

struct AttentionFit {
  std::int8_t kernel = 0;  // as Attention::kernel; 3, TensorRT-LLM's context attention, is what the public inference data measured
  Duration fixed{};
  double memory = 0;                 // fraction of memory bandwidth that bounds it from below
  std::vector<AttentionRate> rates;  // by (causal, head_dim)
  bool low = false;                  // of 8-bit products, over their peak; without such an entry they take the time of 16-bit ones
};

// Time of a collective within an NVLink domain; w are the bytes that each GPU sends, n the ranks. The lesser of what NCCL's protocols take:
//   fixed + per_rank (n - 1) + w / b + 2 sqrt(pipeline w / B), B = bus * link, b = B (1 - small_group / n), and
//   quick_fixed + quick_per_rank (n - 1) + w / (quick_bus * link), of little latency and bandwidth, for small messages.
// The root is what chunks of the best size cost: more chunks overlap better and each costs `pipeline`.
struct CollectiveFit {
  Duration fixed{}, per_rank{};
  double bus = 0;          // fraction of the link
  double small_group = 0;  // at most 1, or more ranks would take less time
  Duration pipeline{};
  Duration quick_fixed{}, quick_per_rank{};
  double quick_bus = 0;  // 0: there is no such protocol
};

// Dispatch and combine of an expert-parallel library within an NVLink domain: fixed + bytes / rate at the number of ranks.
struct ExpertRate {
  std::int32_t ranks = 0;
  BytesPerSecond dispatch, combine;
};
struct ExpertExchange {
  CollectiveLibrary library = CollectiveLibrary::kNccl;
  Duration fixed{};
  std::int32_t sms = 0;           // that its kernels hold
  std::vector<ExpertRate> rates;  // by ranks
};

// What a stack's sustained training takes over what the kernels of a machine's file take alone (stack_spec.h); 1 on the bare machine.
struct SustainedSlowdown {
  std::map<std::string, double> gemm;  // by dtype name of the operands; absent: 1
  double attention = 1, memory = 1, collective = 1;
};

// How well constants meet the measurements: means of absolute relative errors of rows that were fitted and that were not.
struct FitRecord {
  std::string op_class;  // "gemm", "attention", "memory", "collective"
  std::string data, conditions;
  std::string part{};  // of the class that it is about: "weight-gradient", "inference", "fp32", "elementwise"; "": all of it
  std::int64_t fitted_rows = 0, held_out_rows = 0;
  double fitted_error = 0, held_out_error = 0, held_out_bias = 0;
};

// Matrix products by tiles on SMs (gemm_cost.h, kernels.md 2.1).
struct GemmTileFit {
  Duration fixed{};            // t0
  double compute = 0;          // ec, of the dense peak
  double memory = 0;           // em, of memory bandwidth
  BytesPerSecond feed;         // c2: operands into one SM
  double waves = 0;            // a: 1 where a part-filled wave takes as long as a full one, 0 where it takes its share
  double weight_gradient = 1;  // time of NT products over that of others of the shape
};

// Fitted constants of the cost model, per GPU (spec: tiles or roofline3 for matrix products, T(S) for attention). Fractions of datasheet
// peaks.
struct KernelFit {
  Duration gemm_fixed{};    // t0
  double gemm_compute = 0;  // ec
  double gemm_memory = 0;   // em
  double gemm_compute_fp8 = 0, gemm_compute_fp32 = 0;
  std::optional<GemmTileFit> gemm_tile;  // none: roofline3
  std::vector<AttentionFit> attention;   // the first stands for kernels that are not listed
  Duration memory_fixed{};               // t0 of memory-bound kernels
  double memory_fused = 0, memory_norm = 0, memory_softmax = 0, memory_unfused = 0, memory_gather = 0;  // fractions of memory bandwidth
  double memory_quantize = 0, memory_top_k = 0;                                                         // likewise
  CollectiveFit all_reduce, gather, all_to_all;
  std::vector<ExpertExchange> expert_exchanges;
  double collective_sms = 0;       // share of the SMs that a running collective takes from compute
  std::int32_t send_channels = 0;  // SMs of a send or receive
  Duration network_hop{};          // latency of a step between NVLink domains
  Duration kernel_issue{}, copy_issue{}, copy_fixed{};
  Duration pinned_allocation{};  // host time to allocate and pin one buffer
  SustainedSlowdown sustained;
  double pageable = 0;  // rate of pageable over pinned copies
};

// A host copy moves what it has above `beyond` at these rates; beyond 0: one rate for every size.
struct LargeCopy {
  Bytes beyond;
  BytesPerSecond host_to_device, device_to_host;
};

struct GpuSpec {
  std::string name;  // catalog name: "h100-sxm-80gb"
  std::vector<std::string> aliases;
  std::map<std::string, double> peak_tflops;  // dense, by dtype name: "bf16", "fp16", "fp8", "tf32", "fp32", "fp4"
  double sparse_factor = 1;                   // 2 where the datasheet doubles with 2:4 sparsity
  BytesPerSecond hbm;
  Bytes memory;  // as the driver reports it to programs
  std::int32_t sms = 0;
  std::int32_t compute_capability = 0;                      // 80, 90, 100
  BytesPerSecond host_to_device, device_to_host;            // alone, achievable
  BytesPerSecond both_host_to_device, both_device_to_host;  // while the other direction is busy too; 0: as alone
  LargeCopy large_copy;
  BytesPerSecond nvlink_per_direction;  // 0: none
  std::string host_link;                // "PCIe5 x16", "NVLink-C2C"
  Bytes blas_workspace;                 // of one cuBLAS handle, as PyTorch allocates it
  Bytes engine_workspace;               // of Transformer Engine's products
  KernelFit fit;
  std::string usual_cluster;
  std::vector<FitRecord> fits;
  std::vector<std::string> assumptions;  // derived or unsourced numbers, each a sentence for the user
};

// What the GPUs behind one PCIe root port have together.
struct RootPort {
  std::int32_t gpus = 1;                                    // 1: each GPU has its link for itself and the rates do not count
  BytesPerSecond host_to_device, device_to_host;            // while the other direction is idle
  BytesPerSecond both_host_to_device, both_device_to_host;  // while it is busy too; 0: as alone
};

struct ClusterSpec {
  std::string name;
  std::vector<std::string> aliases;
  std::int32_t gpus_per_node = 8;
  std::int32_t nvlink_domain = 8;         // consecutive GPUs that reach one another by NVLink
  std::int32_t segment = 0;               // GPUs of a domain that a job larger than one takes; 0: all
  BytesPerSecond network_per_gpu;         // each direction: its own NIC, or its share of those of the node while all its GPUs use them
  double network_efficiency = 1;          // achievable share of it
  Bytes host_memory;                      // of a node
  std::int32_t gpus_per_host_memory = 1;  // GPUs that share one host memory: a socket's, a Grace's
  BytesPerSecond host_memory_bandwidth;   // of that memory, both directions together
  // What it gives to copies of one direction alone; mixed copies share its time. 0: host_memory_bandwidth.
  BytesPerSecond host_memory_read, host_memory_write;
  RootPort root_port;
  std::vector<std::string> assumptions;
};

// Fields of machine.proto set after reading: ("peak.bf16", "1200 TFLOP/s"). Errors name "--set".
using FieldValues = std::span<const std::pair<std::string, std::string>>;

// A catalog name, an alias (case, spaces and underscores do not matter), or a .textproto or .json file. InputError with the nearest name.
GpuSpec load_gpu(const std::string& name_or_file, FieldValues overrides = {});
ClusterSpec load_cluster(const std::string& name_or_file, FieldValues overrides = {});
ClusterSpec usual_cluster(const GpuSpec&);
std::vector<std::string> gpu_names();
std::vector<std::string> cluster_names();

// Dense peak for a dtype; InputError ("--precision: found fp8, wanted one of ...") if the GPU has none.
FlopsPerSecond peak(const GpuSpec&, DType);

}  // namespace stepsim
