// What a preset decides of a layout that the user left open.
#include <algorithm>

#include "models/framework_preset.h"
#include "models/resident_storages.h"
#include "models/template_builder.h"
#include "models/training_recipe.h"
#include "sim/check.h"

namespace stepsim {

static PointToPoint preset_point_to_point(const ParallelLayout& parallel, const FrameworkPreset& framework) {
  switch (parallel.schedule) {
    case PipelineKind::kGPipe:
    case PipelineKind::k1F1B:
      return framework.point_to_point;
    case PipelineKind::kInterleaved:
      return framework.point_to_point_interleaved;
    case PipelineKind::kZbH1:
    case PipelineKind::kZbV:
    case PipelineKind::kDualPipe:
      return PointToPoint::kOverlapped;  // sail-sg/zero-bubble-pipeline-parallelism: sends and receives beside compute
  }
  check_failed("pipeline kind", __FILE__, __LINE__);
}

// DeepEP's and HybridEP's kernels exchange between ranks: without any, tokens stay where they are.
static Dispatcher preset_dispatcher(const ParallelLayout& parallel, const FrameworkPreset& framework) {
  const bool alone = std::int64_t{parallel.expert} * parallel.expert_tensor_ranks() == 1;
  const bool kernels = framework.dispatcher == Dispatcher::kDeepEp || framework.dispatcher == Dispatcher::kHybridEp;
  return alone && kernels ? Dispatcher::kAllToAll : framework.dispatcher;
}

// Transformer Engine's userbuffers carry the gathers and scatters of sequence parallelism (arguments.py: --tp-comm-overlap needs it).
static TensorOverlap decided_tensor_overlap(const ParallelLayout& parallel, const FrameworkPreset& framework) {
  const bool carries = parallel.tensor > 1 && parallel.sequence_parallel;
  return carries ? parallel.tensor_overlap.value_or(framework.tensor_overlap) : TensorOverlap::kNone;
}

ParallelLayout with_preset(const ParallelLayout& given, const TrainingRecipe& training, const FrameworkPreset& framework) {
  ParallelLayout parallel = given;
  const auto decide = [](auto& value, auto preset) {
    if (!value) value = preset;
  };
  decide(parallel.point_to_point, preset_point_to_point(parallel, framework));
  decide(parallel.deallocate_outputs, framework.deallocates_pipeline_outputs);
  decide(parallel.overlap_gradient_reduce, framework.overlaps_gradient_reduce);
  decide(parallel.overlap_weight_gather, framework.overlaps_weight_gather);
  const DType own = framework.reduce_bits == 32 ? DType::kFp32 : compute_dtype(training.precision);
  decide(parallel.reduce_dtype, parallel.zero >= 2 ? own : *with_gradient_dtype(training, parallel, framework).gradient_dtype);
  const std::int64_t per_rank = framework.bucket_parameters_per_rank * parallel.replicas();
  const std::int64_t parameters = framework.bucket_parameters == 0 ? 0 : std::max(framework.bucket_parameters, per_rank);
  decide(parallel.bucket, size_of(parameters, *parallel.reduce_dtype));
  decide(parallel.reduce_every_micro_batch, framework.reduce_every_micro_batch);
  decide(parallel.reshard_after_forward, framework.reshard_after_forward);
  decide(parallel.prefetch_forward, framework.prefetch_forward);
  decide(parallel.prefetch_backward, framework.prefetch_backward);
  decide(parallel.gather_limit, framework.gather_limit);
  decide(parallel.dispatcher, preset_dispatcher(parallel, framework));
  decide(parallel.context_exchange, framework.context_exchange);
  parallel.tensor_overlap = decided_tensor_overlap(parallel, framework);
  decide(parallel.overlap_expert_exchange, framework.overlaps_expert_exchange);
  decide(parallel.delay_weight_gradients, framework.delays_weight_gradients);
  return parallel;
}

}  // namespace stepsim
