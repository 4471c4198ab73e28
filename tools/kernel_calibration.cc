#include "tools/kernel_calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "hardware/fit/elementwise_fit.h"
#include "hardware/fit/inference_attention_fit.h"

namespace stepsim {

namespace {

void add_error(FitErrors& errors, bool held_out, double simulated, double measured) {
  (held_out ? errors.held_out : errors.fitted).push_back(simulated / measured - 1);
}

FitErrors group(const std::string& name) { return {.group = name, .fitted = {}, .held_out = {}}; }

bool empty(const FitErrors& errors) { return errors.fitted.empty() && errors.held_out.empty(); }

// Keeps what the entry of the kernel says in place of what the machine had.
void put_kernel(const AttentionFit& fit, GpuSpec& gpu) {
  for (AttentionFit& entry : gpu.fit.attention) {
    if (entry.kernel != fit.kernel || entry.low != fit.low) continue;
    entry = fit;
    return;
  }
  gpu.fit.attention.push_back(fit);
}

// Errors of large shapes first: what the record says of training.
std::vector<FitErrors> gemm_errors(const GpuSpec& gpu, const std::vector<MeasuredGemm>& rows) {
  FitErrors training = group("m, n, k >= 1024"), all = group("all shapes"), fp32 = group("fp32");
  for (const MeasuredGemm& row : rows) {
    const double simulated = simulated_s(gpu, row);
    if (row.work.dtype == DType::kFp32) {
      add_error(fp32, row.held_out, simulated, row.measured_s);
      continue;
    }
    add_error(all, row.held_out, simulated, row.measured_s);
    if (row.training_size()) add_error(training, row.held_out, simulated, row.measured_s);
  }
  constexpr std::size_t kLeast = 4;  // rows of either half from which large shapes speak for themselves
  std::vector<FitErrors> errors;
  const bool enough = training.fitted.size() >= kLeast && training.held_out.size() >= kLeast;
  for (FitErrors* const each : {enough ? &training : &all, enough ? &all : &training, &fp32}) {
    if (!empty(*each)) errors.push_back(std::move(*each));
  }
  return errors;
}

}  // namespace

constexpr const char* kFp32Fraction = "fp32 fraction";

std::optional<KernelCalibration> calibrate_gemms(GpuSpec& gpu, std::vector<MeasuredGemm> rows, const std::string& source,
                                                 const FitProgress& progress) {
  hold_out_pairs(rows);
  KernelCalibration result{.op_class = "gemm", .model = "", .fewer = "", .errors = {}, .blocks = {}, .notes = {}};
  std::vector<std::string> models;
  if (const std::optional<FittedGemm> fit = fit_gemm(gpu, rows, progress)) {
    use(*fit, gpu.fit);
    result.fewer = fit->fewer;
    models.emplace_back(fit->tiles ? "tiles" : "roofline");
    const std::string rows_text = source + ", half of the (n, k) pairs";
    if (fit->tiles) result.blocks.push_back(tile_block(*fit->tiles, rows_text));
    if (fit->roofline) {
      const RooflineFit& roofline = *fit->roofline;
      result.blocks.push_back(roofline_block(roofline.fixed, roofline.compute, roofline.memory, rows_text));
    }
  }
  if (const std::optional<double> compute = fit_fp32_compute(gpu, rows)) {
    gpu.fit.gemm_compute_fp32 = *compute;
    models.emplace_back(kFp32Fraction);
    result.blocks.push_back(fp32_block(*compute, source + ", fp32, median of half of the (n, k) pairs"));
  }
  if (models.empty()) return std::nullopt;
  result.model = fmt::format("{}", fmt::join(models, " + "));
  if (models.size() == 1 && models.front() == kFp32Fraction) result.part = "fp32";
  result.errors = gemm_errors(gpu, rows);
  return result;
}

std::optional<KernelCalibration> calibrate_weight_gradients(GpuSpec& gpu, std::vector<MeasuredGemm> rows, const std::string& source) {
  bool turns[2] = {true, true};
  for (MeasuredGemm& row : rows) {
    bool& turn = turns[row.weight_gradient() ? 1 : 0];
    turn = !turn;
    row.held_out = turn;
  }
  if (!gpu.fit.gemm_tile) return std::nullopt;
  const std::optional<WeightGradientFit> fit = fit_weight_gradient(gpu, rows);
  if (!fit) return std::nullopt;
  gpu.fit.gemm_tile->weight_gradient = fit->ratio;
  KernelCalibration result{.op_class = "gemm", .model = "weight gradient", .fewer = "", .errors = {}, .blocks = {}, .notes = {}};
  result.part = "weight-gradient";
  result.blocks.push_back(weight_gradient_block(fit->ratio, source + ": NT over TN and NN, medians of every second row; of the others " +
                                                                fmt::format("{:.3f}", fit->held_out_ratio)));
  FitErrors gradients = group("weight gradients (NT)"), others = group("TN and NN");
  for (const MeasuredGemm& row : rows) {
    add_error(row.weight_gradient() ? gradients : others, row.held_out, simulated_s(gpu, row), row.measured_s);
  }
  result.errors = {gradients, others};
  result.recorded = false;  // what both kinds have in common is not this factor's
  return result;
}

std::optional<KernelCalibration> calibrate_inference_attention(GpuSpec& gpu, std::int8_t kernel, std::vector<MeasuredAttention> rows,
                                                               const std::string& source, const std::string& fixed_source) {
  hold_out_checkerboard(rows);
  const auto fit = fit_inference_attention(gpu, kernel, rows);
  if (!fit) return std::nullopt;
  put_kernel(fit->fit, gpu);
  KernelCalibration result{
      .op_class = "attention", .model = attention_kernel_name(kernel), .fewer = fit->fewer, .errors = {}, .blocks = {}, .notes = {}};
  result.part = "inference";
  result.blocks.push_back(attention_block(fit->fit, source, fixed_source, fit->sources));
  FitErrors causal = group("causal, S >= 2048"), full = group("full, S >= 2048"), all = group("S >= 512");
  constexpr std::int64_t kTrainingLength = 2048;
  for (const MeasuredAttention& row : rows) {
    const double simulated = simulated_s(gpu, row);
    add_error(all, row.held_out, simulated, row.measured_s);
    if (row.work.keys >= kTrainingLength) add_error(row.work.causal ? causal : full, row.held_out, simulated, row.measured_s);
  }
  for (const FitErrors& errors : {causal, full, all}) {
    if (!empty(errors)) result.errors.push_back(errors);
  }
  return result;
}

std::optional<KernelCalibration> calibrate_training_attention(GpuSpec& gpu, std::int8_t kernel, std::vector<MeasuredAttention> rows,
                                                              const std::string& source, const TableOptions& options) {
  hold_out_second_lengths(rows);
  const std::optional<FlashAttentionFit> fit = fit_flash_attention(gpu, kernel, rows, options.ratio);
  if (!fit) return std::nullopt;
  put_kernel(fit->fit, gpu);
  KernelCalibration result{
      .op_class = "attention", .model = attention_kernel_name(kernel), .fewer = fit->fewer, .errors = {}, .blocks = {}, .notes = {}};
  result.recorded = options.scaled_to == nullptr;
  const FlashAttentionFit lines = result.recorded ? *fit : scaled_attention(*fit, gpu, *options.scaled_to, options.scale);
  result.blocks.push_back(attention_block(lines.fit, source, options.fixed_source, lines.sources));
  FitErrors all = group("all passes"), passes[] = {group("forward"), group("backward"), group("forward and backward")};
  for (const MeasuredAttention& row : rows) {
    if (row.work.kernel != kernel) continue;
    const double simulated = simulated_s(gpu, row);
    add_error(all, row.held_out, simulated, row.measured_s);
    add_error(passes[static_cast<std::size_t>(row.pass)], row.held_out, simulated, row.measured_s);
  }
  result.errors.push_back(all);
  for (const FitErrors& errors : passes) {
    if (!empty(errors)) result.errors.push_back(errors);
  }
  return result;
}

std::optional<KernelCalibration> calibrate_memory(GpuSpec& gpu, std::vector<MeasuredMemory> rows, const std::string& source,
                                                  const std::vector<MemoryKernel>& kernels) {
  static const std::pair<MemoryKernel, const char*> kKernels[] = {
      {MemoryKernel::kFusedElementwise, "elementwise"}, {MemoryKernel::kNorm, "norm"}, {MemoryKernel::kSoftmax, "softmax"}};
  KernelCalibration result{.op_class = "memory", .model = "latency and bandwidth", .fewer = "", .errors = {}, .blocks = {}, .notes = {}};
  constexpr double kMostFixedS = 6e-6;  // longer ones are launches of a framework (kernels.md 2.3: 13-20 us)
  for (const auto& [kernel, name] : kKernels) {
    if (!kernels.empty() && std::find(kernels.begin(), kernels.end(), kernel) == kernels.end()) continue;
    bool turn = true;
    for (MeasuredMemory& row : rows) {
      if (row.work.kernel == kernel) turn = !turn, row.held_out = turn;
    }
    const std::optional<FittedMemory> fit = fit_memory(gpu, kernel, rows);
    if (!fit) continue;
    memory_fraction(gpu.fit, kernel) = fit->fraction;
    result.blocks.push_back(memory_block(kernel, fit->fraction, source + ", " + name));
    if (!fit->launch) {
      result.fewer += std::string(result.fewer.empty() ? "" : "; ") + name + ": bandwidth only, latency of the base";
    } else if (kernel == MemoryKernel::kFusedElementwise) {
      const double launch_s = seconds(*fit->launch);
      result.notes.push_back(fmt::format("elementwise kernels begin {:.1f} us after their launch{}", launch_s * 1e6,
                                         launch_s > kMostFixedS ? ": a framework's launch, which stays out of the file" : ""));
      if (launch_s <= kMostFixedS && kernels.empty()) result.blocks.push_back(memory_fixed_block(*fit->launch, source));
    }
    FitErrors errors = group(name);
    for (const MeasuredMemory& row : rows) {
      if (row.work.kernel == kernel) add_error(errors, row.held_out, simulated_s(gpu, *fit, row), row.measured_s);
    }
    result.errors.push_back(errors);
  }
  if (result.errors.empty()) return std::nullopt;
  // The record is of the worst; elementwise kernels alone say nothing of the others.
  const auto held_out = [](const FitErrors& errors) { return summary(errors.held_out).mean; };
  const auto worst = std::max_element(result.errors.begin(), result.errors.end(),
                                      [&](const FitErrors& a, const FitErrors& b) { return held_out(a) < held_out(b); });
  std::rotate(result.errors.begin(), worst, worst + 1);
  if (result.errors.size() == 1 && result.errors.front().group == kKernels[0].second) result.part = "elementwise";
  return result;
}

std::optional<KernelCalibration> calibrate_collectives(GpuSpec& gpu, const MeasuredCollectives& own, const FittedCollectives& fit,
                                                       const std::string& source) {
  if (!fit.all_reduce && !fit.gather && !fit.all_to_all) return std::nullopt;
  use(fit, gpu.fit);
  KernelCalibration result{
      .op_class = "collective", .model = "latency and bandwidth", .fewer = fit.fewer, .errors = {}, .blocks = {}, .notes = {}};
  const std::string rows_text = source + ", even powers of two";
  if (fit.all_reduce) result.blocks.push_back(collective_block("all_reduce", *fit.all_reduce, rows_text));
  if (fit.gather) result.blocks.push_back(collective_block("gather", *fit.gather, rows_text));
  if (fit.all_to_all) result.blocks.push_back(collective_block("all_to_all", *fit.all_to_all, rows_text));
  static const char* const kNames[] = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send and receive"};
  FitErrors all = group("all, 1 MiB and more");
  std::vector<FitErrors> by_kind;
  for (const char* const name : kNames) by_kind.push_back(group(std::string(name) + ", 1 MiB and more"));
  FitErrors small = group("all, below 1 MiB");
  for (const MeasuredCollective& row : own.rows) {
    const double simulated = simulated_s(gpu, own.cluster, row);
    if (row.work.message.value < (1 << 20)) {
      add_error(small, row.held_out, simulated, row.measured_s);
      continue;
    }
    add_error(all, row.held_out, simulated, row.measured_s);
    add_error(by_kind.at(static_cast<std::size_t>(row.work.kind)), row.held_out, simulated, row.measured_s);
  }
  if (!empty(all)) result.errors.push_back(all);
  for (const FitErrors& errors : by_kind) {
    if (!empty(errors)) result.errors.push_back(errors);
  }
  if (!empty(small)) result.errors.push_back(small);
  return result;
}

FitRecord record_of(const KernelCalibration& calibration, const std::string& data, const std::string& conditions) {
  const FitErrors& errors = calibration.errors.front();
  const ErrorSummary fitted = summary(errors.fitted), held_out = summary(errors.held_out);
  const auto rounded = [](double error) { return std::round(error * 1e4) * 1e-4; };
  return {.op_class = calibration.op_class,
          .data = data + ": " + calibration.model + ", " + errors.group,
          .conditions = conditions,
          .part = calibration.part,
          .fitted_rows = static_cast<std::int64_t>(fitted.rows),
          .held_out_rows = static_cast<std::int64_t>(held_out.rows),
          .fitted_error = rounded(fitted.mean),
          .held_out_error = rounded(held_out.mean),
          .held_out_bias = rounded(held_out.bias)};
}

}  // namespace stepsim
