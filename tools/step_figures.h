// What placements are compared by: time, peak, whether it fits; of a finished run, or of a job run again with another placement.
#pragma once

#include "tools/step_run.h"

namespace stepsim {

struct StepFigures {
  Duration step{};
  Bytes peak{};      // of the device with the largest peak
  Bytes short_by{};  // what that device lacks; 0 if it has enough
  bool fits = true;
  Bytes reserved{};        // of the fullest card, by the allocator; 0 if unknown
  bool fits_cards = true;  // and with what is reserved and the process takes beside it
  Bytes host_peak{};       // of the device whose share of host memory is used most
  Bytes host_short_by{};   // what the host memory lacks for one of the devices, at most
};

StepFigures figures_of(const GraphRun& run);
StepFigures figures_of(const StepRun& run);

// On the machine of the run, in the job's order and kind of iteration. InputError if the builder refuses the placement.
StepFigures figures_with(const Job& job, const StepRun& run, const PlacementPolicy& policy);

}  // namespace stepsim
