// Measured matrix products against the cost model of the machine that each row names.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <memory>
#include <optional>

#include "hardware/roofline_cost_model.h"
#include "sim/input_error.h"
#include "tools/published_format.h"

namespace stepsim {

// A machine that rows name, or why there is none.
struct NamedMachine {
  std::string problem;
  GpuSpec gpu;
  std::unique_ptr<RooflineCostModel> costs;
};

static NamedMachine named_machine(const std::string& name) {
  NamedMachine machine;
  try {
    machine.gpu = load_gpu(name);
  } catch (const InputError&) {
    machine.problem = "machine " + name + " is not in the catalog";
    return machine;
  }
  const ClusterSpec cluster = usual_cluster(machine.gpu);
  machine.costs = std::make_unique<RooflineCostModel>(machine.gpu, cluster, make_machine(machine.gpu, cluster, 1));
  return machine;
}

// Of the kernels that are modelled; fp8 and fp4 come with their precisions.
static std::optional<DType> dtype_of(const std::string& name) {
  for (const DType dtype : {DType::kFp32, DType::kTf32, DType::kBf16, DType::kFp16}) {
    if (dtype_name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

template <class T>
static T number(const CsvTable& table, const CsvRow& row, std::size_t column, T least, T most) {
  const std::string& text = row.cells[column];
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool read = error == std::errc() && end == text.data() + text.size() && value >= least && value <= most;
  if (!read) {
    throw InputError({table.file, row.line, 1},
                     fmt::format("found {} \"{}\", wanted a number from {} to {}", table.head[column], text, least, most));
  }
  return value;
}

// Dimensions above these are no measurement, and their product must stay far inside int64.
constexpr std::int64_t kMostDimension = 1 << 18;  // m n k batch: up to 2^72 FLOPs, counted in double
constexpr double kMostMicroseconds = 1e12;

PublishedComparison compare_gemm(const CsvTable& table) {
  PublishedComparison comparison;
  comparison.quantity = "latency_us";
  const std::size_t op = *table.column("op"), dtype = *table.column("dtype"), gpu = *table.column("gpu"),
                    latency = *table.column("latency_us");
  const std::size_t m = *table.column("m"), n = *table.column("n"), k = *table.column("k");
  const std::optional<std::size_t> batch = table.column("batch");
  std::map<std::string, NamedMachine> machines;
  const auto skip = [&comparison](const std::string& reason) { ++comparison.skipped[reason]; };
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const CsvRow& row = table.rows[i];
    const bool product = row.cells[op] == "gemm" || row.cells[op] == "linear" || row.cells[op] == "bmm";
    if (!product) {
      skip("op " + row.cells[op] + " is no gemm");
      continue;
    }
    const Gemm gemm{.m = number<std::int64_t>(table, row, m, 1, kMostDimension),
                    .n = number<std::int64_t>(table, row, n, 1, kMostDimension),
                    .k = number<std::int64_t>(table, row, k, 1, kMostDimension),
                    .batch = batch ? number<std::int64_t>(table, row, *batch, 1, kMostDimension) : 1,
                    .dtype = dtype_of(row.cells[dtype]).value_or(DType::kBf16)};
    const double measured = number<double>(table, row, latency, 1e-6, kMostMicroseconds);
    const std::string& name = row.cells[gpu];
    auto machine = machines.find(name);
    if (machine == machines.end()) machine = machines.emplace(name, named_machine(name)).first;
    if (!machine->second.problem.empty()) {
      skip(machine->second.problem);
      continue;
    }
    if (!dtype_of(row.cells[dtype])) {
      skip("dtype " + row.cells[dtype] + " is not built yet");
      continue;
    }
    try {
      peak(machine->second.gpu, gemm.dtype);
    } catch (const InputError&) {
      skip(machine->second.gpu.name + " has no peak for " + row.cells[dtype]);
      continue;
    }
    const Cost cost = machine->second.costs->cost(gemm, DeviceId{0});
    const double simulated = seconds(cost.fixed + cost.alone) * 1e6;
    comparison.rows.push_back({table.row_id(i), i, measured, simulated});
  }
  return comparison;
}

}  // namespace stepsim
