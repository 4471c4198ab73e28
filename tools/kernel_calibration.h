// Fits of one class of measured kernels, with their errors on fitted and held-back rows and the lines of a machine file that say them.
// Knows no file and no command.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "hardware/fit/collective_fit.h"
#include "hardware/fit/error_summary.h"
#include "hardware/fit/flash_attention_fit.h"
#include "hardware/fit/gemm_fit.h"
#include "hardware/machine_spec.h"
#include "tools/fitted_blocks.h"
#include "tools/measurements.h"

namespace stepsim {

struct KernelCalibration {
  std::string op_class;           // as FitRecord's
  std::string model;              // "tiles", "roofline", "FLASH3"
  std::string fewer;              // what too few rows leave to the machine; "": nothing
  std::vector<FitErrors> errors;  // the first is what the record says
  std::vector<FittedBlock> blocks;
  std::vector<std::string> notes;
  std::string part = "";  // as FitRecord's
  bool recorded = true;   // the errors are those of the class on this machine
};

// Each sets the constants in `gpu`, splits its rows itself, and is none where too few rows are left to fit.
std::optional<KernelCalibration> calibrate_gemms(GpuSpec& gpu, std::vector<MeasuredGemm> rows, const std::string& source,
                                                 const FitProgress& progress);
// Of rows that have products of both kinds, by the tiles that `gpu` has; every second row of a kind is held out.
std::optional<KernelCalibration> calibrate_weight_gradients(GpuSpec& gpu, std::vector<MeasuredGemm> rows, const std::string& source);
// Of one kernel.
std::optional<KernelCalibration> calibrate_inference_attention(GpuSpec& gpu, std::int8_t kernel, std::vector<MeasuredAttention> rows,
                                                               const std::string& source, const std::string& fixed_source);
// Of one kernel. Where `scaled_to` is given, the lines are those of the kernel on that GPU, at `scale` times the FLOP/s; the errors stay
// those of the rows, and no record says them.
struct TableOptions {
  std::string fixed_source{};  // of the fixed part and the memory fraction, which are not fitted
  BackwardRatio ratio{};
  const GpuSpec* scaled_to = nullptr;
  double scale = 1;
};
std::optional<KernelCalibration> calibrate_training_attention(GpuSpec& gpu, std::int8_t kernel, std::vector<MeasuredAttention> rows,
                                                              const std::string& source, const TableOptions& options = {});
// Only the kernels that `kernels` lists; empty: all that have rows.
std::optional<KernelCalibration> calibrate_memory(GpuSpec& gpu, std::vector<MeasuredMemory> rows, const std::string& source,
                                                  const std::vector<MemoryKernel>& kernels);
// `fit` is what fit_collectives() found for this machine of rows that hold_out_odd_sizes() has split.
std::optional<KernelCalibration> calibrate_collectives(GpuSpec& gpu, const MeasuredCollectives& own, const FittedCollectives& fit,
                                                       const std::string& source);

FitRecord record_of(const KernelCalibration& calibration, const std::string& data, const std::string& conditions);

}  // namespace stepsim
