#include "models/pipeline_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/input_error.h"

namespace stepsim {

namespace {

bool is_beside(const LayerTemplate& source) {
  const auto expert = [](const TemplateOp& op) { return op.stream == OpStream::kExpert; };
  return std::any_of(source.forward.begin(), source.forward.end(), expert) ||
         std::any_of(source.backward.begin(), source.backward.end(), expert);
}

bool wants_overlap(const ParallelLayout& parallel, const StepTemplates& templates) {
  const bool exchanges = std::any_of(templates.kinds.begin(), templates.kinds.end(), is_beside) || is_beside(templates.head);
  return parallel.overlap_expert_exchange.value_or(false) && exchanges;
}

// Megatron-LM arguments.py: with a pipeline, --overlap-moe-expert-parallel-comm needs virtual stages.
bool has_pairs(const ParallelLayout& parallel) {
  const bool plain = parallel.schedule == PipelineKind::k1F1B && parallel.pipeline > 1;
  return can_pair(parallel.schedule) && !plain;
}

void check_dual_pipe(const ParallelLayout& parallel, std::int64_t micro_batches) {
  if (parallel.schedule != PipelineKind::kDualPipe) return;
  const std::int64_t stages = parallel.pipeline;
  if (stages % 2 != 0) {
    refuse("--pp", fmt::format("{} with --schedule dualpipe", stages), "an even number of stages, whose halves mirror one another");
  }
  if (micro_batches % 2 != 0 || micro_batches < 2 * stages) {
    refuse("--global-batch", fmt::format("{} micro-batches with --schedule dualpipe", micro_batches),
           fmt::format("an even number of at least {}, two a stage", 2 * stages));
  }
}

}  // namespace

void check_pipeline(const StepRequest& request, std::int64_t micro_batches) {
  const ParallelLayout& parallel = request.parallel;
  if (!goes_both_ways(parallel.schedule)) return;
  const std::string name(pipeline_name(parallel.schedule));
  if (parallel.pipeline == 1) refuse("--schedule", name + " with --pp 1", "--pp 2 or more");
  if (parallel.virtual_stages > 2) {
    refuse("--virtual-stages", fmt::format("{} with --schedule {}", parallel.virtual_stages, name),
           "none: it has two model chunks a stage");
  }
  if (parallel.zero >= 2) {
    refuse("--zero", fmt::format("{} with --schedule {}", parallel.zero, name),
           "0 or 1: gradients are reduced behind passes that do not make them");
  }
  const bool sliced =
      std::any_of(request.placement.rows.begin(), request.placement.rows.end(), [](const PlacementRow& row) { return row.of_slices > 1; });
  if (sliced && parallel.schedule == PipelineKind::kZbV) {
    refuse("--placement", "slices of tensors with --schedule zb-v", "whole ones: a chunk takes over what another one of its stage made");
  }
  if (request.model.tied_head) {
    refuse("--schedule", name + " with a tied head",
           "another schedule or a model with a head of its own: a stage would hold the table twice");
  }
  check_dual_pipe(parallel, micro_batches);
}

bool runs_pairs(const ParallelLayout& parallel, const StepTemplates& templates) {
  return wants_overlap(parallel, templates) && has_pairs(parallel);
}

void warn_of_exposed_exchanges(const ParallelLayout& parallel, const StepTemplates& templates, std::vector<std::string>& warnings) {
  if (!wants_overlap(parallel, templates) || has_pairs(parallel)) return;
  const bool apart = can_pair(parallel.schedule);
  warnings.push_back(fmt::format("exchanges between experts overlap nothing: schedule {}{} runs no forward pass beside a backward pass",
                                 pipeline_name(parallel.schedule), apart ? " without --virtual-stages" : ""));
}

}  // namespace stepsim
