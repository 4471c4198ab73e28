// Attention against the published FlashAttention tables and against measured inference kernels.
#include <gtest/gtest.h>

#include <map>

#include "hardware/kernel_cost.h"
#include "tests/validation/measured_rows.h"

namespace stepsim {
namespace {

double attention_us(const GpuSpec& gpu, const Attention& work) {
  const DeviceCost cost = attention_cost(gpu, work);
  return seconds(cost.fixed + cost.alone) * 1e6;
}

// Which kernel of Attention::kernel a row of the table measured.
int kernel_of(const std::string& implementation) {
  const std::map<std::string, int> kernels = {{"FA2", 0}, {"FA3", 1}, {"cuDNN", 2}, {"FA4", 5}};
  const auto found = kernels.find(implementation);
  return found == kernels.end() ? -1 : found->second;
}

TEST(KernelAttention, FlashAttentionTables) {
  const auto table = measured_table("kernels/flash_attention_tables.csv");
  if (!table) GTEST_SKIP() << "no measured data";
  std::map<std::string, std::vector<double>> groups;
  int above = 0;  // the bound of kernels.md 6, which is 6 %
  for (std::size_t row = 0; row < table->rows.size(); ++row) {
    const int kernel = kernel_of(table->at(row, "impl"));
    const std::string& gpu_name = table->at(row, "gpu");
    // Two points of PR 2280 name no machine; they lie between machine A and machine B of PR 2605.
    if (kernel < 0 || gpu_name == "B200-class(sm100)") continue;
    const auto size = [&](const char* column) { return static_cast<std::int64_t>(table->number(row, column)); };
    const std::int64_t head_dim = size("head_dim");
    Attention work{.batch = size("batch"),
                   .heads = 2048 / head_dim,  // hidden size 2048 in all tables (kernels.md 2.2)
                   .kv_heads = 2048 / head_dim,
                   .queries = size("seq"),
                   .keys = size("seq"),
                   .head_dim = head_dim,
                   .causal = size("causal") == 1,
                   .kernel = static_cast<std::int8_t>(kernel)};
    const GpuSpec gpu = load_gpu(gpu_name);
    const std::string& pass = table->at(row, "pass");
    const double forward = attention_us(gpu, work), flops = arithmetic(work).value;
    work.backward = true;
    const double backward = attention_us(gpu, work);
    const double factor = pass == "fwd" ? 1 : pass == "bwd" ? 2.5 : 3.5;  // FLOPs over forward, kernels.md 2.2
    const double measured = factor * flops / (table->number(row, "tflops") * 1e6);
    const double simulated = pass == "fwd" ? forward : pass == "bwd" ? backward : forward + backward;
    groups[gpu_name + " " + table->at(row, "impl") + " " + pass].push_back(simulated / measured - 1);
    if (std::abs(simulated / measured - 1) > 0.06) ++above;
    EXPECT_NEAR(simulated / measured, 1, 0.075) << gpu_name << " row " << row + 2;
  }
  print_heading("kernel-attention-training",
                "Attention: against the published FlashAttention tables (rates fitted on every second length)");
  for (const auto& [name, errors] : groups) print_summary(name, summary(errors));
  EXPECT_EQ(groups.size(), 10u);
  EXPECT_LE(above, 1);  // FlashAttention-3, head dimension 64, causal, 1024 keys, held out: measured 7 % above a smooth curve in time
}

// Lengths from the papers: 16 Ki tokens, hidden size 2048. The Triton kernel of FlashAttention-1 was fitted on every second length.
TEST(KernelAttention, FlashAttention1InTriton) {
  const auto table = measured_table("papers/flashattention_tflops.csv");
  if (!table) GTEST_SKIP() << "no measured data";
  const GpuSpec gpu = load_gpu("a100-sxm-80gb");
  std::map<std::string, std::vector<double>> groups;
  for (std::size_t row = 0; row < table->rows.size(); ++row) {
    if (table->at(row, "impl") != "FlashAttention Triton" || table->at(row, "gpu") != "A100 80GB SXM4") continue;
    const std::int64_t head_dim = table->integer(row, "head_dim"), length = table->integer(row, "seqlen");
    Attention work{.batch = 16384 / length,
                   .heads = 2048 / head_dim,
                   .kv_heads = 2048 / head_dim,
                   .queries = length,
                   .keys = length,
                   .head_dim = head_dim,
                   .causal = table->integer(row, "causal") == 1,
                   .kernel = 4};
    const std::string& pass = table->at(row, "passes");
    const double factor = pass == "fwd" ? 1 : pass == "bwd" ? 2.5 : 3.5;  // FLOPs over forward, kernels.md 2.2
    const double measured = factor * arithmetic(work).value / (table->number(row, "tflops") * 1e6);
    double simulated = pass == "bwd" ? 0 : attention_us(gpu, work);
    work.backward = true;
    if (pass != "fwd") simulated += attention_us(gpu, work);
    groups[pass].push_back(simulated / measured - 1);
  }
  print_heading("kernel-attention-flash1", "Attention: FlashAttention-1 in Triton on an A100");
  EXPECT_EQ(groups.size(), 3u);
  for (const auto& [pass, errors] : groups) {
    print_summary(pass, summary(errors));
    EXPECT_LE(summary(errors).mean, 0.035) << pass;
    // Backward at head dimension 64 and 1024 keys is 10 % faster than both neighbours: tuned by length.
    EXPECT_LE(summary(errors).max, 0.11) << pass;
  }
}

bool held_out(const Attention& work) {  // the fits' checkerboard: floor(log2 batch) + floor(log2 keys) odd
  bool odd = false;
  for (std::int64_t size : {work.batch, work.keys}) {
    for (; size > 1; size /= 2) odd = !odd;
  }
  return odd;
}

// Kernel 3, from S = 512 on the other half of these shapes was fitted (hardware/fit).
TEST(KernelAttention, MeasuredInferenceKernels) {
  struct Case {
    const char* gpu;
    double bound;  // issue 5: H100, H200 6 %, Blackwell 9 %; A100 as H100. Found: at most 2.6, 5.5 and 6.4 %
  };
  const Case cases[] = {{"A100-SXM4-80GB", 0.06}, {"H100-SXM", 0.06}, {"H200-SXM", 0.06}, {"B200-SXM", 0.09},
                        {"GB200", 0.09},          {"B300-SXM", 0.09}, {"GB300", 0.09}};
  print_heading("kernel-attention-inference", "Attention: TensorRT-LLM bf16 forward, S >= 2048, held-out shapes of aiconfigurator");
  for (const Case& c : cases) {
    const auto table = measured_table(std::string("kernels/attn_aic_") + c.gpu + ".csv");
    if (!table) GTEST_SKIP() << "no measured data";
    const GpuSpec gpu = load_gpu(c.gpu);
    std::vector<double> errors[2], all;
    for (std::size_t row = 0; row < table->rows.size(); ++row) {
      const auto size = [&](const char* column) { return static_cast<std::int64_t>(table->number(row, column)); };
      if (table->at(row, "dtype") != "bf16" || size("seq") < 2048 || size("head_dim") > 256) continue;
      const Attention work{.batch = size("batch"),
                           .heads = size("heads"),
                           .kv_heads = size("kv_heads"),
                           .queries = size("seq"),
                           .keys = size("seq"),
                           .head_dim = size("head_dim"),
                           .causal = size("causal") == 1,
                           .kernel = 3};
      if (!held_out(work)) continue;
      errors[work.causal ? 1 : 0].push_back(attention_us(gpu, work) / table->number(row, "latency_us") - 1);
      all.push_back(errors[work.causal ? 1 : 0].back());
    }
    print_summary(c.gpu, summary(all));
    EXPECT_LE(summary(all).mean, c.bound) << c.gpu;
    for (const int causal : {0, 1}) {
      const ErrorSummary of_mask = summary(errors[causal]);
      if (of_mask.rows == 0) continue;  // the A100 file has causal rows only
      print_summary(std::string(c.gpu) + (causal == 1 ? ", causal" : ", full"), of_mask);
      EXPECT_LE(of_mask.mean, c.bound) << c.gpu << " causal " << causal;
    }
    EXPECT_GT(all.size(), 600u);
  }
}

}  // namespace
}  // namespace stepsim
