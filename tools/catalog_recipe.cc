#include "tools/catalog_recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "hardware/calibration_recipe.h"
#include "hardware/device_cost.h"
#include "schema/read_message.h"
#include "sim/check.h"

namespace stepsim {

namespace {

MemoryKernel part_of(const std::string& name) {
  if (name == "norm") return MemoryKernel::kNorm;
  return name == "softmax" ? MemoryKernel::kSoftmax : MemoryKernel::kFusedElementwise;
}

// Where the fit of a collective begins, so that a refit does not depend on what the catalog has: 10 us, 0.8 of the link.
void forget_collectives(KernelFit& fit) {
  const CollectiveFit ordinary{.fixed = op_duration(10e-6),
                               .per_rank = op_duration(1e-6),
                               .bus = 0.8,
                               .small_group = 0.3,
                               .pipeline = op_duration(5e-6),
                               .quick_fixed = op_duration(10e-6),
                               .quick_per_rank = op_duration(1e-6),
                               .quick_bus = 0.2};
  fit.all_reduce = fit.gather = fit.all_to_all = ordinary;
}

class CatalogRefit {
 public:
  CatalogRefit(std::string data, const CalibrationSteps& progress) : data_(std::move(data)), progress_(progress) {}
  RefittedMachine machine(const CalibrationMachine& recipe, const std::string& folder);
  std::size_t fits = 0;  // of all machines

 private:
  Measurements rows_of(const CalibrationFit& fit);
  const std::string& text_of(const std::string& file);
  std::optional<KernelCalibration> calibrated(const CalibrationFit& fit, GpuSpec& gpu, const std::string& machine);
  std::optional<KernelCalibration> collectives(const CalibrationFit& fit, GpuSpec& gpu);

