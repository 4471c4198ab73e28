#include "hardware/calibration_recipe.h"

#include <algorithm>
#include <utility>

#include "hardware/calibration.pb.h"
#include "hardware/machine_spec.h"
#include "schema/nearest_name.h"
#include "schema/read_message.h"

namespace stepsim {

namespace {

CalibrationClass class_of(const std::string& name, const SourceLocation& where) {
  static const std::pair<const char*, CalibrationClass> kClasses[] = {
      {"gemm", CalibrationClass::kGemm},           {"weight_gradient", CalibrationClass::kWeightGradient},
      {"attention", CalibrationClass::kAttention}, {"attention_table", CalibrationClass::kAttentionTable},
      {"memory", CalibrationClass::kMemory},       {"collective", CalibrationClass::kCollective}};
  for (const auto& [known, op_class] : kClasses) {
    if (name == known) return op_class;
  }
  throw InputError(where,
                   "found op_class \"" + name + "\", wanted gemm, weight_gradient, attention, attention_table, memory or collective");
}

void check_machine(const std::string& name, const SourceLocation& where) {
  const std::vector<std::string> names = gpu_names();
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  throw InputError(where, "found \"" + name + "\", wanted a catalog machine" + suggestion(name, names));
}

CalibrationFit fit_of(const files::CalibrationFit& message, const std::string& machine, const SourceLocation& where) {
  CalibrationFit fit{.op_class = class_of(message.op_class(), where),
                     .where = where,
                     .rows = {},
                     .measured_on = message.has_measured_on() ? message.measured_on() : machine,
                     .kernel = 0,
                     .parts = {message.part().begin(), message.part().end()},
                     .conditions = message.conditions(),
                     .backward_full = {},
                     .backward_causal = {},
                     .backward_source = message.backward_source(),
                     .scaled = {},
                     .scaled_source = message.scaled_source(),
                     .note = message.note(),
                     .generation = {message.generation().begin(), message.generation().end()}};
  check_machine(fit.measured_on, where);
  for (const files::CalibrationRows& rows : message.rows()) {
    fit.rows.push_back({rows.file(), rows.gpu(), rows.implementation(), rows.keep_repeats()});
  }
  if (fit.rows.empty()) throw InputError(where, "found no rows, wanted rows { file: \"kernels/...\" gpu: \"...\" }");
  const bool attention = fit.op_class == CalibrationClass::kAttention || fit.op_class == CalibrationClass::kAttentionTable;
  if (attention && message.kernel() == files::UNKNOWN) throw InputError(where, "found no kernel, wanted one such as FLASH2");
  if (attention) fit.kernel = static_cast<std::int8_t>(message.kernel() - files::FLASH2);
  if (message.has_backward_full()) fit.backward_full = message.backward_full();
  if (message.has_backward_causal()) fit.backward_causal = message.backward_causal();
  if (message.has_scaled()) fit.scaled = message.scaled();
  for (const std::string& part : fit.parts) {
    if (part != "fused" && part != "norm" && part != "softmax")
      throw InputError(where, "found part \"" + part + "\", wanted fused, norm or softmax");
  }
  return fit;
}

}  // namespace

std::vector<CalibrationMachine> load_calibration_recipe(const std::string& file) {
  const std::string text = read_text_file(file);
  files::Calibration message;
  read_message(text, file, message);
  std::vector<CalibrationMachine> machines;
  for (int i = 0; i < message.machine_size(); ++i) {
    const std::string path = "machine[" + std::to_string(i) + "]";
    CalibrationMachine machine{message.machine(i).name(), locate_field(text, file, path), {}};
    check_machine(machine.name, machine.where);
    for (int j = 0; j < message.machine(i).fit_size(); ++j) {
      const SourceLocation where = locate_field(text, file, path + ".fit[" + std::to_string(j) + "]");
      machine.fits.push_back(fit_of(message.machine(i).fit(j), machine.name, where));
    }
    machines.push_back(std::move(machine));
  }
  if (machines.empty()) throw InputError({file}, "found no machine, wanted at least one");
  return machines;
}

}  // namespace stepsim
