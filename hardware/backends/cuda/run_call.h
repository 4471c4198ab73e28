// Any kernel call on a CUDA stream, and what calls share: the handle and workspace of cuBLASLt, scratch memory, rotary tables, the gradient
// norm. Made once for a plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "hardware/backends/execution_plan.h"

struct CUstream_st;  // of which CUDA's cudaStream_t is a pointer

namespace stepsim::cuda {

class CallResources {
 public:
  // Allocates with cudaMalloc, outside every pool. Throws std::runtime_error.
  explicit CallResources(const ExecutionPlan& plan);
  ~CallResources();
  CallResources(const CallResources&) = delete;
  CallResources& operator=(const CallResources&) = delete;

  float gradient_norm() const;  // of the step that ran last; waits for the device

  struct State;
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

// `offset`: of an op that draws random numbers. Calls that need scratch memory must all be of one stream.
void run_call(const KernelCall& call, const StorageAddresses& addresses, CUstream_st* stream, std::uint64_t offset,
              CallResources& resources);

}  // namespace stepsim::cuda
