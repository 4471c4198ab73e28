// One job run to its end: graph, machine, result, and what the reports say of it in numbers. Knows no form of output.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hardware/roofline_cost_model.h"
#include "models/step_builder.h"
#include "tools/graph_run.h"
#include "tools/job.h"

namespace stepsim {

struct ConventionFlops {
  FlopsConvention convention = FlopsConvention::kMegatronCausal;
  StepFlops flops{};                   // of the step, all GPUs
  std::optional<double> mfu{}, hfu{};  // none for a step that was stopped
};

struct StepRun {
  BuiltStep step{};
  std::unique_ptr<RooflineCostModel> costs{};
  GraphRun run{};
  Bytes saved_activations_peak{};  // of the device with the largest peak
  Bytes first_iteration_peak{};
  std::vector<ConventionFlops> flops{};  // by all_conventions()
  FlopsPerSecond peak_rate{};            // of one GPU, dense
  double wall_s = 0;                     // of this computation

  const ConventionFlops& flops_of(FlopsConvention) const;
  double step_time_s() const { return seconds(run.result.end); }
};

StepRequest step_request(const Job& job);

// InputError for what the builder refuses, with the place in the job file.
StepRun run_step(const Job& job);

// What becomes of the time, in words of the reports; indexes of the partition resolved.
struct ExposedCopies {
  Duration forward{}, backward{}, tail{};
};
ExposedCopies exposed_copies(const TimePartition& time, const PhaseMeaning& phases);

// A sentence each: what neither the builder nor this program models.
std::vector<std::string> not_modelled(const StepRun& run);

}  // namespace stepsim
