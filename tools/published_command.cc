// calibrate --published, and calibrate --recipe of stacks: from arguments to files and reports.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "sim/input_error.h"
#include "tools/commands.h"
#include "tools/outputs.h"
#include "tools/progress_bar.h"
#include "tools/published_calibration.h"

namespace stepsim {

namespace {

std::string stack_path(const std::string& folder, const StackCalibration& calibration) {
  return fmt::format("{}/{}.textproto", folder, calibration.stack.name);
}

StackProgress shown_in(ProgressBar& bar) {
  return [&bar](std::size_t done, std::size_t all, const std::string& what) {
    bar.show(static_cast<double>(done) / static_cast<double>(all == 0 ? 1 : all), what);
  };
}

// With the stacks' files where they are asked for.
void write_calibration(const CalibrateArguments& arguments, const PublishedCalibration& calibration, const std::string& folder,
                       const std::vector<std::string>& inputs, const std::string& summary) {
  std::vector<Output> outputs = {{"--json", arguments.json, [&](const TextSink& sink) { sink(published_calibration_json(calibration)); }}};
  if (arguments.write) {
    for (const StackCalibration& each : calibration.stacks) {
      if (!is_physical(each)) continue;
      outputs.push_back({"--write", stack_path(folder, each), [&each](const TextSink& sink) { sink(stack_file_text(each)); }});
    }
  }
  check_outputs(outputs, inputs);
  if (arguments.write) std::filesystem::create_directories(folder);
  write_outputs(outputs, summary);
}

std::string command_text(const CalibrateArguments& arguments) {
  std::string text = "stepsim calibrate --published " + arguments.published;
  for (const auto& [flag, value] :
       {std::pair("--format", &arguments.format), std::pair("--where", &arguments.where), std::pair("--models", &arguments.models)}) {
    if (!value->empty()) text += fmt::format(" {} \"{}\"", flag, *value);
  }
  return text;
}

// Stacks whose files say another slowdown than was found.
std::string differences(const PublishedCalibration& calibration, const std::string& folder) {
  constexpr double kRounding = 0.005;
  std::string text;
  for (const StackCalibration& each : calibration.stacks) {
    if (!is_physical(each)) continue;
    const std::string path = stack_path(folder, each);
    if (!std::filesystem::exists(path)) {
      text += path + ": no such file\n";
      continue;
    }
    const double written = load_stack(path).gemm.expected, found = each.stack.gemm.expected;
    if (std::fabs(written - found) > kRounding) text += fmt::format("{}: has {:.3f}, found {:.3f}\n", path, written, found);
  }
  return text;
}

}  // namespace

int published_command(const CalibrateArguments& arguments) {
  std::string other = given_kernel_flag(arguments);
  if (!arguments.files.empty()) other = arguments.files.front();
  if (!arguments.data.empty()) other = "--data";
  if (!arguments.output.empty()) other = "--output";
  if (!other.empty())
    throw InputError({other},
                     "found it with --published, wanted --format, --where, --models, --software, --date, --write FOLDER and --json");
  if (!arguments.models.empty() && arguments.models != "dense" && arguments.models != "all") {
    throw InputError({"--models"}, "found \"" + arguments.models + "\", wanted dense or all");
  }
  if (arguments.write && std::filesystem::exists(arguments.folder) && !std::filesystem::is_directory(arguments.folder)) {
    throw InputError({"--write"}, "found \"" + arguments.folder + "\", wanted a folder");
  }
  check_outputs({{"--json", arguments.json, {}}}, {arguments.published});
  PublishedCalibration calibration;
  {
    ProgressBar bar;
    calibration = calibrate_published_table({.file = arguments.published,
                                             .format = arguments.format,
                                             .where = arguments.where,
                                             .software = arguments.software,
                                             .command = command_text(arguments),
                                             .date = arguments.date,
                                             .choice = {.dense_only = arguments.models == "dense"}},
                                            shown_in(bar));
  }
  write_calibration(arguments, calibration, arguments.folder, {arguments.published}, published_calibration_text(calibration));
  return kExitDone;
}

int stack_recipe_command(const CalibrateArguments& arguments, const StackRecipe& recipe) {
  const std::string folder = (std::filesystem::path(arguments.recipe).parent_path() / "stacks").string();
  const std::string command = "stepsim calibrate --recipe hardware/data/stack_calibration.textproto --data DATA --write";
  check_outputs({{"--json", arguments.json, {}}}, {arguments.recipe});
  PublishedCalibration calibration;
  {
    ProgressBar bar;
    calibration = calibrate_stack_recipe(recipe, arguments.data, command, shown_in(bar));
  }
  const std::string different = arguments.write ? "" : differences(calibration, folder);
  write_calibration(arguments, calibration, folder, {arguments.recipe}, published_calibration_text(calibration) + different);
  return different.empty() ? kExitDone : kExitBeyondTolerance;
}

}  // namespace stepsim
