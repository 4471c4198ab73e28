// The CUDA backend as stepsim sees it: a program beside it that reads a plan and prints what it took. One rank; device memory in issue
// order, as that of a stream-ordered pool.
#pragma once

#include <string>

#include "hardware/backends/kernel_backend.h"

namespace stepsim {

class CudaProcess : public KernelBackend {
 public:
  // `program`: stepsim_cuda_validate. InputError ("--backend") if it is not there, or finds no device, with its reason.
  explicit CudaProcess(std::string program);

  std::string machine_name() const override { return device_; }
  LedgerRule device_ledger() const override { return LedgerRule::kIssueOrder; }
  double peak_tolerance() const override { return 0.01; }  // the pool rounds sizes up
  // Contents of an observation are the hash of the real ones. `poison` and `device_capacity` do nothing here.
  std::vector<Execution> execute(const OpGraph& graph, std::span<const KernelProgram> ranks, const ExecuteOptions& options) override;
  // What copies and kernels take from each other is not measured: they use engines of their own.
  MeasuredOps measure(const OpGraph& graph, const KernelProgram& program, const MeasureOptions& options) override;

 private:
  std::string program_, device_;
};

// stepsim_cuda_validate in the folder of this program.
std::string cuda_program_beside();

}  // namespace stepsim
