#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hardware/stack_recipe.h"
#include "sim/input_error.h"
#include "tools/calibration_report.h"
#include "tools/catalog_recipe.h"
#include "tools/commands.h"
#include "tools/outputs.h"
#include "tools/progress_bar.h"

namespace stepsim {

static void refuse_other_flags(const CalibrateArguments& arguments) {
  if (!arguments.files.empty())
    throw InputError({"--recipe"}, "found it with " + arguments.files.front() + ", wanted the files that the recipe names");
  std::string flag = given_kernel_flag(arguments);
  if (!arguments.software.empty()) flag = "--software";
  if (!arguments.published.empty()) flag = "--published";
  if (!arguments.output.empty()) flag = "--output";
  for (const auto& [name, value] : {std::pair("--format", &arguments.format), std::pair("--where", &arguments.where),
                                    std::pair("--models", &arguments.models), std::pair("--date", &arguments.date)}) {
    if (!value->empty()) flag = name;
  }
  if (!flag.empty()) {
    throw InputError({flag}, "found it with --recipe, which says it for each machine, wanted --recipe, --data and --write");
  }
  if (arguments.data.empty()) throw InputError({"--data"}, "found none, wanted the folder of the files that the recipe names");
}

static std::string refit_text(const std::vector<RefittedMachine>& machines, bool write) {
  std::vector<std::pair<std::string, const KernelCalibration*>> classes;
  std::string differences;
  std::size_t different = 0;
  for (const RefittedMachine& machine : machines) {
    for (const KernelCalibration& fit : machine.classes) classes.emplace_back(machine.name + ", " + fit.op_class + ", " + fit.model, &fit);
    if (machine.differences.empty()) continue;
    ++different;
    constexpr std::size_t kMost = 5;
    differences += fmt::format("{}: {} lines differ\n", machine.path, machine.differences.size());
    for (std::size_t i = 0; i < std::min(kMost, machine.differences.size()); ++i) differences += "  " + machine.differences[i] + "\n";
  }
  std::string text = "Errors, simulated over measured:\n" + error_table(classes);
  if (write)
    return text + fmt::format("{} of {} machine files written\n",
                              std::count_if(machines.begin(), machines.end(), [](const auto& m) { return m.changed; }), machines.size());
  return text + differences + fmt::format("{} of {} machine files differ from the refit\n", different, machines.size());
}

static std::string refit_json(const std::vector<RefittedMachine>& machines) {
  nlohmann::ordered_json json;
  json["machines"] = nlohmann::ordered_json::array();
  for (const RefittedMachine& machine : machines) {
    nlohmann::ordered_json classes = nlohmann::ordered_json::array();
    for (const KernelCalibration& fit : machine.classes) classes.push_back(nlohmann::ordered_json::parse(class_json(fit)));
    json["machines"].push_back({{"name", machine.name}, {"differences", machine.differences}, {"classes", std::move(classes)}});
  }
  return json.dump(2) + "\n";
}

int recipe_command(const CalibrateArguments& arguments) {
  refuse_other_flags(arguments);
  if (!arguments.folder.empty()) {
    throw InputError({"--write"}, "found \"" + arguments.folder + "\" with --recipe, wanted none: the files are those beside the recipe");
  }
  if (const StackRecipe stacks = load_stack_recipe(arguments.recipe); !stacks.stacks.empty())
    return stack_recipe_command(arguments, stacks);
  std::vector<RefittedMachine> machines;
  std::vector<Output> outputs = {{"--json", arguments.json, [&](const TextSink& sink) { sink(refit_json(machines)); }}};
  check_outputs(outputs, {arguments.recipe});
  {
    ProgressBar bar;
    machines = refit_catalog(arguments.recipe, arguments.data, [&](double part, const std::string& what) { bar.show(part, what); });
  }
  for (const RefittedMachine& machine : machines) {
    if (arguments.write && machine.changed)
      outputs.push_back({"--write", machine.path, [&machine](const TextSink& sink) { sink(machine.text); }});
  }
  write_outputs(outputs, refit_text(machines, arguments.write));
  const auto differs = [](const RefittedMachine& machine) { return !machine.differences.empty(); };
  return !arguments.write && std::any_of(machines.begin(), machines.end(), differs) ? kExitBeyondTolerance : kExitDone;
}

}  // namespace stepsim
