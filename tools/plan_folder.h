// A backend whose steps run elsewhere: a folder of plans, and what stepsim_cuda_validate printed of them on another machine. A step of
// which nothing is known yet leaves its plan in the folder and takes a microsecond an op.
#pragma once

#include <set>
#include <string>

#include "tools/recorded_plan.h"

namespace stepsim {

class PlanFolder : public KernelBackend {
 public:
  // Makes the folder if it is not there; reads its results.json if that is. InputError with the file.
  explicit PlanFolder(std::string folder);

  std::string machine_name() const override { return plans_.device; }
  LedgerRule device_ledger() const override { return LedgerRule::kIssueOrder; }
  double peak_tolerance() const override { return 0.01; }  // a pool rounds sizes up
  std::vector<Execution> execute(const OpGraph& graph, std::span<const KernelProgram> ranks, const ExecuteOptions& options) override;
  MeasuredOps measure(const OpGraph& graph, const KernelProgram& program, const MeasureOptions& options) override;

  // Plans of which nothing is known yet.
  std::size_t missing() const { return missing_.size(); }

 private:
  RecordedPlan recorded_or_written(const OpGraph& graph, const KernelProgram& program);

  std::string folder_;
  RecordedPlans plans_;
  std::set<std::string> missing_;
};

}  // namespace stepsim
