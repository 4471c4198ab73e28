// A job with every value decided: what the user said, what the catalog says, what is assumed, and where each came from.
// Knows no graph and no result.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hardware/kernel_profile.h"
#include "hardware/machine_spec.h"
#include "hardware/stack_spec.h"
#include "models/flops.h"
#include "models/framework_preset.h"
#include "models/model_spec.h"
#include "models/placement_table.h"
#include "models/training_recipe.h"
#include "sim/allocator_rules.h"
#include "tools/job_entries.h"

namespace stepsim {

struct JobValue {
  enum class Form : std::uint8_t { kText, kNumber, kSwitch };
  std::string path;    // "parallel.tp"
  std::string value;   // "8"
  std::string source;  // "--tp", "job.textproto:3:5", "default: ..."
  Form form = Form::kText;
};

struct Job {
  ModelSpec model{};
  GpuSpec gpu{};                                   // with the stack's slowdowns
  std::optional<StackSpec> stack{};                // none: the bare machine
  std::shared_ptr<const KernelProfile> profile{};  // measured kernels, shared by copies of the job; null: none
  ClusterSpec cluster{};
  FrameworkPreset framework{};
  TrainingRecipe training{};
  ParallelLayout parallel{};
  PlacementPolicy placement{};
  FlopsConvention convention = FlopsConvention::kMegatronCausal;
  bool stop_at_out_of_memory = false;
  AllocatorSettings allocator{};  // of device memory
  std::int64_t gpus = 1;
  std::optional<std::int32_t> reported_stage{};  // whose memory the report is about; none: the one with the largest peak
  std::vector<JobValue> values{};                // in the order of the sections
  std::vector<std::string> assumed{};            // a sentence each
  std::vector<std::string> warnings{};           // likewise: what the user set in vain (idle_settings.h)
  std::vector<std::string> files{};              // that were read: never an output
  JobEntries entries{};
};

// InputError for what is missing, unknown, impossible or not built yet; in a file with its place.
Job resolve_job(const JobInput& input);

// Errors of the libraries name flags ("--tp: found 3, ..."); this one names the place in a file, or the --set, where the value stands, and
// the row of the placement that is wrong by itself.
InputError at_source(const JobEntries& entries, const InputError& error);
InputError at_source(const Job& job, const InputError& error);

// usual_cluster(); an error names the machine's file, where that file says which cluster is usual.
ClusterSpec usual_cluster_of(const std::string& machine, const GpuSpec& gpu);

// "megatron-core@2025"
std::string framework_label(const FrameworkPreset& framework);

// "full (uniform 1)", "selective (core_attn)", "none", "74 segments"; with the number of rows.
std::string placement_label(const PlacementPolicy& policy);

// The dtype of the matrix products, whose peak MFU refers to.
DType product_dtype(Precision precision);

}  // namespace stepsim
