#include "tools/memory_changes.h"

#include <fmt/format.h>

#include <algorithm>

namespace stepsim {

namespace {

struct Candidate {
  std::string flags{}, condition{};
  std::vector<FlagValue> values{};
  std::int64_t times = 1;  // so many times the ops of the job's own step, about
};

FlagValue set(const std::string& path, const std::string& value) { return {"--set", path, value}; }

// Twice the tensor-parallel ranks, from the replicas where there are some.
Candidate wider(const ParallelLayout& parallel) {
  const std::int64_t ranks = std::int64_t{parallel.tensor} * 2;
  Candidate candidate{.flags = fmt::format("--tp {}", ranks), .values = {set("parallel.tp", std::to_string(ranks))}};
  if (parallel.data % 2 == 0) {
    candidate.flags += fmt::format(" --dp {}", parallel.data / 2);
    candidate.values.push_back(set("parallel.dp", std::to_string(parallel.data / 2)));
    candidate.times = 2;  // the other half's micro-batches
  } else {
    candidate.condition = "with twice the GPUs";
    candidate.values.push_back(set("parallel.dp", std::to_string(parallel.data)));
  }
  return candidate;
}

std::vector<Candidate> candidates_of(const Job& job) {
  const ParallelLayout& parallel = job.parallel;
  const TrainingRecipe& training = job.training;
  std::vector<Candidate> all;
  if (parallel.data > 1 && parallel.zero == 0) all.push_back({"--zero 1", "", {set("parallel.zero", "1")}});
  if (parallel.tensor > 1 && !parallel.sequence_parallel) {
    all.push_back({"--sequence-parallel", "", {set("parallel.sequence_parallel", "true")}});
  }
  if (training.loss == LossKind::kPlain) all.push_back({"--loss fused", "", {set("training.loss", "fused")}});
  if (training.loss != LossKind::kChunked) all.push_back({"--loss chunked=8", "", {set("training.loss", "chunked=8")}});
  if (training.micro_batch % 2 == 0) {
    const std::string half = std::to_string(training.micro_batch / 2), batch = std::to_string(training.global_batch);
    all.push_back({"--micro-batch " + half, "", {set("training.micro_batch", half), set("training.global_batch", batch)}, 2});
  }
  all.push_back(wider(parallel));
  if (training.moment_dtype == DType::kFp32 && training.optimizer == OptimizerKind::kAdamW) {
    all.push_back({"--set training.moment_dtype=bf16", "", {set("training.moment_dtype", "bf16")}});
  }
  return all;
}

// The job's own number of GPUs would contradict another layout: the layout decides it.
JobInput changed(const JobInput& input, const Candidate& candidate) {
  JobInput with = input;
  const auto layout = [](const FlagValue& value) { return value.path == "parallel.tp"; };
  if (std::any_of(candidate.values.begin(), candidate.values.end(), layout)) {
    std::erase_if(with.flags, [](const FlagValue& value) { return value.path == "hardware.gpus"; });
  }
  with.flags.insert(with.flags.end(), candidate.values.begin(), candidate.values.end());
  return with;
}

}  // namespace

MemoryChanges memory_changes(const JobInput& input, const Job& job, const StepRun& run) {
  MemoryChanges changes{.own = figures_of(run)};
  if (job.stop_at_out_of_memory) {
    changes.not_searched = "the job stops at out of memory";
    return changes;
  }
  const std::vector<Candidate> candidates = candidates_of(job);
  std::int64_t times = 0;
  for (const Candidate& candidate : candidates) times += candidate.times;
  const std::int64_t ops = times * static_cast<std::int64_t>(run.step.graph.ops().size());
  const std::int64_t most = run.fits() ? kMostChangedOps : kMostChangedOpsUnfit;
  if (ops > most) {
    changes.not_searched = fmt::format("the changes are about {} ops, more than {}", ops, most);
    return changes;
  }
  for (const Candidate& candidate : candidates) {
    try {
      const Job other = resolve_job(changed(input, candidate));
      changes.tried.push_back({candidate.flags, candidate.condition, figures_of(run_step(other))});
    } catch (const InputError&) {
      continue;  // heads that do not divide, a batch that does not, a machine without the dtype
    }
  }
  return changes;
}

std::optional<std::size_t> cheapest_change(const MemoryChanges& changes) {
  constexpr std::int64_t kEnough = std::int64_t{64} << 20;
  const std::int64_t least = std::max(std::min(kEnough, changes.own.peak.value / 100), std::int64_t{1});
  std::optional<std::size_t> best;
  double best_price = 0;
  for (std::size_t i = 0; i < changes.tried.size(); ++i) {
    const StepFigures& other = changes.tried[i].figures;
    const std::int64_t freed = changes.own.peak.value - other.peak.value;
    if (freed < least || !changes.tried[i].condition.empty()) continue;
    const auto added = static_cast<double>((other.step - changes.own.step).count());
    // Without a cost, what frees more is cheaper; prices of the two kinds do not meet.
    const double price = added > 0 ? added / static_cast<double>(freed) : -static_cast<double>(freed);
    if (best && price >= best_price) continue;
    best = i;
    best_price = price;
  }
  return best;
}

}  // namespace stepsim
