// Measured matrix products: which rows of the data are fitted and which are held out. Shared by the fit and by the tests of its errors.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hardware/fit/measured_table.h"
#include "sim/check.h"
#include "sim/op_work.h"

namespace stepsim {

struct MeasuredGemm {
  Gemm work;
  double measured_s = 0;
  bool held_out = false;
  int line = 0;  // of the file that it was read from

  bool training_size() const { return work.m >= 1024 && work.n >= 1024 && work.k >= 1024; }
  bool weight_gradient() const { return work.transpose_b && !work.transpose_a; }
};

struct MeasuredGpu {
  const char *name, *machine;  // as kernels/gemm_aic_NAME.csv and as the catalog call it
};

inline std::vector<MeasuredGpu> gemm_gpus() {
  return {{"A100-SXM4-80GB", "a100-sxm-80gb"},
          {"H100-SXM", "h100-sxm-80gb"},
          {"H200-SXM", "h200-sxm-141gb"},
          {"B200-SXM", "b200"},
          {"GB200", "gb200-nvl72"},
          {"B300-SXM", "b300"},
          {"GB300", "gb300-nvl72"}};
}

// Holds out every second pair (n, k), in ascending order: kernels.md 2. With fewer than four pairs every second row instead.
inline void hold_out_pairs(std::vector<MeasuredGemm>& rows) {
  std::map<std::pair<std::int64_t, std::int64_t>, bool> held_out;
  for (const MeasuredGemm& row : rows) held_out[{row.work.n, row.work.k}] = false;
  bool odd = false;
  for (auto& [pair, held] : held_out) {
    held = odd;
    odd = !odd;
  }
  constexpr std::size_t kLeastPairs = 4;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].held_out = held_out.size() < kLeastPairs ? i % 2 == 1 : held_out.at({rows[i].work.n, rows[i].work.k});
  }
}

// bf16 rows of a table with columns dtype, m, n, k, latency_us, all of the layout TN, by pairs.
inline std::vector<MeasuredGemm> measured_gemms(const MeasuredTable& table) {
  std::vector<MeasuredGemm> rows;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    if (table.at(i, "dtype") != "bf16") continue;
    const Gemm work{.m = table.integer(i, "m"), .n = table.integer(i, "n"), .k = table.integer(i, "k"), .transpose_a = true};
    rows.push_back({.work = work, .measured_s = table.number(i, "latency_us") * 1e-6});
  }
  hold_out_pairs(rows);
  return rows;
}

// The value of "name=" in "b=1, m=4096, k=5120, n=1536, layout=TN, accumulate=False, out_dtype=bf16".
inline std::string shape_field(const std::string& shape, const std::string& name) {
  const std::string text = ", " + shape + ",", key = ", " + name + "=";
  const std::size_t begin = text.find(key);
  STEPSIM_CHECK(begin != std::string::npos);
  const std::size_t value = begin + key.size();
  return text.substr(value, text.find(',', value) - value);
}

// Ungrouped products of kernels/simumax_efficiency.csv on one of its GPUs. Every second weight gradient and every second other product is
// held out.
inline std::vector<MeasuredGemm> simumax_gemms(const MeasuredTable& table, const std::string& gpu) {
  std::vector<MeasuredGemm> rows;
  bool held_out[2] = {true, true};
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    if (table.at(i, "gpu") != gpu || table.at(i, "op") != "matmul") continue;
    const std::string& shape = table.at(i, "shape");
    const auto size = [&](const char* name) { return static_cast<std::int64_t>(std::stoll(shape_field(shape, name))); };
    const std::string layout = shape_field(shape, "layout");
    const bool accumulates = shape_field(shape, "accumulate") == "True", fp32 = shape_field(shape, "out_dtype") == "fp32";
    MeasuredGemm row{.work = {.m = size("m"),
                              .n = size("n"),
                              .k = size("k"),
                              .batch = size("b"),
                              .transpose_a = layout == "TN",
                              .transpose_b = layout == "NT",
                              .accumulate_fp32 = accumulates && fp32,
                              .accumulate = accumulates && !fp32}};
    row.measured_s = arithmetic(row.work).value / (table.number(i, "eff") * table.number(i, "peak_tflops") * 1e12);
    bool& turn = held_out[row.weight_gradient() ? 1 : 0];
    turn = !turn;
    row.held_out = turn;
    rows.push_back(row);
  }
  return rows;
}

}  // namespace stepsim