  std::string data_;
  const CalibrationSteps& progress_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, std::vector<FittedCollectives>> generations_;  // by the names and files
  std::map<std::string, KernelCalibration> done_;                      // of fits that several machines share
  std::size_t fitted_ = 0;
};

const std::string& CatalogRefit::text_of(const std::string& file) {
  const auto found = texts_.find(file);
  if (found != texts_.end()) return found->second;
  return texts_[file] = read_text_file(data_ + "/" + file, kLargestTable);
}

// File by file: their shapes may be alike.
Measurements CatalogRefit::rows_of(const CalibrationFit& fit) {
  Measurements all;
  for (const CalibrationRows& rows : fit.rows) {
    const MeasurementOptions options{.gpu = rows.gpu,
                                     .repeats = rows.keep_repeats ? RepeatRule::kKeep : RepeatRule::kByClass,
                                     .attention_kernel = fit.kernel,
                                     .implementation = rows.implementation};
    Measurements read = read_measurements(data_ + "/" + rows.file, text_of(rows.file), options);
    all.file += (all.file.empty() ? "" : ", ") + rows.file;
    if (!rows.implementation.empty()) all.file += " " + rows.implementation;
    all.gemms.insert(all.gemms.end(), read.gemms.begin(), read.gemms.end());
    all.attentions.insert(all.attentions.end(), read.attentions.begin(), read.attentions.end());
    for (MeasuredAttention& row : read.training_attentions) {
      row.work.kernel = fit.kernel;
      all.training_attentions.push_back(row);
    }
    all.memory.insert(all.memory.end(), read.memory.begin(), read.memory.end());
    all.collectives.insert(all.collectives.end(), read.collectives.begin(), read.collectives.end());
  }
  return all;
}

std::optional<KernelCalibration> CatalogRefit::collectives(const CalibrationFit& fit, GpuSpec& gpu) {
  const CalibrationRows& rows = fit.rows.front();
  std::vector<std::string> names = fit.generation;
  if (names.empty()) names = {rows.gpu};
  const auto own = std::find(names.begin(), names.end(), rows.gpu);
  if (own == names.end()) throw InputError(fit.where, "found a generation without " + rows.gpu + ", wanted it among them");
  std::vector<MeasuredCollectives> generation;
  for (const std::string& name : names) {
    const MeasurementOptions options{.gpu = name};
    GpuSpec member = load_gpu(name);
    forget_collectives(member.fit);
    const ClusterSpec cluster = usual_cluster(member);
    generation.push_back({member, cluster, read_measurements(data_ + "/" + rows.file, text_of(rows.file), options).collectives});
    hold_out_odd_sizes(generation.back().rows);
  }
  const std::string key = rows.file + fmt::format(" {}", fmt::join(names, " "));
  if (generations_.count(key) == 0) generations_[key] = fit_collectives(generation);
  const auto index = static_cast<std::size_t>(own - names.begin());
  return calibrate_collectives(gpu, generation[index], generations_[key][index], "calibrate, " + rows.file);
}

std::optional<KernelCalibration> CatalogRefit::calibrated(const CalibrationFit& fit, GpuSpec& gpu, const std::string& machine) {
  if (fit.op_class == CalibrationClass::kCollective) return collectives(fit, gpu);
  const Measurements rows = rows_of(fit);
  const std::string source = "calibrate, " + rows.file;
  switch (fit.op_class) {
    case CalibrationClass::kGemm:
      return calibrate_gemms(gpu, rows.gemms, source, [&](double part) {
        progress_((static_cast<double>(fitted_) + part) / static_cast<double>(fits), machine + ", matrix products");
      });
    case CalibrationClass::kWeightGradient:
      return calibrate_weight_gradients(gpu, rows.gemms, source + " " + fit.rows.front().gpu);
    case CalibrationClass::kAttention:
      return calibrate_inference_attention(gpu, fit.kernel, rows.attentions, source, fit.note.empty() ? source : source + ", " + fit.note);
    case CalibrationClass::kAttentionTable: {
      TableOptions options{.fixed_source = fit.note};
      if (fit.backward_full) options.ratio.full = *fit.backward_full;
      if (fit.backward_causal) options.ratio.causal = *fit.backward_causal;
      if (!fit.backward_source.empty()) options.ratio.source = fit.backward_source;
      const GpuSpec target = load_gpu(machine);
      if (fit.scaled) options.scaled_to = &target, options.scale = *fit.scaled;
      return calibrate_training_attention(gpu, fit.kernel, rows.training_attentions, source, options);
    }
    case CalibrationClass::kMemory: {
      std::vector<MemoryKernel> kernels;
      for (const std::string& part : fit.parts) kernels.push_back(part_of(part));
      return calibrate_memory(gpu, rows.memory, source, kernels);
    }
    case CalibrationClass::kCollective:
      break;
  }
  check_failed("class of a fit", __FILE__, __LINE__);
}

// What tells a fit from others but for the machine that it is for.
std::string key_of(const CalibrationFit& fit, const std::string& machine) {
  std::string key =
      fmt::format("{} {} {} {}", static_cast<int>(fit.op_class), static_cast<int>(fit.kernel), fit.measured_on, fmt::join(fit.parts, ","));
  for (const CalibrationRows& rows : fit.rows)
    key += fmt::format("; {} {} {} {}", rows.file, rows.gpu, rows.implementation, rows.keep_repeats);
  if (fit.scaled) key += fmt::format("; {} for {}", *fit.scaled, machine);
  return key + fmt::format("; {} {} {}", fit.backward_full.value_or(0), fit.backward_causal.value_or(0), fit.backward_source);
}

std::string data_of(const CalibrationFit& fit) {
  std::string data;
  for (const CalibrationRows& rows : fit.rows) {
    const std::string implementation = rows.implementation.empty() ? "" : " " + rows.implementation;
    data += (data.empty() ? "" : ", ") + rows.file + " " + rows.gpu + implementation;
  }
  return data;
}

RefittedMachine CatalogRefit::machine(const CalibrationMachine& recipe, const std::string& folder) {
  RefittedMachine result{.name = recipe.name, .path = folder + "/" + recipe.name + ".textproto"};
  const std::string text = read_text_file(result.path);
  std::vector<FittedBlock> blocks;
  std::vector<FitRecord> records;
  std::optional<GemmTileFit> tiles;  // on which a weight gradient stands
  for (const CalibrationFit& fit : recipe.fits) {
    progress_(static_cast<double>(fitted_) / static_cast<double>(fits), recipe.name);
    GpuSpec gpu = load_gpu(fit.measured_on);
    if (fit.op_class == CalibrationClass::kWeightGradient && tiles) gpu.fit.gemm_tile = tiles;
    const bool shared = fit.op_class != CalibrationClass::kWeightGradient && fit.op_class != CalibrationClass::kGemm;
    const auto known = done_.find(key_of(fit, recipe.name));
    std::optional<KernelCalibration> found;
    if (shared && known != done_.end()) {
      found = known->second;
    } else {
      found = calibrated(fit, gpu, recipe.name);
    }
    ++fitted_;
    if (!found) throw InputError(fit.where, "found too few rows to fit " + recipe.name + ", wanted more");
    if (fit.op_class == CalibrationClass::kGemm) tiles = gpu.fit.gemm_tile;
    done_.emplace(key_of(fit, recipe.name), *found);
    blocks.insert(blocks.end(), found->blocks.begin(), found->blocks.end());
    if (found->recorded) records.push_back(record_of(*found, data_of(fit), fit.conditions));
    result.classes.push_back(std::move(*found));
  }
  result.text = with_blocks(text, blocks, records);
  result.changed = result.text != text;
  result.differences = text_differences(result.text, text);
  return result;
}

}  // namespace

std::vector<RefittedMachine> refit_catalog(const std::string& recipe, const std::string& data, const CalibrationSteps& progress) {
  const std::vector<CalibrationMachine> machines = load_calibration_recipe(recipe);
  const std::size_t slash = recipe.find_last_of('/');
  const std::string folder = (slash == std::string::npos ? "." : recipe.substr(0, slash)) + "/machines";
  CatalogRefit refit(data, progress);
  for (const CalibrationMachine& machine : machines) refit.fits += machine.fits.size();
  std::vector<RefittedMachine> result;
  for (const CalibrationMachine& machine : machines) result.push_back(refit.machine(machine, folder));
  progress(1, "done");
  return result;
}

}  // namespace stepsim
