// Rows that a model made -> the model's constants; what is missing, impossible or too little.
#include "tools/machine_calibration.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <utility>

#include "hardware/fit/inference_attention_fit.h"
#include "hardware/gemm_cost.h"
#include "hardware/machine_text.h"
#include "tests/unit/error_of.h"

namespace stepsim {
namespace {

const std::vector<std::pair<std::string, std::string>> kFacts = {
    {"peak.bf16", "700 TFLOP/s"}, {"hbm", "2400 GB/s"}, {"memory", "96 GiB"}, {"sms", "100"}};

CalibratedMachine calibrated(const MachineRequest& request) {
  return calibrate_machine(request, [](double, const std::string&) {});
}

std::string error(const MachineRequest& request) {
  return error_of([&] { calibrated(request); });
}

GpuSpec modelled() {
  GpuSpec gpu = load_gpu("h100-sxm-80gb", kFacts);
  gpu.fit.gemm_tile = GemmTileFit{.fixed = Duration(3000000), .compute = 0.7, .memory = 0.8, .feed = BytesPerSecond(150e9), .waves = 0.5};
  return gpu;
}

Measurements products(std::size_t count, const GpuSpec& gpu) {
  Measurements rows;
  rows.file = "m.csv";
  rows.gpu = "X9";
  for (std::int64_t m = 256; m <= 16384; m *= 2) {
    for (std::int64_t n = 1024; n <= 16384; n *= 2) {
      for (std::int64_t k = 1024; k <= 16384; k *= 2) {
        if (rows.gemms.size() == count) return rows;
        MeasuredGemm row{.work = {.m = m, .n = n, .k = k, .transpose_a = true}};
        row.measured_s = simulated_s(gpu, row);
        row.line = static_cast<int>(rows.gemms.size()) + 2;
        rows.gemms.push_back(row);
      }
    }
  }
  return rows;
}

// Times of the model itself: what is left is what the search and the digits of the file leave.
TEST(MachineCalibration, TilesOfRowsThatTilesMade) {
  const CalibratedMachine machine = calibrated({.files = {products(150, modelled())}, .base = "h100-sxm-80gb", .facts = kFacts});
  ASSERT_EQ(machine.classes.size(), 1u);
  EXPECT_EQ(machine.classes[0].model, "tiles");
  for (const FitErrors& errors : machine.classes[0].errors) {
    EXPECT_LE(summary(errors.fitted).mean, 0.01) << errors.group;
    EXPECT_LE(summary(errors.held_out).mean, 0.01) << errors.group;
  }
  const GpuSpec gpu = gpu_from_text("x9", "x9.textproto", machine.text);
  EXPECT_DOUBLE_EQ(gpu.peak_tflops.at("bf16"), 700);
  EXPECT_EQ(gpu.peak_tflops.count("fp8"), 0u);  // not stated, so not the base's
  EXPECT_EQ(gpu.sms, 100);
  ASSERT_TRUE(gpu.fit.gemm_tile.has_value());
  EXPECT_NEAR(gpu.fit.gemm_tile->compute, 0.7, 0.02);
  ASSERT_EQ(gpu.fits.size(), 1u);
  EXPECT_EQ(gpu.fits[0].op_class, "gemm");
  EXPECT_GT(gpu.fits[0].held_out_rows, 40);
}

TEST(MachineCalibration, FewRowsFitFewerParameters) {
  const auto model_of = [&](std::size_t rows) {
    return calibrated({.files = {products(rows, modelled())}, .base = "h100-sxm-80gb", .facts = kFacts}).classes.at(0);
  };
  const KernelCalibration roofline = model_of(30), two = model_of(12);
  EXPECT_EQ(roofline.model, "roofline");
  EXPECT_NE(roofline.fewer.find("a roofline of fixed, compute and memory"), std::string::npos);
  EXPECT_EQ(roofline.blocks.at(0).lines.size(), 3u);
  EXPECT_NE(two.fewer.find("its fixed part, the base's"), std::string::npos);
  EXPECT_EQ(two.blocks.at(0).lines.size(), 2u);
  calibrated({.files = {products(7, modelled())}, .base = "h100-sxm-80gb", .facts = kFacts});  // 4 of 7 are not held back
  EXPECT_EQ(error({.files = {products(6, modelled())}, .base = "h100-sxm-80gb", .facts = kFacts}),
            "m.csv: found 6 rows of matrix products, of which half are held back, wanted at least 4 that are not");
}

TEST(MachineCalibration, UnknownMachinesNeedABaseAndFacts) {
  const Measurements rows = products(60, modelled());
  EXPECT_EQ(error({.files = {rows}, .facts = kFacts}),
            "--base: found none, and \"X9\" is not in the catalog, wanted the catalog machine that it is most alike");
  EXPECT_EQ(error({.files = {rows}, .base = "h100-sxm-80gb"}),
            "--set: found no peak.bf16, hbm, memory, sms of X9, which the catalog does not have, wanted such as --set "
            "peak.bf16=\"989 TFLOP/s\"");
  EXPECT_EQ(error({.files = {rows}, .base = "mine.textproto", .facts = kFacts}),
            "--base: found \"mine.textproto\", wanted a catalog name (stepsim list hardware)");
  EXPECT_EQ(error({.files = {rows}, .base = "h100-sxm-80g", .facts = kFacts}),
            "--base: found \"h100-sxm-80g\", wanted a catalog name (stepsim list) or a .textproto file, did you mean \"h100-sxm-80gb\"?");
}

// Milliseconds under the head latency_us: 1000 times faster than they were, with the line.
TEST(MachineCalibration, RatesThatNoPeakAllows) {
  Measurements rows = products(60, modelled());
  for (MeasuredGemm& row : rows.gemms) row.measured_s /= 1000;
  const std::string text = error({.files = {rows}, .base = "h100-sxm-80gb", .facts = kFacts});
  EXPECT_EQ(text.substr(0, 6), "m.csv:");
  EXPECT_NE(text.find("times faster than peak.bf16=\"700 TFLOP/s\" of --set allows, wanted microseconds"), std::string::npos) << text;
  rows.gpu = "h100-sxm-80gb";
  EXPECT_NE(error({.files = {rows}}).find("times faster than peak.bf16 of h100-sxm-80gb allows"), std::string::npos);
}

// Forward rows of FLASH3 by length, in TFLOP/s.
Measurements flash_table(const std::vector<double>& tflops) {
  std::string text = "gpu,impl,pass,causal,head_dim,seq,tflops\n";
  std::int64_t length = 512;
  for (const double rate : tflops)
    text += "X9,FA3,fwd,0,128," + std::to_string(std::exchange(length, 2 * length)) + "," + fmt::format("{}\n", rate);
  return read_measurements("fa.csv", text, {});
}

TEST(MachineCalibration, StatedRatesAboveThePeak) {
  const auto of = [](const std::vector<double>& tflops) {
    return error({.files = {flash_table(tflops)}, .base = "h100-sxm-80gb", .facts = kFacts});
  };
  EXPECT_EQ(of({300, 400, 450, 470, 480, 700}), "");
  EXPECT_EQ(of({300, 400, 1400, 470, 480, 490}),
            "fa.csv:4:1: found 1400 TFLOP/s, 2 times peak.bf16=\"700 TFLOP/s\" of --set, wanted at most the dense peak");
}

// Every second length is held back: a million times as fast as those that are fitted, or ten thousand times.
TEST(MachineCalibration, AFitThatIsNoMachineNamesTheUsersFile) {
  const std::string begin = "fa.csv: found rows whose fit is no machine: ";
  const std::string end = ", wanted measurements of one machine in the units that the head says, and that machine's facts (--set)";
  for (const double slow : {0.04, 4e-9}) {
    const std::string text = error({.files = {flash_table({slow, 400, slow, 400, slow, 400})}, .base = "h100-sxm-80gb", .facts = kFacts});
    EXPECT_EQ(text.substr(0, begin.size()), begin);
    EXPECT_EQ(text.substr(text.size() - end.size()), end);
    EXPECT_NE(text.find(slow > 1e-3 ? "held_out_error" : "an op of "), std::string::npos) << text;
  }
}

TEST(MachineCalibration, AFactThatMakesNoMachineIsNamed) {
  auto facts = kFacts;
  facts.emplace_back("attention[0].fixed", "3 us");
  const std::string text = error({.files = {products(30, modelled())}, .base = "h100-sxm-80gb", .facts = facts});
  EXPECT_EQ(text.find("--set attention[0].fixed: found no attention[0].kernel, wanted "), 0u) << text;
}

TEST(MachineCalibration, UsualClustersAreLookedUp) {
  auto facts = kFacts;
  facts.emplace_back("usual_cluster", "foo");
  EXPECT_EQ(
      error({.files = {products(30, modelled())}, .base = "h100-sxm-80gb", .facts = facts}).find("--set usual_cluster: found \"foo\""), 0u);
}

// Eight GPUs of a node are one NVLink domain of the H100; a rack of GB200 is one of 72.
TEST(MachineCalibration, CollectivesOfSeveralHosts) {
  Measurements rows;
  rows.file = "m.txt";
  rows.hosts = {"node01", "node02"};
  rows.second_host_line = 9;
  rows.notes = {"m.txt: a note"};
  for (std::int64_t bytes = 1024; bytes <= 1 << 28; bytes *= 2) {
    rows.collectives.push_back({.work = {.kind = CollectiveKind::kAllReduce, .message = Bytes(bytes), .ranks = 8},
                                .measured_s = 20e-6 + 1.75 * static_cast<double>(bytes) / 360e9});
  }
  EXPECT_EQ(error({.files = {rows}, .base = "h100-sxm-80gb"}),
            "m.txt:9:1: found ranks on node01 and node02, wanted one host: calibrate fits collectives within an NVLink domain");
  const CalibratedMachine rack = calibrated({.files = {rows}, .base = "gb200-nvl72"});
  EXPECT_EQ(rack.notes, rows.notes);
  rows.hosts = {"node01"};
  EXPECT_EQ(
      error({.files = {rows}, .base = "l4"}),
      "m.txt: found 19 rows of collectives, of which half are held back, wanted at least 3 sizes of one operation with an even power of "
      "two, within an NVLink domain of 1");
}

// 30 us and 0.75 of 2400 GB/s, exactly; 20 us are a framework's launch and stay out of the file, 4 us are not.
TEST(MachineCalibration, MemoryKernels) {
  for (const double launch_us : {20.0, 4.0}) {
    Measurements rows;
    rows.file = "m.csv";
    rows.gpu = "X9";
    for (std::int64_t mib = 1; mib <= 2048; mib *= 2) {
      const MemoryBound work{.read = Bytes(mib << 20), .written = Bytes(mib << 20)};
      rows.memory.push_back({.work = work, .measured_s = launch_us * 1e-6 + 2.0 * static_cast<double>(mib << 20) / (0.75 * 2400e9)});
    }
    const CalibratedMachine machine = calibrated({.files = {rows}, .base = "h100-sxm-80gb", .facts = kFacts});
    const GpuSpec gpu = gpu_from_text("x9", "x9.textproto", machine.text);
    EXPECT_NEAR(gpu.fit.memory_fused, 0.75, 1e-9);
    EXPECT_LT(summary(machine.classes[0].errors[0].held_out).max, 1e-3);
    const Duration fixed = launch_us > 6 ? load_gpu("h100-sxm-80gb").fit.memory_fixed : Duration(4000000);
    EXPECT_EQ(gpu.fit.memory_fixed, fixed);
    EXPECT_FALSE(gpu.fit.gemm_tile.has_value());  // tiles of the H100 say nothing of another chip
  }
}

// Of a machine that the catalog has no facts are asked for.
TEST(MachineCalibration, CatalogMachines) {
  GpuSpec gpu = load_gpu("h100-sxm-80gb");
  gpu.fit.gemm_tile->compute = 0.6;
  Measurements rows = products(100, gpu);
  rows.gpu = "H100-SXM";
  const CalibratedMachine machine = calibrated({.files = {rows}});
  EXPECT_EQ(machine.base, "h100-sxm-80gb");
  EXPECT_NEAR(gpu_from_text("x", "x.textproto", machine.text).fit.gemm_tile->compute, 0.6, 0.01);
}

// The other kernels of the base stay in the file: its list replaces the base's. Rows that the model made.
TEST(MachineCalibration, OtherAttentionKernelsStay) {
  const GpuSpec base = load_gpu("h100-sxm-80gb");
  GpuSpec made = base;
  made.fit.attention = {{.kernel = 3,
                         .fixed = Duration(20000000),
                         .memory = 0.6,
                         .rates = {{.head_dim = 128, .causal = true, .forward = 0.5, .forward_half_length = 800}}}};
  Measurements rows;
  rows.file = "m.csv";
  rows.gpu = "H100-SXM";
  for (std::int64_t length = 512; length <= 16384; length *= 2) {
    for (std::int64_t batch = 1; batch <= 64; batch *= 2) {
      MeasuredAttention row{
          .work = {.batch = batch, .heads = 64, .kv_heads = 8, .queries = length, .keys = length, .head_dim = 128, .kernel = 3}};
      row.measured_s = simulated_s(made, row);
      rows.attentions.push_back(row);
    }
  }
  const CalibratedMachine machine = calibrated({.files = {rows}});
  EXPECT_LT(summary(machine.classes.at(0).errors.at(0).held_out).max, 0.02);
  const GpuSpec gpu = gpu_from_text("x", "x.textproto", machine.text);
  EXPECT_EQ(gpu.fit.attention.size(), base.fit.attention.size());
  for (const AttentionFit& entry : gpu.fit.attention) {
    if (entry.kernel != 3) continue;
    EXPECT_NEAR(seconds(entry.fixed) * 1e6, 20, 1);
    ASSERT_EQ(entry.rates.size(), 2u);  // full masks take the rate of causal ones
    EXPECT_NEAR(entry.rates.back().forward, 0.5, 0.01);
    EXPECT_NEAR(entry.rates.back().forward_half_length, 800, 40);
  }
}

}  // namespace
}  // namespace stepsim
