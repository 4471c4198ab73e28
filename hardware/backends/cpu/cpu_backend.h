// The step on this machine's processor, in fp32: a thread for each stream of each rank, device and host memory as two counted arenas of
// each rank. Copies between them really move bytes. Times are wall-clock times.
#pragma once

#include <vector>

#include "hardware/backends/cpu/rank_step.h"
#include "hardware/backends/kernel_backend.h"

namespace stepsim {

class CpuBackend : public KernelBackend {
 public:
  std::string machine_name() const override;
  LedgerRule device_ledger() const override { return LedgerRule::kDeviceOrder; }
  double peak_tolerance() const override { return 0; }
  std::vector<Execution> execute(const OpGraph& graph, std::span<const KernelProgram> ranks, const ExecuteOptions& options) override;
  MeasuredOps measure(const OpGraph& graph, const KernelProgram& program, const MeasureOptions& options) override;

 private:
  // serial: each op also waits for the one before it in issue order.
  std::vector<Execution> run(const OpGraph& graph, std::span<const KernelProgram> ranks, const ExecuteOptions& options, bool serial);

  std::vector<std::unique_ptr<cpu::Arenas>> arenas_;  // by rank; kept, so that later steps find memory that is mapped
};

}  // namespace stepsim
