// Whether a job that moves activations to the host had better keep or recompute the same tensors: the same step simulated with each.
// Knows no form of output.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/step_figures.h"

namespace stepsim {

// The job's placement without its copies.
struct OffloadCounterparts {
  PlacementPolicy kept{};                       // what moves stays on the device
  std::optional<PlacementPolicy> recomputed{};  // what moves is run again, but for `not_rerun`
  std::vector<std::string> not_rerun{};         // tensors that move and cannot be run again: they stay on the device
  Bytes not_rerun_bytes{};                      // of one micro-batch, all stages
  std::size_t moved = 0;                        // (layer, tensor) of one micro-batch
};

// Rows by tensor and layer where the job has no full recompute; a layer's input is what its re-run starts from, and under full recompute
// nothing else moves.
OffloadCounterparts offload_counterparts(const Job& job, const StageLayout& stages);

enum class OffloadChoice : std::uint8_t { kKeep, kOffload, kRecompute };

struct OffloadVerdict {
  std::string not_compared{};  // why; "": it was
  StepFigures own{};
  StepFigures kept{};
  std::optional<StepFigures> recomputed{};
  std::vector<std::string> not_rerun{};  // as in OffloadCounterparts
  // Of those that fit (or of those that lack least, if none does) the shortest step; within 0.1 % of it keep, then offload, come first.
  OffloadChoice best = OffloadChoice::kOffload;
};

// None: the job moves nothing to the host. Not compared above kMostVerdictOps, or where the step stops when memory runs out.
inline constexpr std::int64_t kMostVerdictOps = 3'000'000;  // of the steps together: some seconds
std::optional<OffloadVerdict> offload_verdict(const Job& job, const StepRun& run);

OffloadChoice best_of(const StepFigures& kept, const StepFigures& offloaded, const std::optional<StepFigures>& recomputed);

// "offload 446.20 ms; recompute 452.30 ms (+1.4 %); keep 359.10 ms (-19.5 %), 3.20 GiB short -> offload", and what stays on the device.
// Why not, of a verdict that was not compared.
std::string verdict_text(const OffloadVerdict& verdict);

}  // namespace stepsim
