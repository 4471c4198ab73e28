#include "hardware/fit/elementwise_fit.h"

#include <map>

#include "hardware/fit/curve_fit.h"
#include "hardware/fit/measured_table.h"
#include "hardware/kernel_cost.h"

namespace stepsim {

namespace {

struct Row {
  MemoryBound work;
  double measured_s = 0;
  bool held_out = false;
};

std::vector<Row> rows_of(const MeasuredTable& table, const std::string& gpu) {
  std::vector<Row> rows;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const int tensors = elementwise_tensors(table.at(i, "op"));
    if (table.at(i, "gpu") != gpu || tensors == 0) continue;
    const Bytes tensor(4 * table.integer(i, "rows") * table.integer(i, "cols"));  // fp32
    rows.push_back({.work = {.read = Bytes(tensor.value * (tensors - 1)), .written = tensor},
                    .measured_s = table.number(i, "latency_us") * 1e-6,
                    .held_out = rows.size() % 2 == 1});
  }
  return rows;
}

}  // namespace

std::optional<ElementwiseFits> fit_elementwise(const std::string& data) {
  const auto table = read_measured_table(data + "/kernels/neusight_vec_fp32.csv");
  if (!table) return std::nullopt;
  // Measured GPU -> file; the V100 SXM file carries the fraction of the PCIe card, which stands on it.
  const std::map<std::string, std::string> files = {
      {"A100-PCIe-40GB", "a100-pcie-40gb"}, {"A100-PCIe-80GB", "a100-pcie-80gb"}, {"L4", "l4"}, {"P100", "p100"}, {"T4", "t4"},
      {"V100-PCIe-32GB", "v100-sxm-32gb"}};
  ElementwiseFits fits;
  for (const auto& [name, file] : files) {
    GpuSpec gpu = load_gpu(name);
    const std::vector<Row> rows = rows_of(*table, name);
    std::vector<std::vector<double>> terms;  // over the measured time: relative errors
    for (const Row& row : rows) {
      const double hbm_s = static_cast<double>(memory_traffic(row.work).value) / gpu.hbm.value;
      if (!row.held_out) terms.push_back({1 / row.measured_s, hbm_s / row.measured_s});
    }
    const std::vector<double> x = linear_fit(terms, std::vector<double>(terms.size(), 1));
    gpu.fit.memory_fixed = op_duration(x[0]);
    gpu.fit.memory_fused = 1 / x[1];
    FitErrors errors{.group = name, .fitted = {}, .held_out = {}};
    for (const Row& row : rows) {
      const DeviceCost cost = memory_bound_cost(gpu, row.work);
      (row.held_out ? errors.held_out : errors.fitted).push_back(seconds(cost.fixed + cost.alone) / row.measured_s - 1);
    }
    fits.machines.push_back({.machine = file, .fraction = gpu.fit.memory_fused, .launch_us = x[0] * 1e6});
    fits.errors.push_back(errors);
  }
  return fits;
}

}  // namespace stepsim
