// Real steps against simulated ones: calibrates a backend's machine, runs every placement of every model on it, simulates each with that
// calibration. Knows no form of output.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hardware/backends/kernel_backend.h"
#include "sim/metrics.h"
#include "tools/backend_cases.h"
#include "traces/timeline_diff.h"

namespace stepsim {

struct BackendCase {
  std::string model, placement;
  OpGraph graph{};
  PhaseMeaning phases{};
  StepResult measured{}, simulated{};  // the best of the repeats, by its end
  Bytes measured_peak{}, simulated_peak{}, measured_host_peak{}, simulated_host_peak{};
  Duration measured_exposed{}, simulated_exposed{};  // copies that compute waits for
  bool gradients_equal = false;                      // bit by bit those of the model's first placement, and its loss
  TimelineDifference difference{};
  double error() const { return difference.end_error(); }
  TimePoint slowest{};        // of the repeats
  double slower = 1;          // kernels took beside the measured step, of what they took when they were calibrated
  double peak_tolerance = 0;  // of device memory, the backend's
  bool peaks_equal() const;   // of the host to the byte
};

struct BackendSummary {
  double median_error = 0, max_error = 0;  // absolute, of the step times
  std::size_t peak_mismatches = 0, gradient_mismatches = 0;
  // Of pairs of placements of one model whose measured times differ by more than 5 %: the share whose simulated order is the same. None:
  // there is no such pair.
  std::optional<double> order_agreement{};
  double spread = 0;      // largest over cases: slowest of the repeats / best - 1; above 0.25 the machine was busy
  double copy_error = 0;  // largest absolute error of exposed copy time, over cases that expose more than 2 % of their step
};

struct BackendOptions {
  int repeats = 3;              // steps of each case that are timed
  int calibration_repeats = 3;  // of each round, of which there is one before each timed step
  std::uint64_t seed = 1;
  BackendRecipe recipe{};
  bool fills_values = true;  // ProgramOptions
};

// `progress`: parts done of 1, and what is being done.
using BackendProgress = std::function<void(double, const std::string&)>;
std::vector<BackendCase> validate_backend(KernelBackend& backend, std::span<const BackendModel> models,
                                          std::span<const BackendPlacement> placements, const BackendOptions& options,
                                          const BackendProgress& progress);

BackendSummary summary_of(std::span<const BackendCase> cases);

// The losses of the tokens and the gradients of the weights: what placements must not change.
std::vector<StorageId> compared_storages(const OpGraph& graph);

}  // namespace stepsim
