// Which published steps the stacks of the catalog are fitted on: hardware/data/stack_calibration.textproto. Knows no step.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/input_error.h"

namespace stepsim {

struct StackRows {
  std::string file;                // below the data folder
  std::string format;              // "results", "mpt", "vtrain"
  std::vector<std::string> where;  // "precision=fp8|fp8-cs", "id!=B0531"
};

struct StackFit {
  std::string name;
  SourceLocation where;
  std::vector<std::string> machines, precisions, frameworks;
  std::string software, conditions;
  std::vector<StackRows> rows;  // at least one
  std::vector<std::string> assumptions;
  std::optional<double> straggler_per_doubling;
  bool fits_dense_only = false;  // models with experts are tested, not fitted
  bool fits_attention = false;   // a slowdown of attention too

  // Whether a job of this catalog machine, precision of the products and preset ("nemo@24.07") is one of the stack's.
  bool holds_for(const std::string& machine, const std::string& precision, const std::string& framework) const;
};

struct StackRecipe {
  std::string date;
  std::vector<std::string> unusable;  // ids of rows that no stack takes
  std::vector<StackFit> stacks;
};

// InputError "file:line:column" for names that the catalog does not have, a name twice, a stack without rows. Without stacks empty: a
// recipe of machines.
StackRecipe load_stack_recipe(const std::string& file);

}  // namespace stepsim
