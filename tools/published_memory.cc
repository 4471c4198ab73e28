// Measured peaks of Megatron-LM's functional tests against the simulated step of the same arguments.
#include <fmt/format.h>

#include <map>

#include "tools/megatron_goldens.h"
#include "tools/published_format.h"
#include "tools/stage_memory.h"
#include "tools/step_run.h"

namespace stepsim {

namespace {

// Runs that differ in nothing that memory depends on are simulated once.
class StageMemories {
 public:
  // None: this program cannot express the run; problem() says why.
  std::optional<StageMemory> of(const MegatronRun& run) {
    try {
      return simulated(run);
    } catch (const InputError& error) {
      problem_ = fmt::format("case {}: {}", run.test_case, error.what());
      return std::nullopt;
    }
  }
  const std::string& problem() const { return problem_; }

 private:
  const StageMemory& simulated(const MegatronRun& run) {
    const MegatronJob made = megatron_job(run);
    std::string key = fmt::format("{}|{}|{}|{}|{}", run.family(), made.job.gpu.name, made.job.parallel.data,
                                  static_cast<int>(made.job.training.attention), made.job.framework.flash_version);
    for (const auto& [flag, value] : run.arguments.values()) key += "|" + flag + "=" + value;
    const auto known = known_.find(key);
    if (known != known_.end()) return known->second;
    StepRequest request = step_request(made.job);
    if (made.blas_workspace) request.workspaces.blas_handle = *made.blas_workspace;
    // Only the last rank writes the test's log (global_vars.py: tensorboard writer of rank world_size - 1).
    const std::int32_t last = made.job.parallel.pipeline - 1;
    return known_.emplace(key, stage_memory(request, made.job.gpu, made.job.cluster, made.job.allocator, last)).first->second;
  }

  std::map<std::string, StageMemory> known_;
  std::string problem_;
};

std::string size_label(const MegatronRun& run) {
  const Job job = megatron_job(run).job;
  const auto parameters = static_cast<double>(parameter_count(job.model, job.training.sequence).total);
  if (parameters < 1e8) return "below 100 M parameters";
  if (parameters < 1e9) return "100 M to 1 B parameters";
  return parameters < 1e10 ? "1 B to 10 B parameters" : "10 B parameters and more";
}

void add(std::vector<Comparison>& rows, const GoldenRow& golden, std::optional<double> measured, Bytes predicted) {
  if (!measured) return;
  rows.push_back({.id = golden.id(), .row = golden.row, .measured = *measured, .simulated = static_cast<double>(predicted.value)});
}

void note_unknown(const std::map<std::string, std::size_t>& unknown, PublishedComparison& comparison) {
  for (const auto& [flag, rows] : unknown) {
    comparison.notes.push_back(fmt::format("--{} ({} rows) is not known: it is taken to do nothing to memory", flag, rows));
  }
}

}  // namespace

PublishedComparison compare_memory(const CsvTable& table) {
  PublishedComparison comparison;
  comparison.quantity = "peak bytes allocated (mem_max_second; fp16: mem_max_last)";
  StageMemories memories;
  std::map<std::string, std::size_t> unknown;
  std::size_t columns_alone = 0;
  for (const GoldenRow& golden : golden_rows(table)) {
    columns_alone += golden.configured ? 0 : 1;
    const std::string reason = golden.peak() ? reason_to_skip(golden.run) : "no peak is measured";
    const std::optional<StageMemory> memory = reason.empty() ? memories.of(golden.run) : std::nullopt;
    if (!memory) {
      ++comparison.skipped[reason.empty() ? memories.problem() : reason];
      continue;
    }
    add(comparison.rows, golden, golden.peak(), memory->later_peak);
    // A resumed run has the optimizer's state from its checkpoint.
    const bool resumed = golden.run.golden.find("_2nd") != std::string::npos;
    add(comparison.other["mem_max_first"], golden, golden.first_peak, resumed ? memory->later_peak : memory->first_peak);
    add(comparison.other["mem_alloc_last"], golden, golden.last_allocated, memory->between_steps);
    comparison.labels["group"].push_back(run_group(golden.run));
    comparison.labels["size"].push_back(size_label(golden.run));
    for (const std::string& flag : unknown_flags(golden.run.arguments)) ++unknown[flag];
  }
  if (columns_alone > 0) {
    comparison.notes.push_back(
        fmt::format("{} rows have no arguments in megatron_golden_configs.json beside the table: their columns alone "
                    "are read, all else is Megatron-LM's default",
                    columns_alone));
  }
  note_unknown(unknown, comparison);
  return comparison;
}

}  // namespace stepsim
