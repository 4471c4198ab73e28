// An execution plan on a CUDA device: a stream for each stream of the plan, events between them, memory from a stream-ordered pool, pinned
// host memory. Knows no graph.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hardware/backends/execution_plan.h"

namespace stepsim::cuda {

struct TimedOp {
  std::int32_t op = -1;
  double start_s = 0, end_s = 0;  // since the start of the step
};

// Of the contents of one storage: what is compared between placements (bits) and with other backends (sums).
struct ContentSums {
  StorageId storage{};
  std::uint64_t hash = 0;  // FNV-1a over the bytes
  double sum = 0, squares = 0;
};

struct CudaStepResult {
  double step_s = 0;
  std::vector<TimedOp> ops{};                   // if asked for
  std::int64_t device_peak = 0, host_peak = 0;  // bytes: of the pool while the step ran; of pinned memory in issue order
  std::vector<ContentSums> observed{};          // if asked for
  float gradient_norm = 0;
};

struct CudaStepOptions {
  bool times_ops = false;  // events around every op: they cost time, so the step's own time is taken without
  bool observes = false;
};

// The reason why no step can run here ("no CUDA device (...)"); "": one can.
std::string why_no_device();

class CudaStep {
 public:
  // Throws std::runtime_error with the call that failed.
  explicit CudaStep(const ExecutionPlan& plan);  // the plan must outlive it
  ~CudaStep();
  CudaStep(const CudaStep&) = delete;
  CudaStep& operator=(const CudaStep&) = delete;

  CudaStepResult run(const CudaStepOptions& options);

  static std::string device_name();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stepsim::cuda
