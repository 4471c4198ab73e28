// How wrong the times of a step's kernels may be: by class, from what the machine's file records of its fits, from the range of the
// software stack, or from how far constants of a neighbour are off. Knows no step.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/job.h"

namespace stepsim {

// Collectives within an NVLink domain, and between domains.
enum class ErrorClass : std::uint8_t { kGemm, kAttention, kMemory, kCollective, kNetwork, kCopy };
inline constexpr std::size_t kErrorClasses = 6;
inline constexpr std::array<const char*, kErrorClasses> kErrorClassNames = {
    "matrix products", "attention", "memory-bound kernels", "collectives", "collectives between nodes", "host copies"};

// Mean absolute relative errors of the times of a class.
struct ClassError {
  double common = 0;     // that all its kernels share, so that no step averages it out
  double single = 0;     // of each KernelKind by itself
  std::string reason{};  // where they are from
};

// Relative changes of a time, lower <= 0 <= upper.
struct TimeRange {
  double lower = 0, upper = 0;
};

// What steps that stacks were not fitted on took over simulated ones, 5th to 95th percentile: of the job's stack where 8 jobs were held
// out, else of all stacks.
struct HeldOutBand {
  TimeRange range{};
  double kernel_width = 0;  // what the kernels' errors alone left open of those steps, to either side; 0: not known
  std::string reason{};
};

struct StepErrors {
  // What two jobs must have alike to share errors of kernels, of products, of links, and the stack: names.
  std::string machine{}, products{}, cluster{}, stack{};
  std::int32_t nvlink_domain = 1;  // GPUs that collectives reach without the network
  std::array<ClassError, kErrorClasses> classes{};
  double model = 0;  // mean absolute, of all work: of steps whose kernels are known
  std::string model_reason{};
  std::array<TimeRange, kErrorClasses> stack_ranges{};  // 0 of a class that the stack's evidence says nothing of
  TimeRange weight_gradient{};                          // of NT products, beside that of products
  double weight_gradient_error = 0;                     // mean absolute, that NT products have beside that of products
  std::string stack_reason{};
  std::optional<HeldOutBand> held_out{};  // none: too few steps of this stack, or none
  double experts = 0;                     // mean absolute, of the steps of models with experts, beside all of the above
  std::string experts_reason{};
  double release = 0;  // half the range between releases, of a version that was not measured
  std::string release_reason{};
  double doublings = 0;               // of the GPUs, beyond 8, or beyond the most of the steps of `held_out`
  double straggler_per_doubling = 0;  // at most, of the step

  // None for what has no cost of its own: markers, times that are given.
  std::optional<ErrorClass> error_class(const OpWork& work) const;
};
StepErrors step_errors(const Job& job);

}  // namespace stepsim
