// The fitted constants of the whole catalog, refitted from the measurements that its recipe names: compared with the files, or written
// into them.
#pragma once

#include <string>
#include <vector>

#include "tools/machine_calibration.h"

namespace stepsim {

struct RefittedMachine {
  std::string name, path;  // catalog name, file beside the recipe
  std::vector<KernelCalibration> classes{};
  std::string text{};                      // of the file with the refitted lines
  std::vector<std::string> differences{};  // of the file as it is, beyond rounding
  bool changed = false;                    // by a byte
};

// `recipe` stands beside the folder `machines`; `data` holds the files that it names. InputError for what cannot be read or fitted.
std::vector<RefittedMachine> refit_catalog(const std::string& recipe, const std::string& data, const CalibrationSteps& progress);

}  // namespace stepsim
