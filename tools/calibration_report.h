// What a calibration found, for people and for programs. Knows no file.
#pragma once

#include <string>
#include <vector>

#include "tools/machine_calibration.h"

namespace stepsim {

// The head, what was skipped, a table of errors on fitted and held-back rows by class, what few rows left out.
std::string calibration_text(const CalibratedMachine& machine, const std::vector<Measurements>& files);
std::string calibration_json(const CalibratedMachine& machine, const std::vector<Measurements>& files);

// Of one class: an object.
std::string class_json(const KernelCalibration& fit);

// The table alone; `names`: what stands before each class, such as the machine.
std::string error_table(const std::vector<std::pair<std::string, const KernelCalibration*>>& classes);

}  // namespace stepsim
