// Memory-bound kernels, attention and grouped products against other laboratories, with nothing refitted. Bounds are what was found and two
// points, so that a change is seen. Why they differ: eager norms and activations of several kernels (the builders count each), the clocks
// of a sustained loop on B200 and of a 300 W card (a stack's slowdown), host time in small products (SimuMax's grouped ones).
#include <gtest/gtest.h>

#include <sstream>

#include "hardware/fit/measured_gemm.h"
#include "hardware/gemm_cost.h"
#include "hardware/kernel_cost.h"
#include "tests/validation/measured_rows.h"

namespace stepsim {
namespace {

double total_s(const DeviceCost& cost) { return seconds(cost.fixed + cost.alone); }

double memory_s(const GpuSpec& gpu, double read, double written, MemoryKernel kernel) {
  return total_s(memory_bound_cost(
      gpu, {.read = Bytes(static_cast<std::int64_t>(read)), .written = Bytes(static_cast<std::int64_t>(written)), .kernel = kernel}));
}

// "4096, 4096, 204.56": rows, columns, 10^9 elements a second, fp16; gelu: elements, the same. From 2^24 elements, where the 28 us of the
// host (kernels.md 2.1) no longer count.
TEST(KernelOtherLaboratories, LlmCompass) {
  const auto table = measured_table("kernels/llmcompass_a100_raw.csv");
  if (!table) GTEST_SKIP() << "no measured data";
  const GpuSpec gpu = load_gpu("a100-sxm-80gb");
  print_heading("kernel-memory-llmcompass", "Memory-bound: LLMCompass, A100, fp16, from 16 Mi elements; nothing refitted");
  struct Case {
    const char* op;
    MemoryKernel kernel;
    double mean, bias;
  };
  for (const Case& c : {Case{"softmax", MemoryKernel::kSoftmax, 0.36, -0.33}, Case{"layernorm", MemoryKernel::kNorm, 0.25, -0.12},
                        Case{"gelu", MemoryKernel::kFusedElementwise, 0.27, -0.24}}) {
    std::vector<double> errors;
    for (const std::vector<std::string>& row : table->rows) {
      if (row.at(0) != c.op) continue;
      std::stringstream text(row.at(1));
      double elements = 0, columns = 1, rate = 0;
      char comma = 0;
      text >> elements >> comma;
      if (std::string(c.op) != "gelu") text >> columns >> comma;
      text >> rate;
      ASSERT_GT(rate, 0) << row.at(1);
      elements *= columns;
      if (elements < (1 << 24)) continue;
      errors.push_back(memory_s(gpu, 2 * elements, 2 * elements, c.kernel) / (elements / (rate * 1e9)) - 1);
    }
    expect_summary(c.op, errors, c.mean, c.bias);
  }
}

// Llama-2 7B and 70B, fp16, whole microseconds: rows of 30 us and more. `add` of two tensors; the norms are PyTorch's, of several kernels.
TEST(KernelOtherLaboratories, VidurMemoryBound) {
  const auto table = measured_table("kernels/vidur_mlp.csv");
  if (!table) GTEST_SKIP() << "no measured data";
  print_heading("kernel-memory-vidur", "Memory-bound: vidur, fp16, at least 30 us; nothing refitted");
  struct Case {
    const char *gpu, *machine, *op;
    double inputs;  // tensors of tokens x width read, one is written
    MemoryKernel kernel;
    double mean, bias;
  };
  const Case cases[] = {{"A100", "a100-sxm-80gb", "add", 2, MemoryKernel::kFusedElementwise, 0.10, 0.08},
                        {"A100", "a100-sxm-80gb", "mlp_act", 2, MemoryKernel::kFusedElementwise, 0.44, -0.41},
                        {"A100", "a100-sxm-80gb", "input_layernorm", 1, MemoryKernel::kUnfused, 0.40, -0.37},
                        {"H100", "h100-sxm-80gb", "add", 2, MemoryKernel::kFusedElementwise, 0.23, 0.21},
                        {"H100", "h100-sxm-80gb", "mlp_act", 2, MemoryKernel::kFusedElementwise, 0.33, -0.30},
                        {"H100", "h100-sxm-80gb", "input_layernorm", 1, MemoryKernel::kUnfused, 0.40, -0.37}};
  for (const Case& c : cases) {
    const GpuSpec gpu = load_gpu(c.machine);
    std::vector<double> errors;
    for (std::size_t row = 0; row < table->rows.size(); ++row) {
      const double measured_s = table->number(row, "latency_us") * 1e-6;
      if (table->at(row, "gpu") != c.gpu || table->at(row, "op") != c.op || measured_s < 30e-6) continue;
      const bool inner = std::string(c.op) == "mlp_act";
      const double width = inner ? table->number(row, "n_ffn") / table->number(row, "tp") : table->number(row, "n_embd");
      const double tensor = 2 * table->number(row, "num_tokens") * width;
      errors.push_back(memory_s(gpu, c.inputs * tensor, tensor, c.kernel) / measured_s - 1);
    }
    expect_summary(std::string(c.gpu) + " " + c.op, errors, c.mean, c.bias);
  }
}

struct SimuMaxCase {
  const char *gpu, *machine, *op;
  double mean, bias;
};

// Efficiency counts the FLOPs of a full mask; heads of 192 for queries and keys and 128 for values have as many as 160 for all.
TEST(KernelOtherLaboratories, SimuMaxAttention) {
  const auto table = measured_table("kernels/simumax_efficiency.csv");
  if (!table) GTEST_SKIP() << "no measured data";
  print_heading("kernel-attention-simumax", "Attention: SimuMax, causal; nothing refitted");
  for (const SimuMaxCase& c : {SimuMaxCase{"A100-PCIe", "a100-pcie-80gb", "sdp_fwd", 0.19, -0.17},
                               SimuMaxCase{"A100-PCIe", "a100-pcie-80gb", "sdp_bwd", 0.16, -0.13},
                               SimuMaxCase{"B200", "b200", "sdp_fwd", 0.28, -0.25}, SimuMaxCase{"B200", "b200", "sdp_bwd", 0.17, -0.13}}) {
    const GpuSpec gpu = load_gpu(c.machine);
    std::vector<double> errors;
    for (std::size_t row = 0; row < table->rows.size(); ++row) {
      if (table->at(row, "gpu") != c.gpu || table->at(row, "op") != c.op) continue;
      const std::string& shape = table->at(row, "shape");
      const auto size = [&](const char* name) { return static_cast<std::int64_t>(std::stoll(shape_field(shape, name))); };
      Attention work{.batch = size("batch"),
                     .heads = size("head_num"),
                     .kv_heads = size("kv_head_num"),
                     .queries = size("seq_len"),
                     .keys = size("seq_len"),
                     .head_dim = (size("qk_head_dim") + size("v_head_dim")) / 2,
                     .causal = true,
                     .backward = std::string(c.op) == "sdp_bwd"};
      work.kernel = std::string(c.gpu) == "B200" ? 2 : 0;
      const double counted = 2 * arithmetic(work).value;
      const double measured_s = counted / (table->number(row, "eff") * table->number(row, "peak_tflops") * 1e12);
      errors.push_back(total_s(attention_cost(gpu, work)) / measured_s - 1);
    }
    expect_summary(std::string(c.gpu) + " " + c.op, errors, c.mean, c.bias);
  }
}

// M tokens for each of ng experts; the weight gradients are added to fp32 or bf16 buffers.
TEST(KernelOtherLaboratories, SimuMaxGroupedProducts) {
  const auto table = measured_table("kernels/simumax_efficiency.csv");
  if (!table) GTEST_SKIP() << "no measured data";
  print_heading("kernel-gemm-grouped", "Grouped products: SimuMax; nothing refitted");
  for (const SimuMaxCase& c :
       {SimuMaxCase{"A100-PCIe", "a100-pcie-80gb", "fwd", 0.14, -0.12},
        SimuMaxCase{"A100-PCIe", "a100-pcie-80gb", "bwd_grad_act", 0.10, -0.08},
        SimuMaxCase{"A100-PCIe", "a100-pcie-80gb", "bwd_grad_w", 0.10, -0.08}, SimuMaxCase{"B200", "b200", "fwd", 0.39, -0.37},
        SimuMaxCase{"B200", "b200", "bwd_grad_act", 0.43, -0.41}, SimuMaxCase{"B200", "b200", "bwd_grad_w", 0.28, -0.25}}) {
    const GpuSpec gpu = load_gpu(c.machine);
    std::vector<double> errors;
    for (std::size_t row = 0; row < table->rows.size(); ++row) {
      if (table->at(row, "gpu") != c.gpu || table->at(row, "op") != "group_matmul") continue;
      const std::string& shape = table->at(row, "shape");
      if (shape_field(shape, "stage") != c.op || shape_field(shape, "dtype") != "bf16") continue;
      const auto size = [&](const char* name) { return static_cast<std::int64_t>(std::stoll(shape_field(shape, name))); };
      const std::int64_t tokens = size("M"), outputs = size("N"), inputs = size("K");
      Gemm work{.m = tokens, .n = outputs, .k = inputs, .batch = size("ng"), .transpose_a = true};
      if (std::string(c.op) == "bwd_grad_act") {
        work.n = inputs;
        work.k = outputs;
        work.transpose_a = false;
      } else if (std::string(c.op) == "bwd_grad_w") {
        work.m = outputs;
        work.n = inputs;
        work.k = tokens;
        work.transpose_a = false;
        work.transpose_b = true;
        work.accumulate_fp32 = shape_field(shape, "accumulate") == "True" && shape_field(shape, "main_grad_dtype") == "fp32";
        work.accumulate = shape_field(shape, "accumulate") == "True" && !work.accumulate_fp32;
      }
      const double measured_s = arithmetic(work).value / (table->number(row, "eff") * table->number(row, "peak_tflops") * 1e12);
      errors.push_back(total_s(gemm_cost(gpu, work)) / measured_s - 1);
    }
    expect_summary(std::string(c.gpu) + " " + c.op, errors, c.mean, c.bias);
  }
}

// bf16 and prequantised fp8 products of a layer's four linear modules, M = 15872, hidden 4096, qkv 12288, ffn 16384.
TEST(KernelOtherLaboratories, TransformerEngineProducts) {
  const auto table = measured_table("kernels/te_gemm_profiling.csv");
  if (!table) GTEST_SKIP() << "no measured data";
  print_heading("kernel-gemm-te", "GEMM: Transformer Engine, four products of a layer; nothing refitted");
  struct Case {
    const char *gpu, *machine, *column, *mode;
    DType dtype;
    double mean, bias;
  };
  for (const Case& c : {Case{"B300-SXM6", "b300", "bf16_ms", "autocast", DType::kBf16, 0.1, -0.08},
                        Case{"B300-SXM6", "b300", "fp8current_ms", "prequantised", DType::kFp8, 0.11, -0.09},
                        Case{"B300-SXM6", "b300", "mxfp8_ms", "prequantised", DType::kMxFp8, 0.16, -0.14},
                        Case{"B300-SXM6", "b300", "nvfp4_ms", "prequantised", DType::kNvFp4, 0.2, -0.16},
                        Case{"H200-NVL", "h200-nvl", "bf16_ms", "autocast", DType::kBf16, 0.12, -0.1},
                        Case{"H200-NVL", "h200-nvl", "fp8current_ms", "prequantised", DType::kFp8, 0.05, -0.03}}) {
    const GpuSpec gpu = load_gpu(c.machine);
    std::vector<double> errors;
    for (std::size_t row = 0; row < table->rows.size(); ++row) {
      if (table->at(row, "gpu") != c.gpu || table->at(row, "mode") != c.mode) continue;
      const std::string& pass = table->at(row, "pass");
      double simulated_s = 0;
      const std::int64_t tokens = 15872, shapes[4][2] = {{12288, 4096}, {4096, 4096}, {16384, 4096}, {4096, 16384}};
      for (const auto& [outputs, inputs] : shapes) {
        Gemm work{.m = tokens, .n = outputs, .k = inputs, .dtype = c.dtype, .transpose_a = true};
        if (pass == "dgrad") work = {.m = tokens, .n = inputs, .k = outputs, .dtype = c.dtype};
        if (pass == "wgrad") work = {.m = outputs, .n = inputs, .k = tokens, .dtype = c.dtype, .transpose_b = true};
        simulated_s += total_s(gemm_cost(gpu, work));
      }
      errors.push_back(simulated_s / (table->number(row, c.column) * 1e-3) - 1);
    }
    const std::string name(c.column, std::string(c.column).size() - 3);
    expect_summary(std::string(c.gpu) + " " + name, errors, c.mean, c.bias);
  }
}

}  // namespace
}  // namespace stepsim
