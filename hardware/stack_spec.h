// A software stack on a GPU: how much longer kernels take in sustained training than the benchmarks that the machine's file was fitted on,
// with the evidence for it. Belongs to (GPU, precision, software); the bare machine has none.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "hardware/machine_spec.h"

namespace stepsim {

// Time over that of the machine's file, with the range that the evidence leaves. All at least 0.5.
struct SlowdownRange {
  double expected = 1, lower = 1, upper = 1;
};

// Measured steps that the slowdown was not fitted on: how far they were from simulated ones.
struct HeldOutSteps {
  std::int64_t rows = 0, jobs = 0;  // and different jobs among them
  double lower = 0, upper = 0;      // 5th and 95th percentile of measured / simulated - 1
  double kernel_width = 0;          // median of what their kernels' errors alone leave open, a fraction of the step to either side
  std::int64_t most_gpus = 0;       // of a row
};

// What a slowdown was found from.
struct StackEvidence {
  std::string source;                     // a paper's table, rows of a file, measurements of a user
  std::string conditions;                 // power limit, versions, what ran
  std::int64_t rows = 0;                  // measured steps or kernels
  double error_before = 0;                // mean absolute error of their times on the bare machine
  double error_after = 0;                 // with the slowdown, of the rows that it was found from
  std::optional<double> left_out{};       // each row by the others alone, or rows that were held out; none: one row
  std::vector<std::string> frameworks{};  // presets of the rows, with versions; empty: not said
  std::string models{};                   // "dense", "experts": what the rows trained; "": not told apart
  std::optional<HeldOutSteps> held_out{};
  std::string fitted_on{}, command{}, date{};  // ids of the rows, and what repeats the fit
};

struct StackSpec {
  std::string name;
  std::vector<std::string> aliases;
  std::vector<std::string> machines;    // catalog names that it holds for
  std::vector<std::string> precisions;  // "bf16", "fp8": of the matrix products
  std::vector<std::string> frameworks;  // presets whose jobs take it when --stack is silent: "nemo@24.07", or "nemo" for every version
  std::string software;                 // "NeMo 24.07, Transformer Engine 1.8, CUDA 12.5"
  SlowdownRange gemm{}, attention{}, memory{}, collective{};
  SlowdownRange weight_gradient{};  // of NT products, beside `gemm`; replaces the machine's factor where it is given
  bool gives_weight_gradient = false;
  bool typical = false;  // of no software: typical_stack()
  std::optional<double>
      straggler_per_doubling{};  // none: not known; of the step, for each doubling of nodes beyond the first; upper end of the band only
  std::vector<StackEvidence> evidence;
  std::vector<std::string> assumptions;
};

inline bool among(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A catalog name, an alias, or a .textproto or .json file. InputError ("--stack") with the nearest name.
StackSpec load_stack(const std::string& name_or_file);
std::vector<std::string> stack_names();

// The catalog's stack for a machine, precision and framework ("nemo@24.07"), one of that version before one of all versions; none: no
// catalog stack is known to hold for it.
std::optional<StackSpec> known_stack(const std::string& machine, const std::string& precision, const std::string& framework);

// The slowdowns of all catalog stacks of machines of this compute capability and precision, from the least to the largest: the range for a
// job whose stack is not known. How single steps scatter around a stack's is no part of it: bands take that from steps that were held out.
// Expected 1: the bare machine.
SlowdownRange unknown_stack_range(const GpuSpec& gpu, const std::string& precision);

// What training of software that no catalog stack is of takes: products as long as in the middle one of the catalog's stacks of this
// compute capability and precision, with their range; the bare machine is faster than all of them. Named "typical", without evidence. None:
// there is no such stack.
std::optional<StackSpec> typical_stack(const GpuSpec& gpu, const std::string& precision);
inline constexpr const char* kTypicalStack = "typical";

// Sets gpu.fit.sustained, and the weight-gradient factor where the stack gives one. InputError ("--stack") if it holds for other machines
// or another precision.
void apply_stack(const StackSpec& stack, const std::string& precision, GpuSpec& gpu);

}  // namespace stepsim
