// Which measurements the fitted constants of the catalog come from: hardware/data/calibration.textproto. Knows no measurement.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/input_error.h"

namespace stepsim {

enum class CalibrationClass : std::uint8_t { kGemm, kWeightGradient, kAttention, kAttentionTable, kMemory, kCollective };

struct CalibrationRows {
  std::string file;            // below the data folder
  std::string gpu;             // as the file names it
  std::string implementation;  // "": all
  bool keep_repeats = false;
};

struct CalibrationFit {
  CalibrationClass op_class = CalibrationClass::kGemm;
  SourceLocation where;
  std::vector<CalibrationRows> rows;  // at least one
  std::string measured_on;            // catalog machine
  std::int8_t kernel = 0;             // of attention: as Attention::kernel
  std::vector<std::string> parts;     // of memory; empty: all
  std::string conditions;
  std::optional<double> backward_full, backward_causal;
  std::string backward_source;
  std::optional<double> scaled;  // times the FLOP/s on measured_on
  std::string scaled_source, note;
  std::vector<std::string> generation;  // of collectives
};

struct CalibrationMachine {
  std::string name;
  SourceLocation where;
  std::vector<CalibrationFit> fits;
};

// InputError "file:line:column" for names that the catalog does not have, classes that there are not, a fit without rows.
std::vector<CalibrationMachine> load_calibration_recipe(const std::string& file);

}  // namespace stepsim
