// Stacks fitted on published tables: of one file, or of the recipe of the catalog; for people, for programs and as files.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "hardware/stack_recipe.h"
#include "tools/calibrate_published.h"

namespace stepsim {

struct PublishedCalibration {
  std::vector<StackCalibration> stacks{};
  std::map<std::string, std::size_t> skipped{};  // reason -> rows that are no jobs
  std::map<std::string, std::string> failed{};   // stack -> why nothing could be fitted
};

// `what` is being simulated.
using StackProgress = std::function<void(std::size_t done, std::size_t all, const std::string& what)>;

struct PublishedRequest {
  std::string file, format;  // format "": by the columns
  std::string where;         // conditions
  std::string software, command, date;
  FitChoice choice{};
};

// A stack each of what the rows' jobs are.
PublishedCalibration calibrate_published_table(const PublishedRequest& request, const StackProgress& progress = {});

// The stacks of the recipe; files below the folder `data`.
PublishedCalibration calibrate_stack_recipe(const StackRecipe& recipe, const std::string& data, const std::string& command,
                                            const StackProgress& progress = {});

// Of each stack: slowdown, errors of both halves, what single rows do, and how many steps of the fitted half lie within the band that the
// other half gives.
std::string published_calibration_text(const PublishedCalibration& calibration);
std::string published_calibration_json(const PublishedCalibration& calibration);

// Whether its slowdown is one that measured stacks have (accuracy.md C.3, A.5). Others hide a wrong fact, and are not written.
bool is_physical(const StackCalibration& calibration);

// What --stack reads.
std::string stack_file_text(const StackCalibration& calibration);

}  // namespace stepsim
