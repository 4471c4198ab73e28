// Measured rows of one GPU, a catalog machine for all that they do not give, and facts of the GPU -> a machine file with fitted constants.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tools/kernel_calibration.h"
#include "tools/measurements.h"

namespace stepsim {

struct MachineRequest {
  std::vector<Measurements> files{};
  std::string gpu{};                                         // --gpu; "": as the files name it
  std::string base{};                                        // --base; "": the catalog machine of that name
  std::vector<std::pair<std::string, std::string>> facts{};  // --set, fields of hardware/machine.proto
  std::string conditions{};                                  // "": what the column `source` says
};

struct CalibratedMachine {
  std::string gpu{}, base{};
  std::vector<KernelCalibration> classes{};
  std::vector<std::string> notes{};
  std::string text{};  // what --hardware reads
};

// `progress` with the part of all that is done and what is being fitted. InputError for a base that is not said, facts that an unknown GPU
// lacks, too few rows, times that no peak allows.
using CalibrationSteps = std::function<void(double part, const std::string& what)>;
CalibratedMachine calibrate_machine(const MachineRequest& request, const CalibrationSteps& progress);

}  // namespace stepsim
