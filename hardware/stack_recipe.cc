#include "hardware/stack_recipe.h"

#include <algorithm>

#include "hardware/calibration.pb.h"
#include "hardware/machine_spec.h"
#include "hardware/stack_spec.h"
#include "schema/nearest_name.h"
#include "schema/read_message.h"

namespace stepsim {

namespace {

StackFit fit_of(const files::StackFit& message, const SourceLocation& where) {
  StackFit fit{.name = message.name(),
               .where = where,
               .machines = {message.machine().begin(), message.machine().end()},
               .precisions = {message.precision().begin(), message.precision().end()},
               .frameworks = {message.framework().begin(), message.framework().end()},
               .software = message.software(),
               .conditions = message.conditions(),
               .rows = {},
               .assumptions = {message.assumption().begin(), message.assumption().end()},
               .straggler_per_doubling = {},
               .fits_dense_only = message.fits_dense_only(),
               .fits_attention = message.fits_attention()};
  if (message.has_straggler_per_doubling()) fit.straggler_per_doubling = message.straggler_per_doubling();
  if (fit.name.empty() || fit.name.find('/') != std::string::npos) {
    throw InputError(where, "found name \"" + fit.name + "\", wanted that of a file without its folder and end");
  }
  for (const auto& [names, field] : {std::pair(&fit.machines, "machine"), std::pair(&fit.precisions, "precision")}) {
    if (names->empty()) throw InputError(where, std::string("found no ") + field + ", wanted at least one");
  }
  const std::vector<std::string> machines = gpu_names();
  for (const std::string& name : fit.machines) {
    if (!among(machines, name)) throw InputError(where, "found \"" + name + "\", wanted a catalog machine" + suggestion(name, machines));
  }
  for (const files::StackRows& rows : message.rows()) {
    fit.rows.push_back({rows.file(), rows.format(), {rows.where().begin(), rows.where().end()}});
    if (rows.file().empty()) throw InputError(where, "found rows without a file, wanted file: \"published/results.csv\"");
  }
  if (fit.rows.empty()) throw InputError(where, "found no rows, wanted rows { file: \"published/...\" format: \"results\" }");
  return fit;
}

}  // namespace

bool StackFit::holds_for(const std::string& machine, const std::string& precision, const std::string& framework) const {
  const std::string any_version = framework.substr(0, framework.find('@'));
  const bool of_framework = frameworks.empty() || among(frameworks, framework) || among(frameworks, any_version);
  return of_framework && among(machines, machine) && among(precisions, precision);
}

StackRecipe load_stack_recipe(const std::string& file) {
  const std::string text = read_text_file(file);
  files::Calibration message;
  read_message(text, file, message);
  StackRecipe recipe{.date = message.date(), .unusable = {message.unusable().begin(), message.unusable().end()}, .stacks = {}};
  for (int i = 0; i < message.stack_size(); ++i) {
    const SourceLocation where = locate_field(text, file, "stack[" + std::to_string(i) + "]");
    StackFit fit = fit_of(message.stack(i), where);
    const auto same = [&](const StackFit& other) { return other.name == fit.name; };
    if (std::any_of(recipe.stacks.begin(), recipe.stacks.end(), same)) {
      throw InputError(where, "found stack \"" + fit.name + "\" twice, wanted it once");
    }
    recipe.stacks.push_back(std::move(fit));
  }
  return recipe;
}

}  // namespace stepsim
