#include "models/deferred_head.h"

#include <algorithm>
#include <string>

#include "sim/input_error.h"

namespace stepsim {

std::int32_t deferred_head_passes(const TrainingRecipe& training, const ParallelLayout& parallel, std::int32_t micro_batches) {
  if (parallel.schedule == PipelineKind::kZbH1 && parallel.pipeline > 1) return 0;  // it has passes of weight gradients
  return static_cast<std::int32_t>(std::min<std::int64_t>(training.deferred_head_gradients, micro_batches));
}

void add_deferred_head_passes(std::vector<StagePasses>& passes, std::int32_t chunks, std::int32_t deferred) {
  for (std::int32_t micro_batch = 0; micro_batch < deferred; ++micro_batch) {
    passes.back().passes.push_back({.kind = PassKind::kWeight, .chunk = chunks - 1, .micro_batch = micro_batch});
    passes.back().exchanges.push_back(false);
  }
}

void check_deferred_head_passes(const TrainingRecipe& training, const ParallelLayout& parallel) {
  if (training.deferred_head_gradients == 0) return;
  const bool early = parallel.zero >= 2 || (parallel.replicas() > 1 && parallel.overlap_gradient_reduce.value_or(false));
  if (!early && !training.optimizer_in_backward) return;
  throw InputError({"--set training.deferred_head_gradients"},
                   "found " + std::to_string(training.deferred_head_gradients) + " with " +
                       (early ? "gradients that are reduced beside the backward pass" : "an optimizer in backward") +
                       ", wanted 0: those of the head are not there yet");
}

}  // namespace stepsim
