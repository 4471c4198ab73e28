// Measured attention kernels against the cost model of the machine that each row names: latencies of an inference kernel, or tables of
// FLOP/s by implementation and pass.
#include <algorithm>
#include <map>

#include "sim/input_error.h"
#include "tools/published_format.h"
#include "tools/published_kernels.h"

namespace stepsim {

namespace {

constexpr std::int8_t kTensorRt = 3;  // what attn_aic_*.csv measured; Attention::kernel

// Of the tables' names. None: no single kernel.
std::optional<std::int8_t> kernel_of(const std::string& implementation) {
  static const std::map<std::string, std::int8_t> kKernels = {{"FA2", 0}, {"FA3", 1}, {"cuDNN", 2}, {"FA4", 5}};
  const auto found = kKernels.find(implementation);
  return found == kKernels.end() ? std::nullopt : std::optional(found->second);
}

bool has_kernel(const GpuSpec& gpu, std::int8_t kernel) {
  for (const AttentionFit& fit : gpu.fit.attention) {
    if (fit.kernel == kernel) return true;
  }
  return false;
}

struct Passes {
  bool forward = false, backward = false;
  double forwards() const { return (forward ? 1 : 0) + (backward ? 2.5 : 0); }  // FLOPs over forward, kernels.md 2.2
};

std::optional<Passes> passes_of(const std::string& name) {
  if (name == "attn_fwd" || name == "fwd") return Passes{.forward = true};
  if (name == "attn_bwd" || name == "bwd") return Passes{.backward = true};
  if (name == "fwd+bwd") return Passes{.forward = true, .backward = true};
  return std::nullopt;
}

class AttentionRows {
 public:
  explicit AttentionRows(const CsvTable& table) : table_(table) {}
  // Or why it is skipped.
  std::string compare(std::size_t index, PublishedComparison& comparison);

 private:
  // "" where the table has no such column.
  std::string text(const CsvRow& row, const char* column) const {
    const std::optional<std::size_t> at = table_.column(column);
    return at ? row.cells[*at] : "";
  }
  std::int64_t size(const CsvRow& row, const char* column) const {
    return whole_cell(table_, row, *table_.column(column), 1, kMostDimension);
  }
  Attention shape(const CsvRow& row) const;
  double measured_us(const CsvRow& row, const Attention& work, const Passes& passes) const;

  const CsvTable& table_;
  NamedMachines machines_;
};

// The FlashAttention tables have hidden size 2048 (kernels.md 2.2) and may leave out the heads; without kv_heads there are as many as
// heads.
Attention AttentionRows::shape(const CsvRow& row) const {
  Attention work{.batch = size(row, "batch"), .queries = size(row, "seq"), .keys = size(row, "seq"), .head_dim = size(row, "head_dim")};
  work.heads = text(row, "heads").empty() ? std::max<std::int64_t>(1, 2048 / work.head_dim)
                                          : static_cast<std::int64_t>(number_cell(table_, row, *table_.column("heads"), 1, kMostDimension));
  work.kv_heads = text(row, "kv_heads").empty() ? work.heads : size(row, "kv_heads");
  work.causal = whole_cell(table_, row, *table_.column("causal"), 0, 1) == 1;
  return work;
}

double AttentionRows::measured_us(const CsvRow& row, const Attention& work, const Passes& passes) const {
  if (text(row, "latency_us").empty() && !text(row, "tflops").empty()) {
    constexpr double kMostTflops = 1e9;
    return passes.forwards() * arithmetic(work).value / (number_cell(table_, row, *table_.column("tflops"), 1e-6, kMostTflops) * 1e6);
  }
  return number_cell(table_, row, *table_.column("latency_us"), kLeastMicroseconds, kMostMicroseconds);
}

std::string AttentionRows::compare(std::size_t index, PublishedComparison& comparison) {
  const CsvRow& row = table_.rows[index];
  const std::string name = table_.column("pass") ? text(row, "pass") : text(row, "op");
  const std::optional<Passes> passes = passes_of(name);
  if (!passes) return "op " + name + " is no attention";
  Attention work = shape(row);
  const double measured = measured_us(row, work, *passes);
  const std::string dtype = table_.column("dtype") ? text(row, "dtype") : "bf16";
  if (dtype != "bf16" && dtype != "fp16" && dtype != "half") return "attention in " + dtype + " is not modelled";
  const bool by_implementation = table_.column("impl").has_value();
  const std::optional<std::int8_t> kernel = by_implementation ? kernel_of(text(row, "impl")) : kTensorRt;
  if (!kernel) return "implementation " + text(row, "impl") + " is not one kernel";
  work.kernel = *kernel;
  const NamedMachine& machine = machines_.find(text(row, "gpu"));
  if (!machine.problem.empty()) return machine.problem;
  if (!has_kernel(machine.gpu, work.kernel)) {
    return machine.gpu.name + " has no rates of " + (by_implementation ? text(row, "impl") : "TensorRT-LLM's attention");
  }
  constexpr std::int64_t kMostHeadDim = 256;  // of all rates in the catalog
  if (work.head_dim > kMostHeadDim) return "head_dim above 256 is not modelled";
  double simulated = passes->forward ? kernel_us(machine, work) : 0;
  work.backward = true;
  if (passes->backward) simulated += kernel_us(machine, work);
  comparison.rows.push_back({table_.row_id(index), index, measured, simulated});
  return "";
}

}  // namespace

PublishedComparison compare_attention(const CsvTable& table) {
  PublishedComparison comparison;
  comparison.quantity = "latency_us";
  if (!table.column("op") && !table.column("pass")) {
    throw InputError({table.file, 1, 1}, "found neither op nor pass, wanted one of them: the columns of format attention");
  }
  AttentionRows rows(table);
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const std::string reason = rows.compare(i, comparison);
    if (!reason.empty()) ++comparison.skipped[reason];
  }
  return comparison;
}

}  // namespace stepsim
