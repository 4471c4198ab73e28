// Prints the fitted lines of the machine files and the errors of the fits: fit_kernels DATA, the folder that holds kernels/ and papers/.
#include <fmt/core.h>

#include <cmath>
#include <exception>
#include <map>

#include "hardware/fit/collective_fit.h"
#include "hardware/fit/elementwise_fit.h"
#include "hardware/fit/flash_attention_fit.h"
#include "hardware/fit/gemm_fit.h"
#include "hardware/fit/inference_attention_fit.h"

namespace stepsim {
namespace {

// Lines by catalog file, in the order of the file.
using Lines = std::map<std::string, std::vector<std::string>>;

// Whole nanoseconds.
double microseconds(Duration duration) { return std::round(seconds(duration) * 1e9) * 1e-3; }

void add_attention(const AttentionFits& fits, bool training, Lines& lines) {
  const char* names[] = {"FLASH2", "FLASH3", "CUDNN", "TENSORRT"};
  for (const FittedAttention& kernel : fits.kernels) {
    for (const std::string& machine : kernel.machines) {
      std::vector<std::string>& out = lines[machine];
      out.push_back("attention {");
      out.push_back(fmt::format("  kernel: {}", names[kernel.fit.kernel]));
      const std::string source = training ? "spec kernels.md 2.2, from memory, unverified" : kernel.sources.back();
      const std::string fitted = source.substr(0, source.find(';'));
      out.push_back(fmt::format("  fixed: \"{:.4g} us\"  # {}", microseconds(kernel.fit.fixed), fitted));
      out.push_back(fmt::format("  memory: {:.4g}  # {}{}", kernel.fit.memory, fitted, training ? "" : ", with rope and cache write"));
      for (std::size_t i = 0; i < kernel.fit.rates.size(); ++i) {
        const AttentionRate& rate = kernel.fit.rates[i];
        out.push_back(
            fmt::format("  rate {{ head_dim: {} causal: {} forward: {:.4f} forward_half_length: {:.1f} backward: {:.4f} "
                        "backward_half_length: {:.1f} }}  # {}",
                        rate.head_dim, rate.causal, rate.forward, rate.forward_half_length, rate.backward, rate.backward_half_length,
                        kernel.sources[i]));
      }
      out.push_back("}");
    }
  }
}

void add_collectives(const CollectiveFits& fits, Lines& lines) {
  for (const FittedCollectives& set : fits.sets) {
    const std::pair<const char*, const CollectiveFit*> parts[] = {
        {"all_reduce", &set.all_reduce}, {"gather", &set.gather}, {"all_to_all", &set.all_to_all}};
    for (const std::string& machine : set.machines) {
      for (const auto& [name, fit] : parts) {
        lines[machine].push_back(fmt::format(
            "  {} {{ fixed: \"{:.4g} us\" per_rank: \"{:.4g} us\" bus: {:.4g} small_group: {:.4g} pipeline: \"{:.4g} us\" }}  # "
            "hardware/fit, kernels/nccl_aic.csv, even powers of two",
            name, microseconds(fit->fixed), microseconds(fit->per_rank), fit->bus, fit->small_group, microseconds(fit->pipeline)));
      }
    }
  }
}

void add_elementwise(const ElementwiseFits& fits, Lines& lines) {
  for (const FittedElementwise& machine : fits.machines) {
    lines[machine.machine].push_back(
        fmt::format("  fused: {:.3f}  # hardware/fit, kernels/neusight_vec_fp32.csv, fp32 elementwise", machine.fraction));
  }
}

void add_gemms(const GemmFits& fits, Lines& lines) {
  for (const FittedGemm& gemm : fits.kernels) {
    std::vector<std::string>& out = lines[gemm.machine];
    const std::string source = "hardware/fit, " + gemm.file;
    out.push_back("gemm_tile {");
    out.push_back(fmt::format("  fixed: \"{:.4g} us\"  # {}, half of the (n, k) pairs; held out {:.1f} %, m, n, k >= 1024 {:.1f} %",
                              microseconds(gemm.fit.fixed), source, 100 * gemm.held_out, 100 * gemm.held_out_training));
    out.push_back(fmt::format("  compute: {:.4g}  # {}", gemm.fit.compute, source));
    out.push_back(fmt::format("  memory: {:.4g}  # {}", gemm.fit.memory, source));
    out.push_back(fmt::format("  feed: \"{:.4g} GB/s\"  # {}", gemm.fit.feed.value * 1e-9, source));
    out.push_back(fmt::format("  waves: {:.3g}  # {}", gemm.fit.waves, source));
    out.push_back("}");
  }
  for (const FittedWeightGradient& fit : fits.weight_gradients) {
    fmt::print("# {}: weight gradients take {:.3f} times what other products do, {} rows; on the other rows {:.3f}\n", fit.gpu, fit.ratio,
               fit.rows, fit.held_out_ratio);
  }
}

void print_errors(const char* what, const std::vector<FitErrors>& all) {
  const auto cells = [](const std::vector<double>& errors) {
    const ErrorSummary sum = summary(errors);
    if (sum.rows == 0) return std::string(" 0 | | | |");
    return fmt::format(" {} | {:.1f} % | {:.1f} % | {:.1f} % |", sum.rows, 100 * sum.mean, 100 * sum.median, 100 * sum.max);
  };
  for (const FitErrors& errors : all) {
    fmt::print("| {} | {} |{}{}\n", what, errors.group, cells(errors.fitted), cells(errors.held_out));
  }
}

int print_fits(const std::string& data) {
  const auto collectives = fit_collectives(data);
  const auto training = fit_flash_attention(data);
  const auto inference = fit_inference_attention(data);
  const auto elementwise = fit_elementwise(data);
  const auto gemms = fit_gemms(data);
  if (!collectives || !training || !inference || !elementwise || !gemms) {
    fmt::print(stderr, "{}: found no measured data, wanted a folder with kernels/ and papers/\n", data);
    return 1;
  }
  Lines lines;
  add_gemms(*gemms, lines);
  add_attention(*training, true, lines);
  add_attention(*inference, false, lines);
  add_elementwise(*elementwise, lines);
  add_collectives(*collectives, lines);
  for (const auto& [machine, text] : lines) {
    fmt::print("# hardware/data/machines/{}.textproto\n", machine);
    for (const std::string& line : text) fmt::print("{}\n", line);
  }
  fmt::print("\n## table: kernel-fits\n\n| what | group | fitted rows | mean | median | max | held-out rows | mean | median | max |\n");
  fmt::print("|---|---|---|---|---|---|---|---|---|---|\n");
  print_errors("gemm", gemms->errors);
  print_errors("collective", collectives->errors);
  print_errors("attention, FlashAttention tables", training->errors);
  print_errors("attention, TensorRT-LLM, S >= 2048", inference->errors);
  print_errors("elementwise", elementwise->errors);
  return 0;
}

}  // namespace
}  // namespace stepsim

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: fit_kernels DATA, the folder that holds kernels/ and papers/\n");
    return 2;
  }
  try {
    return stepsim::print_fits(argv[1]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
