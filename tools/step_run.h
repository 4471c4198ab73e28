// One job run to its end: graph, machine, result, and what the reports say of it in numbers. Knows no form of output.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hardware/profile_cost_model.h"
#include "hardware/roofline_cost_model.h"
#include "models/step_builder.h"
#include "tools/graph_run.h"
#include "tools/job.h"
#include "tools/step_memory.h"

namespace stepsim {

struct ConventionFlops {
  FlopsConvention convention = FlopsConvention::kMegatronCausal;
  StepFlops flops{};                   // of the step, all GPUs
  std::optional<double> mfu{}, hfu{};  // none for a step that was stopped
};

struct StagePeaks {
  Bytes saved_activations{};
  Bytes first_iteration{};  // of the step in which the optimizer states are born
};

// Device i of the graph is the representative of pipeline stage i.
struct StepRun {
  BuiltStep step{};
  std::unique_ptr<RooflineCostModel> modelled{};
  std::unique_ptr<ProfileCostModel> profiled{};  // over it, of a job with a profile
  const CostModel* costs = nullptr;              // which of the two the step was costed by
  GraphRun run{};
  std::vector<StorageId> born{};          // storages that the first iteration makes
  StepMemory allocation{};                // what is reserved
  std::vector<StagePeaks> stage_peaks{};  // by stage, as run.memory
  std::size_t reported_stage = 0;         // the job's choice, else the one with the largest peak
  std::vector<ConventionFlops> flops{};   // by all_conventions()
  FlopsPerSecond peak_rate{};             // of one GPU, dense
  double wall_s = 0;                      // of this computation

  const ConventionFlops& flops_of(FlopsConvention) const;
  // On every card, with what the process takes beside the allocator.
  bool fits() const { return !run.result.out_of_memory.has_value() && allocation.fits(); }
  const DeviceMemory& reported() const { return run.memory[reported_stage]; }
  const StagePeaks& reported_peaks() const { return stage_peaks[reported_stage]; }
  double step_time_s() const { return seconds(run.result.end); }
};

StepRequest step_request(const Job& job);

// Residents that the first iteration makes: optimizer moments, the workspace of autograd's BLAS handle.
std::vector<StorageId> first_born(const OpGraph& graph);

// A step of the job on a machine. Where a compiler places the job's copies (OffloadSchedule::order) they are moved there first, and memory
// follows the schedule, also of a step without copies; else memory follows the host's launches.
GraphRun run_built(const Job& job, BuiltStep& step, const Machine& machine, const CostModel& costs, std::span<const StorageId> born = {});

// Whether the memory log is taken through the allocator: that takes longer than the step itself, and says nothing of a card that is far
// from full, unless what is reserved is asked for.
enum class AllocatorReplayed : std::uint8_t { kAlways, kIfNearlyFull };
inline constexpr double kNearlyFull = 0.7;  // allocated bytes and what the process takes, of the card

// InputError for what the builder refuses, with the place in the job file.
StepRun run_step(const Job& job, AllocatorReplayed allocator = AllocatorReplayed::kAlways);

// Rank of a stage's first GPU, in Megatron-LM's order of ranks: tensor, context, data, pipeline.
std::int64_t first_rank(const ParallelLayout& parallel, std::int64_t stage);

// "0-2, 35-37": the layers that a stage holds, counted from 0; "" for none.
std::string layers_held(const StageLayout& stages, std::int32_t stage);

std::int64_t micro_batches_of(const Job& job);

// Bubble over the rest of the step, as 2104.04473 section 2.2 has it, of the critical device and of equal stages without transfers.
struct BubbleShare {
  double measured = 0, ideal = 0;
  std::string formula{};  // "(p-1)/(v m) = 7/(3 x 64)"
};
// None without a pipeline or if nothing ran.
std::optional<BubbleShare> bubble_share(const Job& job, const TimePartition& time);

// What becomes of the time, in words of the reports; indexes of the partition resolved.
struct ExposedCopies {
  Duration forward{}, backward{}, tail{};
};
ExposedCopies exposed_copies(const TimePartition& time, const PhaseMeaning& phases);

// A sentence each: what the user set in vain, and what the builder warns of.
std::vector<std::string> all_warnings(const Job& job, const StepRun& run);

// A sentence each: what neither the builder nor this program models.
std::vector<std::string> not_modelled(const StepRun& run);

}  // namespace stepsim
