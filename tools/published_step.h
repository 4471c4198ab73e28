// A step that somebody measured, as a job of this program: what a row of a published table says of its configuration, and what it measured.
// Translators (published_*_steps.h) make them of rows; simulate_published runs them. Nothing but the configuration reaches the job.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tools/job.h"
#include "tools/nearest_steps.h"
#include "tools/row_cells.h"

namespace stepsim {

// Why a row cannot be a job. Thrown by translators. `allowed`: one of the reasons for which a row may be skipped: SSM hybrids, GPU or
// dimensions unknown, batch missing, kernels that no preset has.
struct UntranslatedRow {
  std::string reason;
  bool allowed = true;
};

enum class MeasuredPart : std::uint8_t {
  kStep,             // a whole training step
  kForwardBackward,  // without the optimizer
  kLayer,            // forward and backward passes of one layer, without what stands before and behind
};

struct PublishedStep {
  std::string id{};
  std::size_t row = 0;  // of its table
  JobInput input{"", {}};
  std::vector<std::pair<std::string, std::int64_t>> dimensions{};  // fields of ModelSpec ("hidden") above the catalog's
  std::optional<std::int64_t> dense_layers{};                      // of a model with experts: the first ones
  std::optional<std::int64_t> window_every{};                      // layers with the window: each n-th
  MeasuredPart part = MeasuredPart::kStep;
  double measured_s = 0;                            // 0: not measured
  bool out_of_memory = false;                       // it ran out of memory
  bool ran = true;                                  // status ok
  std::optional<double> forward_s{}, backward_s{};  // parts of it that are measured too
  std::optional<double> peak_bytes{};               // measured
  bool peak_is_reserved = false;                    // by the allocator, not claimed
  std::map<std::string, std::string> labels{};      // by which statistics are grouped: "class" -> "dense, H100, fp8"
  std::string source{};                             // who measured it, in a few words
  std::vector<std::string> guesses{};               // what the row does not say and the job takes, a sentence each

  void set(const std::string& flag, std::string path, std::string value) {
    input.flags.push_back({flag, std::move(path), std::move(value)});
  }
};

struct SimulatedStep {
  std::string refused{};  // why the job is none; "": it is one
  double step_s = 0, lower_s = 0, upper_s = 0;
  double forward_s = 0, backward_s = 0;  // of kLayer
  bool fits = true;
  double peak_bytes = 0, reserved_bytes = 0;  // of the fullest device; reserved 0: not replayed
  std::optional<double> mfu{}, hfu{};         // by the job's convention
  MeasuredStepRow row{};                      // the job in a few words
};

// After each simulation.
using PublishedProgress = std::function<void(std::size_t done, std::size_t all)>;

// The job of a row. InputError for what resolve_job and check_layout refuse.
Job published_step_job(const PublishedStep& step);

// In the order of `steps`. Equal jobs run once; as many threads as the machine has cores. Deterministic.
std::vector<SimulatedStep> simulate_published(std::span<const PublishedStep> steps, const PublishedProgress& progress = {});

// Translators: throw UntranslatedRow.
PublishedStep vtrain_step(const RowCells&);              // published/vtrain_megatron_multi_node_a100.csv
PublishedStep mpt_step(const RowCells&);                 // published/mpt_llmfoundry.csv
PublishedStep results_step(const RowCells&);             // published/results.csv: by source, to one of those below
PublishedStep megatron_results_step(const RowCells&);    // Megatron-Bridge, NeMo, SimuMax, Megatron-LM, arXiv 2205.05198
PublishedStep torchtitan_results_step(const RowCells&);  // torchtitan
PublishedStep other_results_step(const RowCells&);       // InternEvo, fms-fsdp, AutoModel, axolotl, accelerate, prime-rl, NeuSight, ...

// What rows of results.csv have in common: sizes, layout, model, hardware, cluster by the columns; the source's own is the caller's.
void add_result_sizes(PublishedStep&, const RowCells&);

}  // namespace stepsim
