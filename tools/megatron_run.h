// A run of one of Megatron-LM's functional tests: its case, the file its measurements are in, its arguments. From these a Job; and why some
// runs cannot be one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/job.h"
#include "tools/megatron_arguments.h"

namespace stepsim {

struct MegatronRun {
  std::string test_case;  // "gpt/gpt3_mcore_te_tp1_pp1_uniform_full_recompute"
  std::string golden;     // "golden_values_dev_dgx_a100.json"
  MegatronArguments arguments;

  std::string family() const { return test_case.substr(0, test_case.find('/')); }  // "gpt"
  std::string name() const { return test_case.substr(test_case.find('/') + 1); }
};

// Why the run cannot be predicted: reasons of spec/megatron_memory.md section 6 alone. "": it can.
std::string reason_to_skip(const MegatronRun& run);

struct MegatronJob {
  Job job{};
  std::optional<Bytes> blas_workspace{};  // of a cuBLAS handle, where CUBLAS_WORKSPACE_CONFIG decides it
};
// InputError with the arguments' place for values that Megatron-LM has not or that this program cannot express.
MegatronJob megatron_job(const MegatronRun& run);

// Catalog name of the GPU that the golden's file name tells; A100 where it tells none ("golden_values_lts.json": Megatron-LM's first CI
// cluster).
std::string golden_machine(const std::string& golden);

// GPUs of the run: spec/megatron_memory.md section 2. `least`: that its layout needs, for cases that no table has.
std::int64_t world_size(const MegatronRun& run, std::int64_t least);

// What the run is, for statistics: "dense", "dense, interleaved", "dense, context parallel", "MoE", "T5", ...
std::string run_group(const MegatronRun& run);

}  // namespace stepsim
