// Every tensor of a device with its bytes, birth and death, for explain: which op claims it, which releases it, when, and whether it lives
// at the peak.
#pragma once

#include <string>
#include <vector>

#include "tools/step_run.h"

namespace stepsim {

struct StorageLife {
  StorageId storage{};
  bool resident = false;             // lives when the step begins
  OpId claimed_by{}, released_by{};  // none: a resident; what lives on, or is freed by event
  TimePoint born{}, dies{};          // of what lives on: the end of the step
  bool lives_on = false;
  bool at_peak = false;
};

// In the order of their claims; of the first micro-batch and of none. Host memory included.
std::vector<StorageLife> storage_lives(const StepRun& run, DeviceId device);

// A JSON array; the same as a table, and what is alive at the peak by tensor and by layer, with the subtraction from the card.
std::string storage_lives_json(const StepRun& run, const std::vector<StorageLife>& lives);
std::string storage_lives_text(const StepRun& run, const std::vector<StorageLife>& lives);
std::string peak_contents_text(const StepRun& run);

}  // namespace stepsim
