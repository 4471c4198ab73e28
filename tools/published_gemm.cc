// Measured matrix products against the cost model of the machine that each row names.
#include "sim/input_error.h"
#include "tools/published_format.h"
#include "tools/published_kernels.h"

namespace stepsim {

PublishedComparison compare_gemm(const CsvTable& table) {
  PublishedComparison comparison;
  comparison.quantity = "latency_us";
  const std::size_t op = *table.column("op"), dtype = *table.column("dtype"), gpu = *table.column("gpu"),
                    latency = *table.column("latency_us");
  const std::size_t m = *table.column("m"), n = *table.column("n"), k = *table.column("k");
  const std::optional<std::size_t> batch = table.column("batch");
  NamedMachines machines;
  const auto skip = [&comparison](const std::string& reason) { ++comparison.skipped[reason]; };
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const CsvRow& row = table.rows[i];
    const bool product = row.cells[op] == "gemm" || row.cells[op] == "linear" || row.cells[op] == "bmm";
    if (!product) {
      skip("op " + row.cells[op] + " is no gemm");
      continue;
    }
    const auto size = [&](std::size_t column) { return whole_cell(table, row, column, 1, kMostDimension); };
    const Gemm gemm{.m = size(m),
                    .n = size(n),
                    .k = size(k),
                    .batch = batch ? size(*batch) : 1,
                    .dtype = wide_dtype(row.cells[dtype]).value_or(DType::kBf16)};
    const double measured = number_cell(table, row, latency, kLeastMicroseconds, kMostMicroseconds);
    const NamedMachine& machine = machines.find(row.cells[gpu]);
    if (!machine.problem.empty()) {
      skip(machine.problem);
      continue;
    }
    if (!wide_dtype(row.cells[dtype])) {
      skip("dtype " + row.cells[dtype] + ": public measurements include quantising (kernels.md 2.1)");
      continue;
    }
    try {
      peak(machine.gpu, gemm.dtype);
    } catch (const InputError&) {
      skip(machine.gpu.name + " has no peak for " + row.cells[dtype]);
      continue;
    }
    comparison.rows.push_back({table.row_id(i), i, measured, kernel_us(machine, gemm)});
  }
  return comparison;
}

}  // namespace stepsim
