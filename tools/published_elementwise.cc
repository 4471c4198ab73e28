// Measured kernels that are bound by memory against the cost model of the machine that each row names.
#include "hardware/fit/elementwise_fit.h"
#include "tools/published_format.h"
#include "tools/published_kernels.h"

namespace stepsim {

namespace {

struct MemoryOp {
  MemoryKernel kernel = MemoryKernel::kFusedElementwise;
  int tensors = 0;  // read and written, one of them written
};

// None: not bound by memory alone, or no op of the tables.
std::optional<MemoryOp> memory_op(const std::string& name) {
  if (name == "ln" || name == "layernorm" || name == "rmsnorm") return MemoryOp{MemoryKernel::kNorm, 2};
  if (name == "softmax") return MemoryOp{MemoryKernel::kSoftmax, 2};
  const int tensors = elementwise_tensors(name);
  return tensors == 0 ? std::nullopt : std::optional(MemoryOp{MemoryKernel::kFusedElementwise, tensors});
}

}  // namespace

// The machine's time of the kernel; what a framework's launch adds to a measured latency (13-20 us in NeuSight's) is not in it.
PublishedComparison compare_elementwise(const CsvTable& table) {
  PublishedComparison comparison;
  comparison.quantity = "latency_us";
  const std::size_t op = *table.column("op"), lines = *table.column("rows"), columns = *table.column("cols"), gpu = *table.column("gpu"),
                    latency = *table.column("latency_us");
  const std::optional<std::size_t> dtype = table.column("dtype");
  constexpr std::int64_t kMostSide = std::int64_t{1} << 30;  // rows x cols x 4 bytes x 3 tensors stay below 2^64 in double
  NamedMachines machines;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const CsvRow& row = table.rows[i];
    const auto skip = [&](const std::string& reason) { ++comparison.skipped[reason]; };
    const std::optional<MemoryOp> kernel = memory_op(row.cells[op]);
    if (!kernel) {
      skip("op " + row.cells[op] + " is not bound by memory alone");
      continue;
    }
    const double elements = static_cast<double>(whole_cell(table, row, lines, 1, kMostSide)) *
                            static_cast<double>(whole_cell(table, row, columns, 1, kMostSide));
    const double measured = number_cell(table, row, latency, kLeastMicroseconds, kMostMicroseconds);
    const std::optional<DType> type = dtype ? wide_dtype(row.cells[*dtype]) : DType::kFp32;
    if (!type) {
      skip("dtype " + row.cells[*dtype] + " is not one of 16 or 32 bits");
      continue;
    }
    const NamedMachine& machine = machines.find(row.cells[gpu]);
    if (!machine.problem.empty()) {
      skip(machine.problem);
      continue;
    }
    constexpr double kMostBytes = 1e18;
    const double tensor = elements * static_cast<double>(bits_of(*type)) / 8;
    if (tensor * (kernel->tensors - 1) > kMostBytes) {
      skip("more than 1e18 bytes");
      continue;
    }
    const MemoryBound work{.read = Bytes(static_cast<std::int64_t>(tensor) * (kernel->tensors - 1)),
                           .written = Bytes(static_cast<std::int64_t>(tensor)),
                           .kernel = kernel->kernel};
    comparison.rows.push_back({table.row_id(i), i, measured, kernel_us(machine, work)});
  }
  return comparison;
}

}  // namespace stepsim
