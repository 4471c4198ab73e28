// What one pipeline stage's GPU holds in a training step, as PyTorch's allocator counts it: the peaks of the first iteration and of later
// ones, and what stays from one to the next. Knows no job file and no measurement.
#pragma once

#include <cstdint>

#include "hardware/machine_spec.h"
#include "models/step_builder.h"
#include "sim/allocator_rules.h"

namespace stepsim {

struct StageMemory {
  Bytes first_peak{};     // of the iteration in which the optimizer's state is made
  Bytes later_peak{};     // of those behind it
  Bytes between_steps{};  // behind one of those
};

// Micro-batches in which every stage meets all that a longer step has: its warm-up in full and a steady pass behind it. What is live at a
// time does not depend on later repetitions, which the passes of one kind are. At most those of the
// recipe, but whole groups under the interleaved schedule.
std::int64_t telling_micro_batches(const TrainingRecipe& training, const ParallelLayout& parallel);

// The step of the request, of telling_micro_batches() only. Stage: 0 to the pipeline's last. InputError as build_step().
StageMemory stage_memory(StepRequest request, const GpuSpec& gpu, const ClusterSpec& cluster, const AllocatorSettings& allocator,
                         std::int32_t stage);

}  // namespace stepsim
